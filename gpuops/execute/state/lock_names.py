"""The names of all locks. Several versions of gpuops use them at the same time, so a name never changes.

Locks of one machine are files in the state directory. Locks that machines share are advisory locks of PostgreSQL, which
end with the transaction.
"""

from __future__ import annotations

import re
import uuid
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlalchemy import Connection

BUNDLE_NAMES: Final = "bundle-names.lock"


def vcenter_lock(state_dir: Path, vcenter: str) -> Path:
    """Return the file that a run locks while it changes this vCenter."""
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}.lock"


def receiver_lock(state_dir: Path, receiver: str) -> Path:
    """Return the file that a process locks while it sends notices to this receiver."""
    return state_dir / f"notices-to-{receiver}.lock"


def notices_of_run_lock(state_dir: Path, run: str) -> Path:
    """Return the file that a run locks as long as it lives. `run`: its id, or the content of a damaged file."""
    return state_dir / f"notices-run-{uuid.uuid5(uuid.NAMESPACE_OID, run).hex[:16]}.lock"


class DatabaseLock(StrEnum):
    """What only one transaction at a time may change."""

    TABLES = "gpuops tables"
    JOBS = "gpuops jobs"
    BOOK = "gpuops book"
    """Of one vCenter."""
    MEASUREMENTS = "gpuops measurements"
    """Of one vCenter."""


def hold_to_the_end(connection: Connection, lock: DatabaseLock, vcenter: str = "") -> None:
    """Wait for the lock, and hold it until the transaction ends. SQLite has one writer, and needs no lock."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy import text

        name = f"{lock} {vcenter}" if vcenter else str(lock)
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})
