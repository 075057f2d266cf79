"""The journal of several machines: one PostgreSQL database, by URL. Needs psycopg (`pip install 'gpuops[postgresql]'`).

Who may write next is decided by the database: the head of a vCenter moves only from where the writer saw it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import URL, create_engine, event

from gpuops.config.journal_url import parsed
from gpuops.execute.journal.database import Database

CONNECT_TIMEOUT_S: Final = "10"

SILENCE: Final = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""After a minute without an answer the database counts as lost: a run must not wait for one for ever."""


def open_database(text: str) -> Database:
    """The database at that URL; nothing is sent to it yet. Raises UsageError."""
    url = parsed(text)
    engine = create_engine(_patient(url), pool_pre_ping=True)
    event.listen(engine, "connect", _make_durable)
    return Database(engine, shown(url))


def shown(url: URL) -> str:
    """How messages name it: without the password, and without parameters, which may hold one too."""
    return url.set(drivername="postgresql", password=None, query={}).render_as_string()


def _patient(url: URL) -> URL:
    """With what libpq is told of time, where the URL says nothing of it."""
    given = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "gpuops", **SILENCE}
    return url.update_query_dict({key: value for key, value in given.items() if key not in url.query})


def _make_durable(connection: Any, _record: object) -> None:
    """A server may be set to answer before a commit is on its disk; ours must be."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute("SET statement_timeout TO '60s'")
        cursor.execute("SET lock_timeout TO '20s'")
    connection.commit()
