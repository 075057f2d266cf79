"""Rows of a pool's book that another user of the database writes: each is refused by name."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from gpuops.errors import StateDamaged
from gpuops.execute.journal.stores import make_file
from gpuops.extras.lending.lease_book import GpuLease, LeaseState, LentShare
from tests.execute.pool.test_book import HOUR, MADE, NOW, change, open_books, wish

LEASE = GpuLease("a1", wish(1), HOUR, LeaseState.LENT, NOW, NOW + HOUR, (LentShare("gpu-01", 0, 10_240),))
ANY = ["null", "5", "[]", "[[]]", '"x"', "{}", "", "{", "[" * 100_000, "1e999", "9" * 5000, '{"a": "\\ud800"}', "NaN"]
VALUES = [None, 5, -1, 1e300, [], {}, "x", "9999-99-99T00:00:00Z", "P9999999999999D", "\u0000", [None], {"a": 1}]


@pytest.fixture
def book_place(tmp_path: Path) -> tuple[Path, str]:
    with open_books((tmp_path, "")) as books:
        change(books, lambda before: MADE.with_leases([LEASE]))
    return tmp_path, ""


def put(book_place: tuple[Path, str], body: str) -> None:
    with closing(make_file(book_place[0])) as database, database.writing() as connection:
        connection.execute(text("UPDATE book_records SET body = :body"), {"body": body})


def stored_body(book_place: tuple[Path, str]) -> str:
    with closing(make_file(book_place[0])) as database, database.reading() as connection:
        return str(connection.scalar(text("SELECT body FROM book_records")))


def read(book_place: tuple[Path, str]) -> object:
    """The book; None where it is refused by name."""
    with open_books(book_place, write=False) as books:
        try:
            return books.read().get("lab")
        except StateDamaged as damaged:
            assert "pool lab" in damaged.message
            return None


@pytest.mark.parametrize("part", ["", "pool", "servers", "leases"])
def test_a_text_that_is_none_of_ours(book_place: tuple[Path, str], part: str) -> None:
    document = json.loads(stored_body(book_place))
    for body in ANY:
        mark = json.dumps({**document, part: "MARK"})
        put(book_place, mark.replace('"MARK"', body) if part else body)
        assert read(book_place) is None or (part, body) in (("servers", "[]"), ("leases", "[]"))


@pytest.mark.parametrize("part", ["", "pool", "servers", "leases"])
def test_a_value_of_another_type(book_place: tuple[Path, str], part: str) -> None:
    """Whatever is read has the types of the model: what takes it for a name, a number or a moment does not fail."""
    first = stored_body(book_place)
    document = json.loads(first)
    section = document[part] if part else document
    places = section[0] if isinstance(section, list) else section
    for key in list(places):
        before = places[key]
        for value in VALUES:
            places[key] = value
            put(book_place, json.dumps(document))
            read(book_place)
        places[key] = before
    put(book_place, first)
    assert read(book_place) == MADE.with_leases([LEASE])
