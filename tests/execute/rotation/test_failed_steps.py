"""Nights in which steps fail, too much fails, or the clocks change: what is taken, and who comes back all the same."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import NoFreeGpu, NoPermission, PartlyDone, StepFailed
from gpuops.execute.journal.journal import Journal
from gpuops.execute.journal.journal_state import dump_state, load_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.stores import MemoryStore
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import LATE, Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from tests.execute.nights import POLICY_TEXT, Night, effects, morning_is_good
from tests.execute.small_vcenter import Killed, SmallVcenter, World, small_world
from tests.nights.playing.place import NightPlace, NightStore


def test_a_desktop_whose_resume_fails_is_named_and_the_others_come_back(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.world.failing["vm-2"] = NoFreeGpu("not enough graphics resources")
    report = night.run(RunKind.DAY)
    assert report.exit_code == 4
    [failed] = [outcome for outcome in report.outcomes if outcome.verdict is Verdict.FAILED]
    assert failed.step == ResumeVm("vm-2", "host-1")
    assert failed.reason == (
        "not enough graphics resources; "
        "the GPUs of esx-01 are held by desktop-01, desktop-03, desktop-04, desktop-05: free one, "
        "then gpuops rotate day"
    )
    assert night.powers()["desktop-01"] is PowerState.ON
    assert night.markers() == {"desktop-02"}
    night.world.failing.clear()
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.powers()["desktop-02"] is PowerState.ON
    assert night.markers() == set()


def test_a_foreign_vm_on_the_gpu_is_named_as_the_blocker(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.world._set_power("vm-91", PowerState.OFF)
    night.world.set("vm-91", name="somebodys-vm", instance_uuid="50other")
    night.world._set_power("vm-91", PowerState.ON)
    report = night.run(RunKind.DAY)
    assert report.exit_code == 4
    failed = next(outcome for outcome in report.outcomes if outcome.verdict is Verdict.FAILED)
    assert "the GPUs of esx-01 are held by desktop-03, desktop-04, desktop-05, somebodys-vm" in failed.reason
    assert night.powers()["somebodys-vm"] is PowerState.ON, "never touched"


def test_a_failed_suspend_keeps_the_ml_vm_off_and_the_desktop_on(night: Night) -> None:
    night.world.failing["vm-1"] = StepFailed("no space left on ssd")
    report = night.run(RunKind.NIGHT)
    assert report.exit_code == 4
    assert night.powers()["ml-01"] is PowerState.OFF
    assert night.powers()["ml-02"] is PowerState.ON
    night.world.failing.clear()
    assert night.run(RunKind.DAY).exit_code == 0
    morning_is_good(night)


def test_a_user_who_comes_while_the_night_begins_keeps_the_desktop(night: Night) -> None:
    def arrive(step: object) -> None:
        if isinstance(step, SetAttribute) and step.vm == "vm-1":
            night.world.set("vm-2", console_connections=1)

    night.world.on_submit = arrive
    report = night.run(RunKind.NIGHT)
    desktop_outcome = next(outcome for outcome in report.outcomes if outcome.step == SuspendVm("vm-2"))
    assert (desktop_outcome.verdict, desktop_outcome.reason) == (Verdict.SKIPPED, "1 console connection(s) open")
    assert night.powers()["desktop-02"] is PowerState.ON
    assert night.run(RunKind.DAY).exit_code == 0
    morning_is_good(night)


def test_where_an_ml_vm_is_left_running_the_other_desktops_return(night: Night) -> None:
    """What templates/policy.yaml says of `leave-running`: every desktop is tried, those without room are named."""
    policy = parse_policy(POLICY_TEXT.replace("power-off", "leave-running"), "gentle")
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)
    night.world.stubborn.add("vm-91")
    report = rotate(RunKind.DAY, None, site, apply=True, consent=agreed)
    tried = [outcome for outcome in report.outcomes if isinstance(outcome.step, ResumeVm)]
    assert {outcome.step.vm for outcome in tried} == {"vm-1", "vm-2"}
    assert {outcome.verdict for outcome in tried} == {Verdict.FAILED}, "the GPU of both is the one that is kept"
    assert all("held by desktop-03, desktop-04, desktop-05, ml-01" in outcome.reason for outcome in tried)
    assert (report.exit_code, night.world.power("ml-01"), night.world.power("ml-02")) == (
        4,
        PowerState.ON,
        PowerState.OFF,
    )
    night.world._set_power("vm-91", PowerState.OFF)
    assert rotate(RunKind.DAY, None, site, apply=True, consent=agreed).exit_code == 0
    morning_is_good(night)


def test_stubborn_ml_guests_are_powered_off_so_that_desktops_return(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.world.stubborn.add("vm-91")
    assert night.run(RunKind.DAY).exit_code == 0
    assert [effect.step.vm for effect in effects(night.world, PowerOffVm)] == ["vm-91"]
    morning_is_good(night)


def test_a_suspend_that_came_late_and_was_undone_is_not_waited_for_again(night: Night) -> None:
    """The resume that was seen done shows that the suspend had happened: a second morning has nothing to name."""
    night.world.hung.add("vm-2")
    assert night.run(RunKind.NIGHT).exit_code == 4
    night.world.hung.clear()
    night.world.settle()
    given_up = night.world.now
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.world.now - given_up < LATE
    morning_is_good(night)


def test_an_ml_vm_in_an_unknown_state_is_not_powered_off(night: Night) -> None:
    """Somebody may have suspended it: a power-off would discard what it holds."""
    night.run(RunKind.NIGHT)
    night.world.stubborn |= {"vm-91"}
    submit = night.world.on_submit

    def unread(step: Step) -> None:
        if step == ShutDownGuest("vm-91", 60, then_off=True):
            night.world.set("vm-91", power=None)
            night.world.on_submit = submit

    night.world.on_submit = unread
    report = night.run(RunKind.DAY)
    [outcome] = [
        failed_outcome
        for failed_outcome in report.outcomes
        if failed_outcome.step.vm == "vm-91" and failed_outcome.verdict is not Verdict.DONE
    ][:1]
    assert "its power state cannot be read" in outcome.reason
    assert effects(night.world, PowerOffVm) == []


def test_a_right_withdrawn_half_way_is_not_called_nothing_changed(night: Night) -> None:
    night.run(RunKind.NIGHT)

    def withdrawn(step: Step) -> None:
        if isinstance(step, ResumeVm):
            night.world.unreadable = NoPermission("this login lacks the privilege System.View")

    night.world.on_submit = withdrawn
    with pytest.raises(PartlyDone, match=r"System\.View") as stopped:
        night.run(RunKind.DAY)
    assert "gpuops rotate resume" in stopped.value.hint
    night.world.unreadable, night.world.on_submit = None, lambda step: None
    night.world.settle()
    assert night.resume().exit_code == 0
    morning_is_good(night)


def refusing(night: Night, *, killed_at: int) -> list[Step]:
    """Every marker is refused from now on; the process is killed as it sends the nth one."""
    submitted: list[Step] = []

    def refuse(step: Step) -> None:
        if isinstance(step, SetAttribute) and step.value:
            submitted.append(step)
            if len(submitted) == killed_at:
                raise Killed("at a marker")
            raise StepFailed("the operation is not allowed")

    night.world.on_submit = refuse
    return submitted


def reasons(report: Report) -> set[str]:
    return {outcome.reason for outcome in report.outcomes if outcome.verdict is Verdict.SKIPPED}


def test_the_count_goes_on_over_a_kill_and_a_resume(night: Night) -> None:
    submitted = refusing(night, killed_at=2)
    with pytest.raises(Killed):
        night.run(RunKind.NIGHT)
    resumed = night.resume()
    assert len(submitted) == 3, "one refused, one cut off, and the second refusal in a row"
    assert "the night takes nothing more: vCenter refuses one step after the other" in reasons(resumed)
    assert resumed.exit_code == 4


def test_a_run_of_the_same_night_that_cron_begins_is_refused_and_the_morning_is_not(night: Night) -> None:
    refusing(night, killed_at=0)
    night.run(RunKind.NIGHT)
    night.world.on_submit = lambda step: None
    second_night = night.run(RunKind.NIGHT)
    assert second_night.exit_code == 3
    [rejection] = second_night.plan.rejections
    assert rejection.rule == "takes nothing more: vCenter refuses one step after the other"
    assert "gpuops rotate day" in rejection.hint
    assert night.run(RunKind.NIGHT, apply=False).plan.rejections == second_night.plan.rejections
    assert effects(night.world, SuspendVm) == []
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.markers() == set()


def test_what_never_reached_vcenter_is_no_failure(night: Night) -> None:
    """Five kills leave five intents that did not happen: the night is finished all the same."""
    for _ in range(5):
        submitted = refusing(night, killed_at=1)
        with pytest.raises(Killed):
            night.resume() if night.open_runs() else night.run(RunKind.NIGHT)
        assert len(submitted) == 1
    night.world.on_submit = lambda step: None
    assert night.resume().exit_code == 0
    assert len(effects(night.world, SuspendVm)) == 2


def test_a_checkpoint_keeps_the_count(night: Night) -> None:
    refusing(night, killed_at=2)
    with pytest.raises(Killed):
        night.run(RunKind.NIGHT)
    journal = Journal.open(night.state_dir, "vc-uuid", night.world.tick)
    try:
        body = dump_state(journal.state)
        state_read = load_state("vc-uuid", Record(journal.state.seq, "", Kind.CHECKPOINT, night.world.tick(), body))
        assert state_read is not None
        assert state_read.setbacks == journal.state.setbacks
        assert [setback.failed for setback in state_read.setbacks.values()] == [1]
    finally:
        journal.close()


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
