"""The nights of a journal that grows, and of another one in its place."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuops.execute.journal import Journal
from gpuops.execute.journal.stores import MemoryStore
from gpuops.execute.past.history import FollowedNights
from gpuops.execute.runs import NightVms
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.owner import NotedOwner

AT = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


def journal(store: MemoryStore) -> Journal:
    return Journal(store, "vc", lambda: AT)


def begin(store: MemoryStore, night: str, owner: str) -> None:
    noted = NotedOwner("tag:team", owner)
    run = journal(store).begin("rotate night", night=night)
    NightVms(journal(store)).save([Original(night, Role.ML, "vm-1", "uuid-1", "ml-01", None, owner=noted)], run)
    journal(store).end(run)


def nights_and_owners(followed: FollowedNights, store: MemoryStore) -> list[tuple[str, str]]:
    nights = followed.nights(journal(store))
    return [(night.id, vm.owner.owner) for night in nights for vm in night.vms if vm.owner is not None]


def test_what_is_new_is_added_with_whose_it_was() -> None:
    followed, store = FollowedNights(), MemoryStore()
    assert (followed.nights(None), nights_and_owners(followed, store)) == ((), [])
    begin(store, "2026-11-20", "vision")
    assert nights_and_owners(followed, store) == [("2026-11-20", "vision")]
    begin(store, "2026-11-21", "speech")
    assert nights_and_owners(followed, store) == [("2026-11-20", "vision"), ("2026-11-21", "speech")]


def test_another_journal_in_its_place_is_read_from_its_first_record() -> None:
    followed, store, other_store = FollowedNights(), MemoryStore(), MemoryStore()
    begin(store, "2026-11-20", "vision")
    begin(store, "2026-11-21", "vision")
    assert len(nights_and_owners(followed, store)) == 2
    begin(other_store, "2026-11-22", "speech")
    assert nights_and_owners(followed, other_store) == [("2026-11-22", "speech")]
