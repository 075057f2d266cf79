"""The rows that say which site runs a request: who changes one has seen its last version."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.execute.runs.assignments import AssignedElsewhere, AssignmentStore
from gpuops.model.nights.across_sites import Assignment

NOW = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AssignmentStore:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgresql").database()
    return AssignmentStore(tmp_path / "state", url)


def new(name: str, vcenter: str = "vc-1", version: int = 0) -> Assignment:
    return Assignment(name, vcenter, f"site of {vcenter}", "a", 0.5, NOW + timedelta(hours=9), False, version, NOW)


def test_what_is_written_is_read_and_nothing_is_there_before(store: AssignmentStore) -> None:
    assert store.read() == {}
    assert store.change([new("ml-1"), new("ml-2")]) == frozenset()
    assert store.read() == {name: new(name, version=1) for name in ("ml-1", "ml-2")}


@pytest.mark.long
def test_who_has_seen_an_older_version_changes_nothing(store: AssignmentStore) -> None:
    store.change([new("ml-1")])
    assert store.change([new("ml-1", "vc-2", version=1)]) == frozenset()
    assert store.change([new("ml-1", "vc-3", version=1), new("ml-2")]) == {"ml-1"}
    assert store.change([new("ml-1", "vc-3", version=0)]) == {"ml-1"}, "it is there already"
    assert store.change([], [new("ml-1", version=1)]) == {"ml-1"}
    assert {name: each.vcenter for name, each in store.read().items()} == {"ml-1": "vc-2", "ml-2": "vc-1"}
    assert store.change([], [new("ml-1", version=2)]) == frozenset()
    assert list(store.read()) == ["ml-2"]


def test_a_run_begins_all_of_its_requests_or_none(store: AssignmentStore) -> None:
    store.change([new("ml-1"), new("ml-2", "vc-2")])
    with pytest.raises(AssignedElsewhere, match="ml-2, ml-3: assigned to another vCenter") as refused:
        store.begin("vc-1", ["ml-1", "ml-2", "ml-3"], NOW)
    assert refused.value.exit_code == 6
    assert not store.read()["ml-1"].begun
    store.begin("vc-1", ["ml-1"], NOW + timedelta(minutes=1))
    assert store.read()["ml-1"] == replace(new("ml-1", version=2), begun=True, at=NOW + timedelta(minutes=1))


def test_what_was_begun_meanwhile_is_not_given_away(store: AssignmentStore) -> None:
    """Who assigns read the rows before it looked, and the run began after that."""
    store.change([new("ml-1")])
    seen = store.read()["ml-1"]
    store.begin("vc-1", ["ml-1"], NOW)
    assert store.change([replace(seen, vcenter="vc-2")]) == {"ml-1"}
    assert store.read()["ml-1"].vcenter == "vc-1"


def test_a_site_that_was_given_to_another_meanwhile_begins_nothing(store: AssignmentStore) -> None:
    store.change([new("ml-1")])
    store.change([replace(new("ml-1", "vc-2"), version=1)])
    with pytest.raises(AssignedElsewhere):
        store.begin("vc-1", ["ml-1"], NOW)
    assert not store.read()["ml-1"].begun


@pytest.mark.long
def test_of_two_at_once_one_wins(store: AssignmentStore) -> None:
    """A run of vc-1 begins while others give the request to vc-2: never both."""
    for number in range(20):
        name = f"ml-{number}"
        store.change([new(name)])
        won: list[str] = []

        def begin(name: str = name, won: list[str] = won) -> None:
            try:
                store.begin("vc-1", [name], NOW)
            except AssignedElsewhere:
                return
            won.append("vc-1")

        def move(name: str = name, won: list[str] = won) -> None:
            if not store.change([new(name, "vc-2", version=1)]):
                won.append("vc-2")

        threads = [threading.Thread(target=each) for each in (begin, move)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert won == [store.read()[name].vcenter]
