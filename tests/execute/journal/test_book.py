"""The book: what is written is read again, a change is whole, and an audit finds what something else changed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text

from gpuops.config.date_text import parse_window
from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.journal.audit import verify
from gpuops.execute.journal.book import Book, BookKind
from gpuops.execute.journal.orders import (
    ChangeOrder,
    ClusterOrder,
    JournalMove,
    MovesOrder,
    dump_order,
    load_change_order,
    load_cluster_order,
)
from gpuops.execute.journal.stores import make_file, open_database
from gpuops.execute.past.past_runs import opened_journal
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.host_settings import Displacement, GraphicsDevice, GraphicsSettings, Rolling, VsanMode
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureMig, ConfigureModule
from tests.execute.journal.test_audit import clock


@stored_as("Note", text="words", count="count")
@dataclass(frozen=True)
class Note:
    text: str
    count: int = 0


NOTE: Final = BookKind("note", Note, "the note {key}", "write it again")
OTHER: Final = BookKind("other", Note, "the other {key}", "write it again")


@dataclass(frozen=True)
class Place:
    state_dir: Path
    url: str

    @contextmanager
    def opened(self, vcenter: str = "vc-1", *, write: bool = True) -> Iterator[Book]:
        with Book.open(self.state_dir, self.url, vcenter, write=write) as book:
            yield book

    def do(self, statement: str, **values: object) -> None:
        with (
            closing(open_database(self.url) if self.url else make_file(self.state_dir)) as database,
            database.writing() as connection,
        ):
            connection.execute(text(statement), values)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url = request.getfixturevalue("postgresql").database() if request.param == "postgresql" else ""
    return Place(tmp_path / "state", url)


def put(place: Place, key: str, note: Note) -> None:
    with place.opened() as book, book.changing() as records:
        records.put(NOTE, key, note)


def notes(place: Place, vcenter: str = "vc-1") -> dict[str, Note]:
    with place.opened(vcenter, write=False) as book, book.reading() as records:
        return records.every(NOTE)


def test_what_is_put_is_read_again_by_kind_and_vcenter(place: Place) -> None:
    assert notes(place) == {}
    assert not place.state_dir.exists()
    put(place, "b", Note('ü "x" \\', 2))
    put(place, "a", Note("first"))
    assert list(notes(place).items()) == [("a", Note("first")), ("b", Note('ü "x" \\', 2))]
    assert notes(place, "vc-2") == {}
    with place.opened() as book, book.changing() as records:
        assert (records.keys(NOTE), records.keys(OTHER)) == (("a", "b"), ())
        assert (records.read(NOTE, "a"), records.read(OTHER, "a")) == (Note("first"), None)
        records.remove(NOTE, "a")
        records.remove(NOTE, "never")
    assert list(notes(place)) == ["b"]


def test_a_change_that_fails_changes_nothing(place: Place) -> None:
    put(place, "a", Note("first"))
    with place.opened() as book, pytest.raises(ValueError, match="no"), book.changing() as records:
        records.put(NOTE, "a", Note("second"))
        records.put(NOTE, "b", Note("second"))
        raise ValueError("no")
    assert notes(place) == {"a": Note("first")}
    assert verify(place.state_dir, place.url).whole


def test_of_many_that_change_one_record_at_once_each_sees_what_the_others_wrote(place: Place) -> None:
    put(place, "a", Note("", 0))

    def add_one(_: int) -> None:
        with place.opened() as book, book.changing() as records:
            before = records.read(NOTE, "a")
            assert before is not None
            records.put(NOTE, "a", Note("", before.count + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(24)))
    assert notes(place) == {"a": Note("", 24)}


def test_each_change_is_in_a_chain_of_its_own_and_the_journal_is_as_it_was(place: Place) -> None:
    with closing(Journal.open(place.state_dir, "vc-1", clock(), url=place.url)) as journal:
        journal.end(journal.begin("attach"))
        put(place, "a", Note("first"))
        put(place, "a", Note("first"))
        put(place, "a", Note("second"))
        journal.end(journal.begin("attach"))
    audit = verify(place.state_dir, place.url)
    assert audit.whole, audit
    assert [(chain.vcenter, chain.good) for chain in audit.chains] == [("book of vc-1", 2), ("vc-1", 4)]
    with opened_journal(place.state_dir, place.url) as opened:
        assert opened.vcenters == ("vc-1",)


HERE: Final = "vcenter = 'vc-1' AND key = 'a'"


@pytest.mark.parametrize(
    ("statement", "bad"),
    [
        (f"UPDATE book_records SET body = '{{}}' WHERE {HERE}", "note a of the book is not as gpuops wrote it last"),
        (f"UPDATE book_records SET body = '', version = 0 WHERE {HERE}", "note a of the book is not as"),
        (f"UPDATE book_records SET version = 3 WHERE {HERE}", "note a of the book is not as"),
        (f"DELETE FROM book_records WHERE {HERE}", "note a is missing in the book"),
        (f"UPDATE book_records SET key = 'c' WHERE {HERE}", "note c of the book is not as"),
        ("DELETE FROM journal WHERE vcenter = 'book of vc-1' AND seq = 4", "record 4: it is missing"),
        ("UPDATE journal SET body = '{}' WHERE vcenter = 'book of vc-1' AND seq = 2", "record 2: its text does not"),
        (
            (
                "INSERT INTO book_records (vcenter, kind, key, version, body, changed_at) "
                "VALUES ('vc-1', 'note', 'gone', 0, '', CURRENT_TIMESTAMP)"
            ),
            "note gone of the book is not as",
        ),
    ],
)
def test_an_audit_names_the_record_that_something_else_changed(place: Place, statement: str, bad: str) -> None:
    put(place, "a", Note("first"))
    put(place, "gone", Note("first"))
    with place.opened() as book, book.changing() as records:
        records.remove(NOTE, "gone")
    put(place, "a", Note("second"))
    assert verify(place.state_dir, place.url).whole
    place.do(statement)
    [chain] = verify(place.state_dir, place.url).chains
    assert bad in chain.bad


def test_a_chain_that_was_taken_away_is_named_by_the_audit_and_refuses_a_change(place: Place) -> None:
    put(place, "a", Note("first"))
    place.do("DELETE FROM journal_heads WHERE vcenter = 'book of vc-1'")
    with pytest.raises(StateDamaged, match="the entries about the book were changed"):
        put(place, "a", Note("second"))
    assert notes(place) == {"a": Note("first")}
    place.do("DELETE FROM journal WHERE vcenter = 'book of vc-1'")
    assert [chain.bad for chain in verify(place.state_dir, place.url).chains] == [
        "record 0: note a of the book is not as gpuops wrote it last"
    ]


def test_a_record_that_cannot_be_read_is_named(place: Place) -> None:
    put(place, "a", Note("first"))
    place.do("UPDATE book_records SET body = '{\"words\": 5}'")
    with pytest.raises(StateDamaged, match="the note a cannot be read") as no:
        notes(place)
    assert no.value.hint == "write it again"


GPU = PciAddress.parse("0000:3b:00.0")
GRAPHICS = GraphicsSettings("shared", "performance", (GraphicsDevice(GPU, "sharedDirect", "sameSize"),))

ORDER = ChangeOrder(
    "scheduler set",
    (
        ConfigureModule("h1", "a=1", "a=2"),
        ConfigureGraphics("h2", GRAPHICS, GRAPHICS),
        ConfigureMig("h3", (GPU,), True),
    ),
    {"h1": "esx-1", "h2": "esx-2", "h3": "esx-3"},
    {"h1": (GPU,), "h2": (), "h3": (GPU,)},
    {"h1": (GPU,), "h2": ()},
    Rolling(2, parse_window("Sat 22:00-04:00 Europe/Berlin"), Displacement.POWER_OFF, VsanMode.EVACUATE),
    "lock",
)


def test_what_is_written_is_read() -> None:
    assert load_change_order(dump_order(ORDER)) == ORDER
    earlier = dump_order(ORDER).replace('"mig"', '"another"')
    assert load_change_order(earlier) == replace(ORDER, mig={}), "an earlier version did not ask"
    moves = MovesOrder((JournalMove("v", "desk", "h1", "h2", "esx-2", powered_off=True),))
    assert load_change_order(dump_order(moves)) == moves
    cluster = ClusterOrder("train", "0badcafe", ("train-00",))
    assert load_cluster_order(dump_order(cluster)) == cluster


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"format": 9}', dump_order(ORDER).replace("ConfigureMig", "Explode"), "[" * 100_000],
    ids=["nothing", "no order", "a list", "another format", "another step", "nested too deep"],
)
def test_what_this_version_cannot_read_is_damage(text: str) -> None:
    with pytest.raises(StateDamaged, match="cannot read"):
        load_change_order(text)
