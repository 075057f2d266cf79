"""Rows are chained: one that was changed, dropped, moved or added by anything but gpuops is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from pytest_mock import MockerFixture
from sqlalchemy import Row, text

from gpuops.errors import StateDamaged
from gpuops.execute.journal import database
from gpuops.execute.journal.database import Database, sqlite_engine
from gpuops.execute.journal.journal_state import JournalState, dump_state
from gpuops.execute.journal.record import GENESIS, Kind, Record, checksum
from gpuops.execute.journal.stores import FILE_NAME, Broken, Chain, look_into_store, open_database, open_store
from tests.execute.journal.postgres import PASSWORD, Server

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)

COPY = "INSERT INTO journal SELECT vcenter, 9, run, kind, at, body, checksum"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Nine records; the fourth is a checkpoint."""
    with closing(open_store(tmp_path, "", "vc-1")) as store:
        for seq in range(1, 10):
            kind, body = (Kind.CHECKPOINT, dump_state(JournalState("vc-1"))) if seq == 4 else (Kind.ENDED, {})
            store.append([Record(seq, "r", kind, NOW + timedelta(seconds=seq), body)])
    return tmp_path


def edit(state: Path, *statements: str) -> None:
    with closing(sqlite3.connect(state / FILE_NAME)) as database, database:
        for statement in statements:
            before = database.total_changes  # `rowcount` is unknown of an INSERT in a Turkish locale
            database.execute(statement)
            assert database.total_changes > before, "the statement hits a row"


def read(state: Path, after: int | None) -> Sequence[Record]:
    store = look_into_store(state, "", "vc-1")
    assert store is not None
    with closing(store):
        return store.read(after)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (["UPDATE journal SET body = '{ }' WHERE seq = 6"], "record 6: its text does not fit its checksum"),
        (["UPDATE journal SET at = replace(at, '21:', '22:') WHERE seq = 6"], "record 6: its text does not fit"),
        (["UPDATE journal SET run = 'x' WHERE seq = 9"], "record 9: its text does not fit"),
        (["UPDATE journal SET kind = 'begun' WHERE seq = 4"], "record 4: its text does not fit"),
        (["UPDATE journal SET checksum = upper(checksum) WHERE seq = 6"], "record 6: its text does not fit"),
        (["DELETE FROM journal WHERE seq = 6"], "record 6: it is missing; record 7 comes after 5"),
        (["DELETE FROM journal WHERE seq = 9"], "record 9: it is missing; 9 records were written"),
        (["DELETE FROM journal WHERE seq = 3"], "record 3: it is missing"),
        (["DELETE FROM journal WHERE seq >= 4"], "record 4: it is missing; 9 records were written"),
        (["DELETE FROM journal WHERE seq = 9", "UPDATE journal_heads SET seq = 8"],
         "record 8: its checksum is not the one that was written last"),
        (["UPDATE journal SET seq = 0 WHERE seq = 6", "UPDATE journal SET seq = 6 WHERE seq = 7",
          "UPDATE journal SET seq = 7 WHERE seq = 0"], "record 6: its text does not fit"),
        (["UPDATE journal_heads SET checksum = 'x'"], "record 9: its checksum is not the one"),
        (["DELETE FROM journal WHERE seq = 9", f"{COPY} FROM journal WHERE seq = 8"],
         "record 9: its text does not fit"),
    ],
)  # fmt: skip
def test_a_row_that_was_tampered_with_is_named(state: Path, edits: list[str], reason: str) -> None:
    edit(state, *edits)
    with pytest.raises(StateDamaged) as damaged:
        read(state, None)
    assert f"was changed by a program other than gpuops: {reason}" in damaged.value.message
    assert "gpuops rotate audit verify" in damaged.value.hint


