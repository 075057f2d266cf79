"""The journal of several machines: one PostgreSQL database, by URL. Needs psycopg (`pip install 'gpuops[postgresql]'`).

Who may write next is decided by the database: the head of a vCenter moves only from where the writer saw it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from gpuops.errors import UsageError
from gpuops.execute.journal.database import Database
from gpuops.execute.journal.opening import prepared, remembered
from gpuops.execute.journal.store import Store

CONNECT_TIMEOUT_S: Final = "10"

SILENCE: Final = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""After a minute without an answer the database counts as lost: a run must not wait for one for ever."""

_DRIVER: Final = "postgresql+psycopg"


def open_url(text: str, vcenter: str, *, writing: bool) -> Store | None:
    """The records of this vCenter in that database. Raises UsageError for what is no URL, StateDamaged."""
    database = open_database(text)
    return prepared(database, vcenter) if writing else remembered(database, vcenter)


def open_database(text: str) -> Database:
    """The database at that URL; nothing is sent to it yet. Raises UsageError."""
    url = parsed(text)
    engine = create_engine(_secured(url), pool_pre_ping=True)
    event.listen(engine, "connect", _make_durable)
    return Database(engine, shown(url))


def parsed(text: str) -> URL:
    """The URL, if a journal can be opened by it. Raises UsageError, without a word of it: there may be a password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in ("postgresql", "postgres", _DRIVER) or not url.database:
        raise UsageError(
            "the URL of the journal is none of a PostgreSQL database",
            hint="write it as postgresql://gpuops@db.example.com/gpuops; the password belongs in ~/.pgpass",
        ) from None
    if find_spec("psycopg") is None:
        raise UsageError("a journal in PostgreSQL needs psycopg", hint="pip install 'gpuops[postgresql]'")
    return url.set(drivername=_DRIVER)


def shown(url: URL) -> str:
    """How messages name it: without the password, and without parameters, which may hold one too."""
    return url.set(drivername="postgresql", password=None, query={}).render_as_string()


def _secured(url: URL) -> URL:
    """libpq by itself would accept any server, and talk in the clear to one that cannot encrypt."""
    given = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "gpuops", **SILENCE}
    hosts = [host for host in (url.host, url.query.get("host")) if isinstance(host, str)]
    if any(not _is_here(host) for host in hosts):
        given["sslmode"] = "verify-full"
    return url.update_query_dict({key: value for key, value in given.items() if key not in url.query})


def _is_here(host: str) -> bool:
    return host.startswith(("/", "127.")) or host in ("localhost", "::1")


def _make_durable(connection: Any, _record: object) -> None:
    """A server may be set to answer before a commit is on its disk; ours must be."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute("SET statement_timeout TO '60s'")
        cursor.execute("SET lock_timeout TO '20s'")
    connection.commit()
