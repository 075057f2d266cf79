"""The tables of gpuops's databases as alembic makes and changes them: one revision after the other.

There is one list of revisions for all databases. A PostgreSQL has all tables; of the files in a state directory each
has those of its `Contents`. `journal/upgrading.py` runs what is missing when a database is opened to be written, or
prints it. Nothing else makes a table.

To add or change one: a file in `versions/`, its number at the end of `REVISIONS`. A revision says its tables itself and
imports none of the code's, which will be others when it runs. Runs of the version before may be under way, and go on:
what they write must still fit, and what they read be there. A revision sends statements and asks nothing, for an
administrator may run them by hand. There is no way back: who needs the database as it was restores it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

VERSION_TABLE: Final = "alembic_version"

REVISIONS: Final = ("0001", "0002", "0003", "0004")
"""All of them, in their order: alembic, which takes 0.2 s to import, is not asked when the last one is there."""

HEAD: Final = REVISIONS[-1]


class Contents(Enum):
    """What a database keeps; a PostgreSQL keeps all of them."""

    JOURNAL = "journal"
    """And what is beside it: jobs."""
    MEASUREMENTS = "measurements"
    POOLS = "pools"
    RUNNERS = "runners"