def test_what_is_closed_is_not_read(state: Path) -> None:
    edit(state, "UPDATE journal SET body = '{ }' WHERE seq = 2")
    assert [record.seq for record in read(state, None)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(StateDamaged, match="record 2:"):
        read(state, 0)


def test_a_row_that_somebody_else_put_behind_the_last_is_named(state: Path) -> None:
    edit(state, f"{COPY.replace('9', '10')} FROM journal WHERE seq = 9")
    with pytest.raises(StateDamaged, match="record 10: its text does not fit its checksum"):
        read(state, None)
    copied_checksum = checksum_of_the_tenth(state)
    edit(state, f"UPDATE journal SET checksum = '{copied_checksum}' WHERE seq = 10")
    with pytest.raises(StateDamaged, match="record 10: only 9 records were written by gpuops"):
        read(state, None)


def checksum_of_the_tenth(state: Path) -> str:
    query = "SELECT run, kind, at, body, checksum FROM journal WHERE seq = "
    with closing(sqlite3.connect(state / FILE_NAME)) as database:
        previous = database.execute(query + "9").fetchone()[4]
        return checksum(previous, "vc-1", 10, *database.execute(query + "10").fetchone()[:4])


@pytest.mark.long
def test_every_bit_counts(state: Path) -> None:
    """Whatever byte of the last record's columns changes, it is seen."""
    with closing(sqlite3.connect(state / FILE_NAME)) as database:
        row = database.execute("SELECT run, kind, at, body, checksum FROM journal WHERE seq = 9").fetchone()
    for column, value in zip(("run", "kind", "at", "body", "checksum"), row, strict=True):
        for index, letter in enumerate(value):
            other_value = value[:index] + chr(ord(letter) ^ 1) + value[index + 1 :]
            with closing(sqlite3.connect(state / FILE_NAME)) as database, database:
                database.execute(f"UPDATE journal SET {column} = ? WHERE seq = 9", (other_value,))
            with pytest.raises(StateDamaged, match="record 9"):
                read(state, None)
        with closing(sqlite3.connect(state / FILE_NAME)) as database, database:
            database.execute(f"UPDATE journal SET {column} = ? WHERE seq = 9", (value,))
    assert [record.seq for record in read(state, None)] == [4, 5, 6, 7, 8, 9]


def test_every_commit_is_on_disk(
    tmp_path: Path, durable: Callable[[Any, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_make_durable", durable)
    with (
        closing(Database(sqlite_engine(str(tmp_path / "x.sqlite")), "x")) as opened_database,
        opened_database.writing() as opened,
    ):
        assert opened.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert opened.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "2 is FULL"


@pytest.mark.parametrize(
    ("refusals", "code", "opens"),
    [
        (3, sqlite3.SQLITE_BUSY, True),
        (3, sqlite3.SQLITE_BUSY_RECOVERY, True),
        (999, sqlite3.SQLITE_BUSY, False),
        (1, sqlite3.SQLITE_IOERR, False),
    ],
)
def test_a_file_that_another_process_makes_just_now_is_waited_for(
    tmp_path: Path, mocker: MockerFixture, refusals: int, code: int, opens: bool
) -> None:
    """SQLite refuses WAL mode at once, whatever its timeout: staged by a cursor that refuses so often."""
    statements, waited = [], 0.0

    class Refuses(sqlite3.Cursor):
        def execute(self, sql: str, *parameters: Any) -> Self:
            if "journal_mode=WAL" in sql:
                statements.append(sql)
                if len(statements) <= refusals:
                    error = sqlite3.OperationalError("database is locked")
                    error.sqlite_errorcode = code
                    raise error
            return super().execute(sql, *parameters)

    def pause(seconds: float) -> None:
        nonlocal waited
        waited += seconds

    mocker.patch("gpuops.clock.pause", pause)
    mocker.patch("gpuops.clock.passed_s", lambda: waited)
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection:
        refused = nullcontext() if opens else pytest.raises(sqlite3.OperationalError, match="database is locked")
        with refused:
            database._switch_to_wal(Refuses(connection))
    assert len(statements) == (4 if opens else 1 if code == sqlite3.SQLITE_IOERR else 201)


def test_every_commit_is_on_the_disk_of_a_server_that_is_set_to_answer_before(postgresql: Server) -> None:
    url = postgresql.database()
    with closing(open_database(url)) as database, database.writing() as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit TO off"))
    with closing(open_database(url)) as database, database.reading() as connection:
        assert connection.scalar(text("SHOW synchronous_commit")) == "on"


def test_a_lost_server_and_a_wrong_password_are_one_line_without_the_password(
    postgresql: Server, tmp_path: Path
) -> None:
    url = postgresql.database()
    wrong = postgresql.url(url.rpartition("@/")[2].partition("?")[0], PASSWORD + "x")
    missing_server = f"postgresql://gpuops:{PASSWORD.encode().hex()}@/x?host=/nowhere"
    for bad in (wrong, missing_server):
        with pytest.raises(StateDamaged) as failed:
            open_store(tmp_path, bad, "vc-1")
        message = f"{failed.value.message} {failed.value.hint}"
        assert PASSWORD not in message
        assert PASSWORD.encode().hex() not in message
        assert "\n" not in message


def test_a_record_that_is_nested_too_deep_is_damage() -> None:
    """Its checksum fits: a user who may write the file can compute one; the anchor of the audit shows that."""
    columns = (1, "", str(Kind.SKIP), NOW.isoformat(), "[" * 100_000)
    row = SimpleNamespace(
        **dict(zip(("seq", "run", "kind", "at", "body"), columns, strict=True)),
        checksum=checksum(GENESIS, "vc-1", *columns),
    )
    with pytest.raises(Broken, match="this version cannot read it"):
        Chain("vc-1").follow(cast("Row[Any]", row))
