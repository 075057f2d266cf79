"""Steps of a night or a return that fail or are refused: which VMs stay, and which come back all the same."""

from __future__ import annotations

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import NoFreeGpu, NoPermission, PartlyDone, StepFailed
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation import LATE
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import PowerOffVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from tests.execute.nights import POLICY_TEXT, Night, effects, morning_is_good
from tests.execute.small_vcenter import SmallVcenter


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
