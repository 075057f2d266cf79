"""Every desktop comes back in an order in which all of them fit, or is named with its reason and one safe command; what
others changed stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, time, timedelta

import pytest

from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, MlStop, QueuedVm
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation_policy import MorningOrder
from gpuops.model.vcenter.vm import PowerState, RunningTask
from gpuops.model.window import Window
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, RunInGuest, SetAttribute, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.returns.day import RotateDay, hooks_of, is_returned
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms
from tests.execute.small_vcenter import World, desktop, small_world
from tests.plan.rotation.returns.morning import CATALOG, MORNING, NIGHT, POLICY, journal, original, plan


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
    assert day.because == ("everything that nights took is back",)


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


def resumed_refs(day: Plan) -> list[str]:
    return [step.vm for step in day.steps if isinstance(step, ResumeVm)]


def test_a_canary_of_each_host_comes_first_and_the_order_on_each_host_is_kept() -> None:
    """A host that takes none back shows at its first; the order in which all of them fit starts with that one."""
    world = small_world()
    world.vms["vm-7"] = desktop(7, "nvidia_a40-24q", "host-2")
    for ref in ("vm-1", "vm-2", "vm-3", "vm-4", "vm-5", "vm-7"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    canary, plainly = (plan(world, policy=replace(POLICY, morning=order)) for order in MorningOrder)
    assert [step.vm for step in canary.waves[0].steps] == ["vm-1", "vm-7"]
    for host in ("host-1", "host-2"):
        on_host = {step.vm for step in plainly.steps if isinstance(step, ResumeVm) and step.host == host}
        assert [ref for ref in resumed_refs(canary) if ref in on_host] == [
            ref for ref in resumed_refs(plainly) if ref in on_host
        ]


def test_a_profile_that_has_its_gpu_lets_the_others_claim_theirs_first() -> None:
    world = small_world()
    for ref in ("vm-2", "vm-3", "vm-4", "vm-5"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    assert resumed_refs(plan(world)) == ["vm-3", "vm-2", "vm-4", "vm-5"]


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


def test_what_a_morning_will_run_is_known_in_the_evening() -> None:
    policy = replace(POLICY, ml=(QueuedVm("ml-01", checkpoint=Checkpoint(600, GuestCommand("/opt/keep", "--all"))),))
    steps = (SuspendVm("vm-1"), PowerOnVm("vm-91", "host-1"), PowerOnVm("vm-92", "host-1"))
    hooks = hooks_of(policy, steps, small_world().snapshot())
    assert [(step.vm, step.program) for step in hooks] == [("vm-91", "/opt/keep")]
