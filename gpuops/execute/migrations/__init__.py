"""The revisions of gpuops's database tables, which alembic applies one after another.

There is one list of revisions for all databases. A PostgreSQL database has all tables; a file in a state directory has
those of its `Contents`. `journal/database.py` applies the missing revisions when a database is opened for writing, or
prints them. Nothing else creates a table.

To add or change a table, add a file in `versions/` and its number at the end of `REVISIONS`. A revision defines its
tables itself and imports nothing from the code, which will have changed by the time it runs. Nights of the
previous version may continue during an upgrade: what they write must still fit, and what they read must still exist.
Tables that only commands of an extra use may be dropped: a command of the previous version is then refused. A revision
only sends statements and reads nothing, since an administrator may run them manually. There is no downgrade: restore a
backup of the database instead.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

VERSION_TABLE: Final = "alembic_version"

REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005")
"""In order. alembic, which takes 0.2 s to import, is not loaded if a database has the last one."""

HEAD: Final = REVISIONS[-1]


class Contents(Enum):
    """What a database keeps; a PostgreSQL keeps all of them."""

    JOURNAL = "journal"
    """With the jobs and the book."""
    MEASUREMENTS = "measurements"
    POOLS = "pools"
    """In the file of an earlier version; revision 0005 moves them into the book."""
    RUNNERS = "runners"
