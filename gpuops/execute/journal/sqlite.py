"""The journal of one machine: an SQLite file of our own in the state directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gpuops.execute.journal.database import Database, sqlite_engine
from gpuops.execute.state import prepare_state_dir, private_file

FILE_NAME: Final = "journal.sqlite"
COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside it, and would follow a link to."""


def file_database(state_dir: Path) -> Database | None:
    """The file, if there is one and nobody else may read it. Raises StateDamaged."""
    if not os.path.lexists(state_dir / FILE_NAME):  # a link to nowhere is no missing journal
        return None
    return make_file(state_dir)


def make_file(state_dir: Path) -> Database:
    """The file, which nobody else may read; made if there is none. Raises StateDamaged."""
    path = state_dir / FILE_NAME
    prepare_state_dir(state_dir)
    private_file(path)
    _private_companions(state_dir)
    return Database(sqlite_engine(str(path)), str(path))


def _private_companions(state_dir: Path) -> None:
    for suffix in COMPANIONS:
        path = state_dir / f"{FILE_NAME}{suffix}"
        if os.path.lexists(path):
            private_file(path)
