"""Every store keeps records in one order, durable when `append` returns, with several writers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.stores import Overtaken, Store, look_into_store, open_store
from tests.execute.journal.postgres import Server
from tests.recorded.victim import FORKED

Opening = Callable[[], Store]
NOW = datetime(2026, 11, 20, 21, 0, 0, 250, tzinfo=UTC)


def record(seq: int, kind: Kind = Kind.BEGUN, **body: object) -> Record:
    return Record(seq, "run-1", kind, NOW, {"text": 'grün \'n "quoted" \n', "none": None, **body})


def test_what_was_appended_is_read_back_by_everybody(opening: Opening) -> None:
    with closing(opening()) as writer, closing(opening()) as reader:
        assert writer.read(None) == reader.read(None) == []
        writer.append([record(1), record(2, Kind.ENDED)])
        assert list(reader.read(0)) == [record(1), record(2, Kind.ENDED)]
        writer.append([record(3)])
        assert list(reader.read(2)) == [record(3)]
        assert list(reader.read(3)) == []


def test_whoever_comes_second_is_told_and_keeps_nothing(opening: Opening) -> None:
    with closing(opening()) as first, closing(opening()) as second:
        first.read(None)
        second.read(None)
        first.append([record(1, by="first")])
        with pytest.raises(Overtaken):
            second.append([record(1, by="second"), record(2, by="second")])
        assert list(second.read(0)) == [record(1, by="first")]
        second.append([record(2, by="second")])
        with pytest.raises(Overtaken):
            first.append([record(2, by="first")])
        assert [entry_read.body["by"] for entry_read in first.read(0)] == ["first", "second"]


def test_reading_begins_at_the_last_checkpoint(opening: Opening) -> None:
    with closing(opening()) as store:
        store.read(None)
        store.append([record(1), record(2, Kind.CHECKPOINT), record(3)])
        store.append([record(4, Kind.CHECKPOINT), record(5)])
    with closing(opening()) as store:
        assert [entry_read.seq for entry_read in store.read(None)] == [4, 5]
        store.append([record(6)])
        assert [entry_read.seq for entry_read in store.read(0)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_vcenters_have_records_of_their_own(postgresql: Server, tmp_path: Path) -> None:
    for url in ("", postgresql.database()):
        with (
            closing(open_store(tmp_path, url, "vc-1")) as first_store,
            closing(open_store(tmp_path, url, "vc-2")) as second_store,
        ):
            first_store.append([record(1, of="one")])
            second_store.append([record(1, of="other")])
            assert [entry_read.body["of"] for entry_read in first_store.read(None)] == ["one"]
            assert [entry_read.body["of"] for entry_read in second_store.read(None)] == ["other"]


def _append_many(state_dir: Path, url: str, name: str, count: int) -> None:
    """One of several processes that append as fast as they can."""
    with closing(open_store(state_dir, url, "vc-1")) as store:
        appended, last = 0, len(store.read(0))
        while appended < count:
            try:
                store.append([record(last + 1, by=name)])
            except Overtaken:
                last += len(store.read(last))
            else:
                last, appended = last + 1, appended + 1


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_processes_that_append_at_once_take_turns(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """They meet in the making of the tables, too."""
    url = request.getfixturevalue("postgresql").database() if where == "postgresql" else ""
    names = [f"process {number}" for number in range(4)]
    processes = [FORKED.Process(target=_append_many, args=(tmp_path / "state", url, name, 25)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    store = look_into_store(tmp_path / "state", url, "vc-1")
    assert store is not None
    with closing(store):
        records = store.read(0)
    assert [entry_read.seq for entry_read in records] == list(range(1, 101))
    assert {name: sum(entry_read.body["by"] == name for entry_read in records) for name in names} == dict.fromkeys(
        names, 25
    )
