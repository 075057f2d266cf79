"""A history that is followed is the one that is read at once, whatever a night wrote and whenever it is asked.

Of undisturbed nights its figures are what the ledger of the simulated vCenter shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.journal import FILE_NAME, Journal
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.stores import MemoryStore, open_store
from gpuops.execute.past.past_runs import FollowedHistory, FollowedNights, history
from gpuops.execute.rotation.status import standing
from gpuops.execute.runs import NightVms, RunKind
from gpuops.execute.site import Site
from gpuops.model.nights.history import GpuHours, PastEvents
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.vcenter.vm import PowerState
from gpuops.sim.world import World
from tests.execute.nights import Night
from tests.execute.small_vcenter import SmallVcenter
from tests.nights.playing.night import Nightly

SEEDS: Final = range(1, 13)


def play_night(seed: int, *, undisturbed: bool = False) -> tuple[World, list[Record]]:
    """The world of this seed after its night, and what the first machine's journal says of it."""
    night = Nightly(seed, () if undisturbed else None).play()
    return night.world, [record for record, _ in night.kept if night.kept_on[id(record)] == 0]


def write_records(folder: Path, records: Sequence[Record]) -> None:
    if not records:
        return
    with closing(open_store(folder, "", "vc")) as store:
        store.append([Record(number, past_record.run, past_record.kind, past_record.at, past_record.body)
                      for number, past_record in enumerate(records, 1)])  # fmt: skip


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_of_undisturbed_nights_its_figures_are_those_of_the_ledger(seed: int, tmp_path: Path) -> None:
    world, records = play_night(seed, undisturbed=True)
    write_records(tmp_path, records)
    events = FollowedHistory(tmp_path, "", "vc").events() or PastEvents("")
    effects = list(world.ledger)
    suspended = {effect.moid for effect in effects if effect.method == "SuspendVM_Task"}
    assert {vm.ref for night in events.nights for vm in night.desktops if vm.role is Role.DESKTOP} == suspended
    ran: dict[str, list[datetime]] = {}
    for change in effects:
        if is_ml(change.name) and change.after.get("power") != change.before.get("power"):
            ran.setdefault(change.moid, []).append(change.at)
    machines = [vm for night in events.nights for vm in night.ml]
    assert {vm.ref for vm in machines} == set(ran)
    for vm in machines:
        if len(ran[vm.ref]) == 1:
            assert vm.hours == GpuHours(0.0, None), "it runs on"
            continue
        began, ended = ran[vm.ref]
        seconds = (ended - began).total_seconds() * (vm.gpus or 0)
        most = vm.hours.at_most
        assert most is not None and 3600 * vm.hours.at_least - 60 <= seconds <= 3600 * most + 60, vm.name
    exact = [vm for vm in machines if vm.hours.exact]
    assert events.harvested.at_least == pytest.approx(sum(vm.hours.at_least for vm in exact))


def is_ml(name: str) -> bool:
    return name.startswith("ml-")


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_of_simulated_nights_it_is_the_history_and_its_counter_never_falls(seed: int, tmp_path: Path) -> None:
    (_, records), chance = play_night(seed), Random(seed)
    followed, harvested = FollowedHistory(tmp_path, "", "vc"), 0.0
    assert followed.events() is None, "nothing was ever recorded"
    with closing(open_store(tmp_path, "", "vc")) as store:
        at = 0
        while at < len(records):
            some = records[at : at + chance.randrange(1, 40)]
            store.append([Record(at + number + 1, past_record.run, past_record.kind, past_record.at, past_record.body)
                          for number, past_record in enumerate(some)])  # fmt: skip
            at += len(some)
            events = followed.events()
            whole = history(tmp_path)
            assert events is not None
            assert (set(events.nights), set(events.changes)) == (set(whole.nights), set(whole.changes))
            assert events.harvested.at_least >= harvested - 1e-9
            harvested = events.harvested.at_least
            assert followed.events() is events, "nothing is new"


@pytest.mark.long
def test_a_journal_in_the_place_of_another_is_damage_once(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        night = Night(tmp_path / folder)
        night.run(RunKind.NIGHT)
    followed = FollowedHistory(tmp_path / "one", "", "vc-uuid")
    before = followed.events()
    assert before is not None and len(before.nights) == 1
    for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
        (tmp_path / "one" / name).unlink(missing_ok=True)
    assert followed.events() is None, "it is gone"
    (tmp_path / "other" / FILE_NAME).rename(tmp_path / "one" / FILE_NAME)
    events = followed.events()
    assert events is not None and events.nights == history(tmp_path / "one").nights
    (tmp_path / "one" / FILE_NAME).write_bytes(b"no database, and long enough to see that " * 50)
    with pytest.raises(StateDamaged):
        followed.events()


@pytest.mark.long
def test_what_is_away_and_when_it_is_due(tmp_path: Path) -> None:
    night = Night(tmp_path / "state")

    def suspended_and_due() -> tuple[int, object]:
        vcenter = SmallVcenter(night.world, lambda name: None)
        now_standing = standing(Site(vcenter, night.state_dir, night.world.tick), vcenter.inventory())
        return now_standing.desktops_away, now_standing.back_by

    assert suspended_and_due() == (0, None)
    evening = night.world.now
    night.run(RunKind.NIGHT)
    suspended = sum(vm.power is PowerState.SUSPENDED for vm in night.world.vms.values())
    closes = (evening + timedelta(days=1)).replace(hour=6, minute=0, second=0, microsecond=0)
    assert suspended_and_due() == (suspended, closes) and suspended > 0
    night.world.now += timedelta(hours=16)
    assert suspended_and_due() == (suspended, closes), "they are late, and were due then"
    night.run(RunKind.DAY)
    assert suspended_and_due() == (0, None)


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
