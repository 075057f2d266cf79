"""Markers in vCenter beside the journal: those of other machines, and those that no journal knows of."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpuops.model.nights.night_record import Marker, Original, Role, parse_marker
from gpuops.model.nights.rotation_policy import LATE
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ResumeVm, SetAttribute, ShutDownGuest
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms
from tests.execute.small_vcenter import World
from tests.plan.rotation.returns.morning import CATALOG, MORNING, NIGHT, POLICY, SHARED, journal, original, plan


def untaken_originals(world: World) -> tuple[Original, ...]:
    """What the journal of a machine holds whose night was cut off before it took anything."""
    return tuple(replace(original_vm, taken=False) for original_vm in journal(world))


def test_under_a_lock_vm_the_marker_tells_of_what_another_machine_took(world: World) -> None:
    world._set_power("vm-2", PowerState.OFF)
    whereabouts = {
        mine.original.vm: mine.whereabouts for mine in taken_vms(SHARED, untaken_originals(world), world.snapshot())
    }
    assert whereabouts == {"vm-1": Whereabouts.AWAY, "vm-2": Whereabouts.LOST, "vm-91": Whereabouts.AWAY}
    morning = plan(world, untaken_originals(world), SHARED)
    assert ShutDownGuest("vm-91", 120, then_off=True) in morning.steps
    assert SetAttribute("vm-2", "gpuops.rotation", "") not in morning.steps, "it is not as it was"


def test_without_one_the_journal_knows_what_no_night_started(world: World) -> None:
    whereabouts = {
        mine.original.vm: mine.whereabouts for mine in taken_vms(POLICY, untaken_originals(world), world.snapshot())
    }
    assert whereabouts["vm-91"] is Whereabouts.UNTOUCHED
    assert ShutDownGuest("vm-91", 120, then_off=True) not in plan(world, untaken_originals(world)).steps


def test_under_a_lock_vm_what_runs_without_a_marker_is_nobodys(world: World) -> None:
    world.set("vm-91", attributes={})
    whereabouts = {
        mine.original.vm: mine.whereabouts for mine in taken_vms(SHARED, untaken_originals(world), world.snapshot())
    }
    assert whereabouts["vm-91"] is Whereabouts.UNTOUCHED


@pytest.mark.parametrize(("ref", "role"), [("vm-3", Role.DESKTOP), ("vm-92", Role.ML)])
def test_a_marker_of_another_machine_on_what_is_as_it_was_is_cleared_ten_minutes_after_it_was_seen(
    world: World, ref: str, role: Role
) -> None:
    """That machine may have been stopped just as it sent what the marker speaks of."""
    world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} {role}"})
    first = plan(world, journal(world))
    [note] = [step for step in first.steps if step.vm == ref]
    assert isinstance(note, SetAttribute)
    assert parse_marker(note.value) == Marker(NIGHT, role, seen=world.now)
    assert [unmet.subject for unmet in first.unmet] == [world.vms[ref].name]
    world.set(ref, attributes={"gpuops.rotation": note.value})
    world.now += LATE - timedelta(seconds=1)
    second_plan = plan(world, journal(world))
    assert [step for step in second_plan.steps if step.vm == ref] == []
    assert len(second_plan.unmet) == 1
    world.now += timedelta(seconds=1)
    last = plan(world, journal(world))
    assert [step for step in last.steps if step.vm == ref] == [SetAttribute(ref, "gpuops.rotation", "")]
    assert last.unmet == ()


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_night_of_which_the_journal_has_a_marker_alone_makes_no_copies(world: World, is_recorded: bool) -> None:
    """`rotate abandon` on another machine has written one VM of the night, and nothing of the others."""
    given_up = Original(NIGHT, Role.DESKTOP, "vm-1", world.vms["vm-1"].instance_uuid, "desk-1", "host-1", taken=True)
    night_original = replace(given_up, policy=POLICY) if is_recorded else given_up
    world.set("vm-91", attributes={"gpuops.rotation": f"{NIGHT} ml"})
    taken_by_ref = {mine.original.vm: mine for mine in taken_vms(POLICY, [night_original], world.snapshot())}
    assert taken_by_ref["vm-91"].whereabouts is (Whereabouts.FOREIGN if is_recorded else Whereabouts.AWAY)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(("later_s", "is_stopped"), [(0, True), (60, False)])
def test_a_marked_ml_vm_that_runs_since_its_night_is_stopped_whatever_the_journal_closed(
    world: World, stopped: bool, later_s: int, is_stopped: bool
) -> None:
    """As a return against a copy of vCenter closed it. A VM that was started again belongs to its user."""
    closed = replace(original(world, "vm-91", Role.ML), returned=True, stopped=stopped, started_at=world.now)
    world.set("vm-91", started_at=world.now + timedelta(seconds=later_s))
    day = plan(world, (*(original_vm for original_vm in journal(world) if original_vm.vm != "vm-91"), closed))
    assert (ShutDownGuest("vm-91", 120, then_off=True) in day.steps) is is_stopped
    assert SetAttribute("vm-91", "gpuops.rotation", "") in day.steps


def test_such_a_vm_is_brought_back_when_it_is_asked_for_by_name_and_somebody_agrees(world: World) -> None:
    world.set("vm-2", path="/dc/vm/misc/desktop-02")
    restore = RestoreVms(RotateDay(POLICY), ("desktop-02",)).plan(world.snapshot(), CATALOG, MORNING)
    assert [type(step) for step in restore.steps] == [ResumeVm, SetAttribute]
    assert {step.vm for step in restore.steps} == {"vm-2"}
    assert restore.disruptive, "it is asked about first"
    [warning] = restore.warnings
    assert warning.startswith("desktop-02: only its marker says that a night took it, and it is in no folder that")
    inside = RestoreVms(RotateDay(POLICY), ("desktop-01",)).plan(world.snapshot(), CATALOG, MORNING)
    assert (inside.disruptive, inside.warnings) == (False, ())


def test_a_marker_that_was_left_under_the_name_of_its_night_goes_when_the_policy_says_another(world: World) -> None:
    back = tuple(replace(original_vm, policy=POLICY, returned=True) for original_vm in journal(world))
    for ref in ("vm-1", "vm-2"):
        world._set_power("vm-91", PowerState.OFF)
        world._set_power(ref, PowerState.ON)
    day = plan(world, back, replace(POLICY, marker="third.marker"))
    assert set(day.steps) == {SetAttribute(ref, "gpuops.rotation", "") for ref in ("vm-1", "vm-2", "vm-91")}


@pytest.mark.parametrize("ref", ["vm-1", "vm-3", "vm-91"])
def test_a_marker_with_text_that_is_none_is_named_with_a_command_that_clears_it(world: World, ref: str) -> None:
    world.set(ref, attributes={"gpuops.rotation": "2026-11-20 desk top"})
    without = [original_vm for original_vm in journal(world) if original_vm.vm != ref]
    for originals in ((), without):
        [named] = [unmet for unmet in plan(world, tuple(originals)).unmet if unmet.subject == world.vms[ref].name]
        assert "its marker '2026-11-20 desk top' cannot be read" in named.rule
        assert named.hint.endswith(f"then gpuops rotate clear-marker --vm {named.subject} --policy FILE")
    plan_with_journal = plan(world, (*without, original(world, ref, Role.ML if ref == "vm-91" else Role.DESKTOP)))
    assert world.vms[ref].name not in {unmet.subject for unmet in plan_with_journal.unmet}, "the journal knows it"


def test_clearing_a_marker_leaves_the_vm_as_it_is_and_is_refused_for_one_of_an_open_night(world: World) -> None:
    def cleared(*names: str) -> Plan:
        request = RestoreVms(RotateDay(POLICY, (original(world, "vm-1"),)), names, clears=True)
        return request.plan(world.snapshot(), CATALOG, MORNING)

    assert cleared("desktop-02").steps == (SetAttribute("vm-2", "gpuops.rotation", ""),)
    assert cleared("desktop-02").disruptive
    assert cleared("desktop-03").because == ("desktop-03: carries no marker",)
    for name, rule in (("desktop-01", "has taken it"), ("nobody", "no VM has this name")):
        [refused] = cleared("desktop-02", name).rejections
        assert rule in refused.rule
