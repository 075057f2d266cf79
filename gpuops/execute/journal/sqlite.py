"""The journal of one machine: an SQLite file of our own in the state directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gpuops.execute.journal.database import Database, sqlite_engine
from gpuops.execute.journal.opening import prepared, remembered
from gpuops.execute.journal.store import Store
from gpuops.execute.state import prepare_state_dir, private_file

FILE_NAME: Final = "journal.sqlite"
COMPANIONS: Final = ("-wal", "-shm", "-journal")
"""Files that SQLite keeps beside it, and would follow a link to."""


def open_file(state_dir: Path, vcenter: str, *, writing: bool) -> Store | None:
    """The records of this vCenter in the directory's journal. Raises StateDamaged.

    To write: made if there is none, and brought to this schema. To read: nothing is written; None = there is none.
    """
    if writing:
        prepare_state_dir(state_dir)
        private_file(state_dir / FILE_NAME)
        _private_companions(state_dir)
    database = file_database(state_dir)
    if database is None:
        return None
    return prepared(database, vcenter) if writing else remembered(database, vcenter)


def file_database(state_dir: Path) -> Database | None:
    """The file, if there is one and it is ours alone. Raises StateDamaged."""
    path = state_dir / FILE_NAME
    if not os.path.lexists(path):  # a link to nowhere is no missing journal
        return None
    prepare_state_dir(state_dir)
    private_file(path)
    _private_companions(state_dir)
    return Database(sqlite_engine(str(path)), str(path))


def _private_companions(state_dir: Path) -> None:
    for suffix in COMPANIONS:
        path = state_dir / f"{FILE_NAME}{suffix}"
        if os.path.lexists(path):
            private_file(path)
