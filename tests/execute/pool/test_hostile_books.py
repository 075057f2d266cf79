"""Rows of a pool's book that another user of the database writes: each is refused by name."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import Database
from gpuops.extras.lending.book import opened_database
from gpuops.extras.lending.lease_book import GpuLease, LeaseBook, LeaseState, LentShare
from tests.execute.pool.test_book import HOUR, MADE, NOW, change, opened, wish

LEASE = GpuLease("a1", wish(1), HOUR, LeaseState.LENT, NOW, NOW + HOUR, (LentShare("gpu-01", 0, 10_240),))
ANY = ["null", "5", "[]", "[[]]", '"x"', "{}", "", "{", "[" * 100_000, "1e999", "9" * 5000, '{"a": "\\ud800"}', "NaN"]
VALUES = [None, 5, -1, 1e300, [], {}, "x", "9999-99-99T00:00:00Z", "P9999999999999D", "\u0000", [None], {"a": 1}]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, str]:
    with opened((tmp_path, "")) as books:
        change(books, lambda before: MADE.with_leases([LEASE]))
    return tmp_path, ""


def database_of(kept: tuple[Path, str]) -> Database:
    database = opened_database(*kept, write=True)
    assert database is not None
    return database


def put(kept: tuple[Path, str], table: str, column: str, body: str) -> None:
    with closing(database_of(kept)) as database, database.writing() as connection:
        connection.execute(text(f"UPDATE {table} SET {column} = :body"), {"body": body})


def column(kept: tuple[Path, str], table: str, name: str) -> str:
    with closing(database_of(kept)) as database, database.reading() as connection:
        return str(connection.scalar(text(f"SELECT {name} FROM {table}")))


def read(kept: tuple[Path, str]) -> object:
    """The book; None where it is refused by name."""
    with opened(kept, write=False) as books:
        try:
            return books.read().get("lab")
        except StateDamaged as damaged:
            assert "pool lab" in damaged.message
            return None


PLACES = [("pools", "settings"), ("pools", "servers"), ("pool_leases", "body")]


@pytest.mark.parametrize(("table", "name"), PLACES)
def test_a_text_that_is_none_of_ours(kept: tuple[Path, str], table: str, name: str) -> None:
    for body in ANY:
        put(kept, table, name, body)
        assert read(kept) is None or (name, body) == ("servers", "[]")


@pytest.mark.parametrize(("table", "name"), PLACES)
def test_a_value_of_another_type(kept: tuple[Path, str], table: str, name: str) -> None:
    """Whatever is read has the types of the model: what takes it for a name, a number or a moment does not fail."""
    first = column(kept, table, name)
    document = json.loads(first)
    places = document[0] if isinstance(document, list) else document
    for key in list(places):
        before = places[key]
        for value in VALUES:
            places[key] = value
            put(kept, table, name, json.dumps(document))
            read(kept)
        places[key] = before
    put(kept, table, name, first)
    assert read(kept) == MADE.with_leases([LEASE])


def test_a_lease_whose_server_died_under_an_earlier_gpuops_is_still_to_be_cut_off(kept: tuple[Path, str]) -> None:
    put(kept, "pool_leases", "body", column(kept, "pool_leases", "body").replace('"lent"', '"broken"'))
    book = read(kept)
    assert isinstance(book, LeaseBook)
    assert [(lease.state, lease.holds) for lease in book.leases] == [(LeaseState.ENDING, True)]
