"""Nights in which the clocks change: one night whatever cron does, inside its hours, and everybody back in time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from gpuops.config.policy import parse_policy
from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.stores import MemoryStore
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import agreed
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, SuspendVm
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import SmallVcenter, World, small_world
from tests.nights.playing.place import NightPlace, NightStore

NIGHTS: Final = {  # zone, evening -> opens, closes and back by, in UTC
    ("Europe/Berlin", "2026-03-28"): ("2026-03-28T19:00", "2026-03-29T03:00", "2026-03-29T05:00"),
    ("Europe/Berlin", "2026-10-24"): ("2026-10-24T18:00", "2026-10-25T04:00", "2026-10-25T06:00"),
    ("America/New_York", "2026-03-07"): ("2026-03-08T01:00", "2026-03-08T09:00", "2026-03-08T11:00"),
    ("America/New_York", "2026-10-31"): ("2026-11-01T00:00", "2026-11-01T10:00", "2026-11-01T12:00"),
    ("Asia/Kolkata", "2026-03-28"): ("2026-03-28T14:30", "2026-03-28T23:30", "2026-03-29T01:30"),
    ("Australia/Lord_Howe", "2026-04-04"): ("2026-04-04T09:00", "2026-04-04T18:30", "2026-04-04T20:30"),
    ("Australia/Lord_Howe", "2026-10-03"): ("2026-10-03T09:30", "2026-10-03T18:00", "2026-10-03T20:00"),
}


def utc(moment: str) -> datetime:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC)


class Cron:
    """One machine and its vCenter, told what to begin and when."""

    def __init__(self, zone: str) -> None:
        window = f'window: {{opens: "20:00", closes: "05:00", back_by: "07:00", zone: {zone}}}'
        text = POLICY_TEXT.replace('window: {opens: "20:00", closes: "06:00", zone: UTC}', window)
        self.policy: Policy = parse_policy(text, "small")
        self.world: World = small_world()
        self._store = NightStore(lambda event: None, lambda: 0, lambda: False)

    def run(self, kind: RunKind, at: datetime) -> Report:
        self.world.now = at
        place = NightPlace(SmallVcenter(self.world), Path("/nowhere"), self.world.tick, store=self._store)
        return rotate(kind, self.policy, place, apply=True, consent=agreed)

    def taken(self) -> list[str]:
        return [effect.step.vm for effect in self.world.ledger if isinstance(effect.step, SuspendVm | PowerOnVm)]

    def nights(self) -> set[str]:
        journal = Journal(MemoryStore(self._store.read(0)), "vc-uuid", self.world.tick)
        return {night for night, _ in journal.state.originals}

    def all_back(self) -> bool:
        return all(vm.power is PowerState.ON for vm in self.world.vms.values() if vm.name.startswith("desktop"))


@pytest.mark.parametrize(("zone", "evening"), NIGHTS)
def test_cron_twice_is_one_night_inside_its_hours(zone: str, evening: str) -> None:
    opens, closes, back_by = map(utc, NIGHTS[zone, evening])
    cron = Cron(zone)
    assert cron.run(RunKind.NIGHT, opens - timedelta(minutes=1)).exit_code == 3
    assert cron.world.ledger == [], "too early, by a minute"
    assert cron.run(RunKind.NIGHT, opens).exit_code == 0
    assert cron.taken()
    length = len(cron.world.ledger)
    assert cron.run(RunKind.NIGHT, opens + timedelta(minutes=20)).plan.steps == ()
    assert len(cron.world.ledger) == length, "cron came twice"
    assert cron.run(RunKind.NIGHT, closes).exit_code == 3
    assert cron.run(RunKind.DAY, back_by - timedelta(minutes=45)).exit_code == 0
    assert cron.all_back()
    resumes = [effect for effect in cron.world.ledger if isinstance(effect.step, ResumeVm)]
    assert resumes
    assert cron.world.now <= back_by
    assert cron.nights() == {evening}
    assert date.fromisoformat(evening) == opens.astimezone(cron.policy.windows[0].zone).date()


@pytest.mark.parametrize(("zone", "evening"), NIGHTS)
def test_cron_that_is_late_takes_only_what_can_return(zone: str, evening: str) -> None:
    _, closes, back_by = map(utc, NIGHTS[zone, evening])
    cron = Cron(zone)
    cron.run(RunKind.NIGHT, closes - timedelta(seconds=25))
    assert cron.world.now < closes + timedelta(minutes=5)
    assert 0 < len(cron.taken()) < 4, "it began, and the window closed on it"
    assert cron.run(RunKind.DAY, back_by - timedelta(minutes=45)).exit_code == 0
    assert cron.all_back()
    assert cron.world.now <= back_by


@pytest.mark.parametrize("kind", list(RunKind)[:2])
def test_cron_that_never_came_leaves_nothing_to_do(kind: RunKind) -> None:
    """A morning without its night, and a night of which the morning never came."""
    opens, _, back_by = map(utc, NIGHTS["Europe/Berlin", "2026-10-24"])
    cron = Cron("Europe/Berlin")
    if kind is RunKind.DAY:
        assert cron.run(RunKind.DAY, back_by).plan.steps == ()
        assert cron.world.ledger == []
        return
    cron.run(RunKind.NIGHT, opens)
    next_evening = cron.run(RunKind.NIGHT, opens + timedelta(hours=25))
    assert next_evening.exit_code == 3, "the night before is not over"
    assert "2026-10-24" in next_evening.plan.rejections[0].subject
    assert cron.run(RunKind.DAY, opens + timedelta(hours=26)).exit_code == 0
    assert cron.all_back()
    assert cron.run(RunKind.NIGHT, opens + timedelta(hours=27)).exit_code == 0, "and the next night begins"
