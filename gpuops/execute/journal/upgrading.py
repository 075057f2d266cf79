"""Brings a database's tables to the revision of this gpuops, or prints what would: by alembic, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import StringIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from gpuops.errors import StateDamaged
from gpuops.execute import migrations
from gpuops.execute.journal.database import RETURN_HINT, Database
from gpuops.execute.migrations import HEAD, Contents
from gpuops.execute.state.lock import DatabaseLock, hold_to_the_end

if TYPE_CHECKING:
    from alembic.config import Config

HasTables = Callable[[Connection, Database], bool]
"""Whether a database has tables of this kind. Raises StateDamaged where this gpuops cannot read them."""
_NO_RIGHT: Final = "42501"
"""PostgreSQL's insufficient_privilege."""
_LOG: Final = logging.getLogger(__name__)
_SITE_REQUESTS: Final = text("SELECT name, site FROM site_requests ORDER BY name")
_ALEMBIC: Final = Lock()
"""Alembic keeps its context in module variables: a process runs one upgrade at a time."""
_TURN_S: Final = 30
"""How long to wait for the upgrade of another thread: its database may not answer."""


def bring_up(database: Database, contents: Contents) -> None:
    """Create or change the tables so that they have the revision of this gpuops. Raises StateDamaged.

    The database stays open. While another process upgrades it, this one waits. An interrupted upgrade changes nothing.
    """
    with database.reading() as connection:
        is_there = database.revision(connection) == HEAD
    if not is_there:
        upgrade(database, contents)


def to_write(database: Database, contents: Contents, check: HasTables) -> Database:
    """Return the database after its tables were checked and upgraded. Raises StateDamaged, and closes it then."""
    try:
        with database.reading() as connection:
            check(connection, database)
        bring_up(database, contents)
    except BaseException:
        database.close()
        raise
    return database


def to_read(database: Database, check: HasTables) -> Database | None:
    """Return the database unchanged; if `check` finds no tables, close it and return None. Raises StateDamaged."""
    try:
        with database.reading() as connection:
            has_tables = check(connection, database)
    except BaseException:
        database.close()
        raise
    if has_tables:
        return database
    database.close()
    return None


def upgrade(database: Database, contents: Contents) -> str | None:
    """Upgrade the tables, and return the revision that they had; None if they had none. Raises StateDamaged.

    Rows of features that gpuops no longer has are dropped, and a warning in the log names them. Without a configured
    log Python prints the warning on stderr, also with `--quiet`.
    """
    from alembic import command  # imported before the lock is taken: it takes a while

    try:
        with database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.TABLES)
            before = database.revision(connection)
            dropped = ""
            if before != HEAD:
                dropped = _dropped_requests(connection)
                with _turn(database):
                    command.upgrade(_alembic_config(connection, contents), "head")
        if dropped:
            _LOG.warning("warning: %s: %s", database.name, dropped)
        return before
    except StateDamaged as failed:
        # an account that may not change tables gets an error with the command for one that may
        raise _without_right(database, failed) or failed from failed.__cause__


def statements(database: Database) -> str:
    """Return the SQL that upgrades this PostgreSQL database; "" if it is up to date. Changes nothing, closes it.

    Raises StateDamaged.
    """
    from alembic import command

    with closing(database), database.reading() as connection:
        before = database.revision(connection)
        if before == HEAD:
            return ""
        printed = StringIO()
        if dropped := _dropped_requests(connection):
            printed.write(f"-- warning: {dropped}\n")
        configured = _alembic_config(connection, Contents.JOURNAL, printed)
        with _turn(database):
            command.upgrade(configured, f"{before}:head" if before else "head", sql=True)
    return printed.getvalue().strip() + "\n"


def _dropped_requests(connection: Connection) -> str:
    """Return one line about the requests across sites that the next revision drops; "" if it drops none."""
    if not inspect(connection).has_table("site_requests"):
        return ""
    assigned = [f"{row.name!r} was assigned to {row.site!r}" for row in connection.execute(_SITE_REQUESTS)]
    if not assigned:
        return ""
    return (
        f"requests across sites are no longer supported, and their assignments are dropped: {', '.join(assigned)}; "
        "next: name each of these VMs in the queue of one vCenter's policy, and remove `across_sites`"
    )


@contextmanager
def _turn(database: Database) -> Iterator[None]:
    if not _ALEMBIC.acquire(timeout=_TURN_S):
        raise StateDamaged(
            f"the tables of {database.name} were not upgraded: another upgrade here takes over {_TURN_S} s",
            hint=f"run the command again later; until then {RETURN_HINT}",
        )
    try:
        yield
    finally:
        _ALEMBIC.release()


def _alembic_config(connection: Connection, contents: Contents, output: StringIO | None = None) -> Config:
    from alembic.config import Config

    everything = connection.dialect.name == "postgresql"
    configured = Config(output_buffer=output, attributes={
        "connection": connection, "contents": frozenset(Contents) if everything else {contents}
    })  # fmt: skip
    folder = str(Path(migrations.__file__).parent)
    configured.set_main_option("script_location", folder.replace("%", "%%"))
    return configured


def _without_right(database: Database, failed: StateDamaged) -> StateDamaged | None:
    if getattr(getattr(failed.__cause__, "orig", None), "sqlstate", None) != _NO_RIGHT:
        return None
    return StateDamaged(
        f"{failed.message}: this account may not make or change the tables of {database.name}",
        hint=f"gpuops runner init --sql prints the statements for an account that may; until then {RETURN_HINT}",
    )
