"""Where each VM is that a night took: away, on its way, unknown, or returned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.vm import PowerState, RunningTask
from gpuops.plan.rotation.returns.day import is_returned
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms
from tests.execute.small_vcenter import World, small_world
from tests.plan.rotation.returns.morning import journal, original, plan


@pytest.mark.parametrize(("ref", "role"), [("vm-1", Role.DESKTOP), ("vm-91", Role.ML)])
def test_what_may_still_come_is_named_and_stays_marked(world: World, ref: str, role: Role) -> None:
    """Its reply and its task were lost: its state may still change, and only its marker tells the next run."""
    world._set_power("vm-91", PowerState.OFF)
    if role is Role.DESKTOP:
        world._set_power(ref, PowerState.ON)
    lost = replace(original(world, ref, role), unsure=True)
    named = plan(world, (lost, *(original_vm for original_vm in journal(world) if original_vm.vm != ref)))
    assert [unmet.subject for unmet in named.unmet] == [world.vms[ref].name]
    assert "may still change" in named.unmet[0].rule
    assert [step for step in named.steps if step.vm == ref] == []
    assert not is_returned(lost, world.snapshot())
    assert is_returned(replace(lost, unsure=False), world.snapshot())


@pytest.mark.parametrize(
    ("ref", "power", "method", "rule"),
    [
        ("vm-1", PowerState.ON, "SuspendVM_Task", "is being suspended"),
        ("vm-1", PowerState.SUSPENDED, "PowerOnVM_Task", "is being resumed"),
        ("vm-91", PowerState.OFF, "PowerOnVM_Task", "is being started"),
        ("vm-91", PowerState.ON, "PowerOffVM_Task", "is being powered off"),
    ],
)
def test_what_is_on_its_way_is_named_and_stays_marked(
    world: World, ref: str, power: PowerState, method: str, rule: str
) -> None:
    """Where it ends up is not known yet: called back now, it would be forgotten where it then is."""
    world.set(ref, power=power, tasks=(RunningTask("task-1", method, "running"),))
    day = plan(world, journal(world))
    assert [refusal.rule for refusal in day.unmet] == [rule]
    assert ref not in {step.vm for step in day.steps}
    assert not any(
        is_returned(original_vm, world.snapshot()) for original_vm in journal(world) if original_vm.vm == ref
    )


def test_another_task_is_no_way_to_somewhere(world: World) -> None:
    world.set("vm-1", power=PowerState.ON, tasks=(RunningTask("task-1", "CreateSnapshot_Task", "running"),))
    assert plan(world, journal(world)).unmet == ()


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"power": None}, "let this login read it"),
        ({"connected": False}, "make its files accessible, or register it again"),
        ({"connected": False, "host": None}, "connect its host"),
        ({"instance_uuid": None}, "connect its host, or let this login read it"),
    ],
)
def test_what_cannot_be_read_is_named_not_guessed(world: World, changes: dict[str, object], first: str) -> None:
    world.set("vm-1", **changes)
    day = plan(world, journal(world))
    [named] = day.unmet
    assert (named.subject, named.hint) == ("desktop-01", f"{first}, then gpuops rotate day")
    assert "vm-1" not in {step.vm for step in day.steps}


@pytest.mark.parametrize(
    ("role", "power", "was_taken", "returned"),
    [
        (Role.DESKTOP, PowerState.ON, True, True),
        (Role.DESKTOP, PowerState.SUSPENDED, True, False),
        (Role.DESKTOP, PowerState.SUSPENDED, False, True),
        (Role.DESKTOP, PowerState.OFF, True, False),
        (Role.DESKTOP, None, False, False),
        (Role.ML, PowerState.OFF, True, True),
        (Role.ML, PowerState.ON, True, False),
        (Role.ML, PowerState.ON, False, True),
    ],
)
def test_what_counts_as_returned(role: Role, power: PowerState | None, was_taken: bool, returned: bool) -> None:
    world = small_world()
    world.set("vm-1", power=power)
    assert is_returned(original(world, "vm-1", role, is_taken=was_taken), world.snapshot()) is returned


@pytest.mark.parametrize(("role", "power"), [(Role.SHUT_DOWN, PowerState.OFF), (Role.DESKTOP, PowerState.SUSPENDED)])
@pytest.mark.parametrize(("marker", "returned"), [("", True), ("2026-11-20 desktop-off", False)])
def test_a_desktop_that_is_marked_and_does_not_run_stays_open(
    role: Role, power: PowerState, marker: str, returned: bool
) -> None:
    """Though its step was called failed, and though the VM is inaccessible so that no step is planned for it."""
    world = small_world()
    world.set("vm-1", power=power, connected=False, attributes={"gpuops.rotation": marker})
    assert is_returned(original(world, "vm-1", role, is_taken=False), world.snapshot()) is returned


def test_where_each_vm_is_without_any_policy(world: World) -> None:
    world.set("vm-1", power=PowerState.OFF)
    by_name = {mine.original.name: mine.whereabouts for mine in taken_vms(None, journal(world), world.snapshot())}
    assert by_name == {
        "desktop-01": Whereabouts.LOST,
        "desktop-02": Whereabouts.AWAY,
        "ml-01": Whereabouts.AWAY,
    }
