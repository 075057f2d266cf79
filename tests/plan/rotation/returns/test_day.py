"""Every desktop comes back, or is named with its reason and one safe command; what others changed stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, time, timedelta

import pytest

from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, MlStop, QueuedVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.window import Window
from gpuops.plan.core.steps import ResumeVm, RunInGuest, SetAttribute, ShutDownGuest
from gpuops.plan.rotation.returns.day import RotateDay, is_returned
from tests.execute.small_vcenter import World, small_world
from tests.plan.rotation.returns.morning import CATALOG, MORNING, POLICY, journal, original, plan
from tests.plan.rotation.returns.test_order import resumed_refs


@pytest.mark.parametrize("sources", ["both", "journal alone", "markers alone"])
def test_ml_stops_then_every_desktop_resumes_then_the_markers_go(world: World, sources: str) -> None:
    originals = journal(world) if sources != "markers alone" else ()
    if sources == "journal alone":
        for ref in ("vm-1", "vm-2", "vm-91"):
            world.set(ref, attributes={})
    day = plan(world, originals)
    assert [(wave.title.split(",")[0], wave.steps) for wave in day.waves] == [
        ("stop the ML VMs of the night", (ShutDownGuest("vm-91", 120, then_off=True),)),
        ("resume one desktop of each host first", (ResumeVm("vm-1", "host-1"),)),
        ("resume the others", (ResumeVm("vm-2", "host-1"),)),
        ("clear the markers", tuple(SetAttribute(ref, "gpuops.rotation", "") for ref in ("vm-1", "vm-2", "vm-91"))),
    ]
    assert day.unmet == ()
    assert day.disruptive


def test_a_day_after_nothing_is_empty() -> None:
    day = plan(small_world())
    assert day.steps == ()
    assert day.because == ("no night has taken anything that is not back",)


def test_a_desktop_that_runs_already_is_left_alone(world: World) -> None:
    world._set_power("vm-91", PowerState.OFF)
    world._set_power("vm-1", PowerState.ON)
    day = plan(world, journal(world))
    assert ResumeVm("vm-1", "host-1") not in day.steps
    assert SetAttribute("vm-1", "gpuops.rotation", "") in day.steps
    assert day.unmet == ()


def test_an_ml_vm_that_somebody_else_started_is_left_alone(world: World) -> None:
    world._set_power("vm-92", PowerState.ON)
    originals = (*journal(world), original(world, "vm-92", Role.ML, is_taken=False))
    day = plan(world, originals)
    assert {step.vm for step in day.steps} == {"vm-1", "vm-2", "vm-91"}


def test_an_ml_vm_that_somebody_started_after_a_return_had_stopped_it_is_left_alone(world: World) -> None:
    stopped = tuple(replace(original_vm, stopped=original_vm.role is Role.ML) for original_vm in journal(world))
    day = plan(world, stopped)
    assert ShutDownGuest not in {type(step) for step in day.steps}
    assert SetAttribute("vm-91", "gpuops.rotation", "") in day.steps
    [ml] = [stopped_vm for stopped_vm in stopped if stopped_vm.role is Role.ML]
    assert is_returned(ml, world.snapshot())


def test_a_desktop_whose_gate_may_still_close_is_not_over(world: World) -> None:
    """The request to close the gate was lost, and may arrive after the return has found the gate open."""
    running = original(world, "vm-3")
    assert is_returned(running, world.snapshot())
    assert not is_returned(replace(running, closes_late=True), world.snapshot())


def test_a_desktop_that_somebody_else_suspended_is_left_alone(world: World) -> None:
    world._set_power("vm-3", PowerState.SUSPENDED)
    day = plan(world, (*journal(world), original(world, "vm-3", is_taken=False)))
    assert "vm-3" not in {step.vm for step in day.steps}
    assert day.unmet == ()


def test_a_discarded_state_is_named_and_never_booted(world: World) -> None:
    world.set("vm-1", power=PowerState.OFF)
    day = plan(world, journal(world))
    [named] = day.unmet
    assert str(named) == "desktop-01: is powered off: its suspended state was discarded by somebody else"
    assert named.hint == "power it on in the vSphere Client, then gpuops rotate day"
    assert {step.vm for step in day.steps} == {"vm-2", "vm-91"}


def test_a_vm_that_is_gone_or_replaced_is_named(world: World) -> None:
    originals = journal(world)
    del world.vms["vm-1"]
    world.set("vm-2", instance_uuid="another")
    day = plan(world, originals)
    assert {named.subject: named.rule for named in day.unmet} == {
        "desktop-01": "is gone from vCenter",
        "desktop-02": "is another VM now: its instance uuid changed",
    }
    assert {step.vm for step in day.steps} == {"vm-91"}


MOVED: dict[str, dict[str, object]] = {
    "renamed": {"name": "old"},
    "moved": {"path": "/dc/vm/misc/old"},
    "of another profile": {"devices": ()},
}


@pytest.mark.parametrize("how", MOVED)
def test_what_the_journal_knows_comes_back_wherever_it_is_and_whatever_it_is_called(world: World, how: str) -> None:
    originals = journal(world)
    for ref in ("vm-1", "vm-2", "vm-91"):
        world.set(ref, **MOVED[how])
    day = plan(world, originals)
    assert day.unmet == ()
    assert ShutDownGuest("vm-91", 120, then_off=True) in day.steps
    assert set(resumed_refs(day)) == {"vm-1", "vm-2"}


def test_a_vm_that_was_registered_anew_is_known_by_its_instance_uuid(world: World) -> None:
    originals = journal(world)
    world.vms["vm-7001"] = replace(world.vms.pop("vm-1"), ref="vm-7001", attributes={})
    world.vms["vm-7091"] = replace(world.vms.pop("vm-91"), ref="vm-7091", attributes={})
    day = plan(world, originals)
    assert day.unmet == ()
    assert ShutDownGuest("vm-7091", 120, then_off=True) in day.steps
    assert set(resumed_refs(day)) == {"vm-7001", "vm-2"}
    world.set("vm-7001", power=PowerState.ON)
    assert is_returned(originals[0], world.snapshot())
    assert not is_returned(originals[1], world.snapshot())


def test_two_vms_of_one_instance_uuid_are_named_and_never_touched(world: World) -> None:
    originals = journal(world)
    world.vms["vm-8"] = replace(world.vms["vm-1"], ref="vm-8", path="/dc/vm/desktops/copy")
    for recorded in (originals, ()):
        day = plan(world, recorded)
        assert not {"vm-1", "vm-8"} & {step.vm for step in day.steps}
        assert {(named.subject, named.rule) for named in day.unmet} == {
            (
                "desktop-01",
                "/dc/vm/desktops/copy and /dc/vm/desktops/desktop-01 have one instance uuid",
            )
        }
    assert not is_returned(originals[0], world.snapshot())


def test_each_vm_is_returned_under_the_policy_of_its_night(world: World) -> None:
    """Its marker, its order, how its ML VMs are stopped: the policy that is said speaks for the rest."""
    tonight = replace(POLICY, name="another", marker="other.marker", ml_stop=MlStop(grace_s=7, then_off=False))
    originals = tuple(
        replace(original_vm, policy=tonight if original_vm.vm != "vm-2" else POLICY) for original_vm in journal(world)
    )
    for ref in ("vm-1", "vm-91"):
        marker = world.vms[ref].attributes["gpuops.rotation"]
        world.set(ref, attributes={"other.marker": marker})
    edited = replace(POLICY, name="edited", pools=(), ml=(), marker="third.marker")
    day = plan(world, originals, edited)
    assert ShutDownGuest("vm-91", 7, then_off=False) in day.steps
    assert set(resumed_refs(day)) == {"vm-1", "vm-2"}
    assert {step for step in day.steps if isinstance(step, SetAttribute)} == {
        SetAttribute("vm-1", "other.marker", ""),
        SetAttribute("vm-2", "gpuops.rotation", ""),
        SetAttribute("vm-91", "other.marker", ""),
    }
    assert day.unmet == ()


def test_a_vm_resumes_where_it_is_registered_now(world: World) -> None:
    world.set("vm-1", host="host-2")
    assert ResumeVm("vm-1", "host-2") in plan(world, journal(world)).steps


def test_the_grace_and_the_power_off_are_the_policys(world: World) -> None:
    policy = replace(POLICY, ml_stop=MlStop(grace_s=5, then_off=False))
    assert plan(world, policy=policy).waves[0].steps == (ShutDownGuest("vm-91", 5, then_off=False),)


def test_an_ml_vm_keeps_its_work_by_the_entry_that_it_had_in_the_queue_of_its_night(world: World) -> None:
    hook = Checkpoint(grace_s=60, hook=GuestCommand("/bin/save"))
    queued = replace(POLICY, ml=(QueuedVm("moid:vm-91", checkpoint=hook),))
    originals = (replace(original(world, "vm-91", Role.ML), policy=queued),)
    world.vms["vm-7091"] = replace(world.vms.pop("vm-91"), ref="vm-7091", name="renamed")
    for ref in ("vm-1", "vm-2"):
        world.set(ref, attributes={})
    day = plan(world, originals, replace(POLICY, ml=()))
    assert [type(step) for step in day.steps] == [RunInGuest, ShutDownGuest, SetAttribute]
    assert {step.vm for step in day.steps} == {"vm-7091"}


@pytest.mark.parametrize(("hours_early", "ends"), [(7, True), (1, False), (0, False), (-2, False)])
def test_a_return_in_an_open_window_says_that_it_ends_the_night(world: World, hours_early: int, ends: bool) -> None:
    policy = replace(POLICY, windows=(Window(time(20), time(5), UTC),))
    now = MORNING - timedelta(hours=hours_early)
    day = RotateDay(policy).plan(world.snapshot(), CATALOG, now)
    warning = "night 2026-11-20, open until 05:00 UTC, ends with this return: it takes nothing more"
    assert day.warnings.count(warning) == ends
    assert day.steps
