"""Every desktop comes back, in an order in which all of them fit, or is named with its reason and one safe command."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest

from gpuops.catalog import load
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.nights.ml_queue import Checkpoint, GuestCommand, MlStop, QueuedVm
from gpuops.model.nights.night_record import Marker, Original, Role, marker_value, parse_marker
from gpuops.model.nights.rotation import LATE, IdleRule, MorningOrder, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.vm import PowerState, RunningTask
from gpuops.model.window import Window
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ResumeVm, RunInGuest, SetAttribute, ShutDownGuest
from gpuops.plan.rotation.returns.day import RotateDay, is_returned
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms
from tests.execute.small_vcenter import SLOTS, World, desktop, small_world

CATALOG = load(profiles=SLOTS)
MORNING = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
NIGHT = "2026-11-20"
POLICY = Policy(
    "small",
    (Pool("all", Selector(folder="desktops", name="desktop-*"), idle=IdleRule(500), parked=True),),
    ml=(QueuedVm("ml-01"), QueuedVm("ml-02")),
    ml_stop=MlStop(grace_s=120, then_off=True),
)
SHARED = replace(POLICY, lock_vm="gpuops-lock")
"""Several machines rotate, each with a journal of its own."""


def original(world: World, ref: str, role: Role = Role.DESKTOP, *, taken: bool = True) -> Original:
    vm = world.vms[ref]
    return Original(NIGHT, role, ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, taken)


@pytest.fixture
def world() -> World:
    """The night took the first two desktops and started ml-01 in their place."""
    world = small_world()
    for ref in ("vm-1", "vm-2"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    world._set_power("vm-91", PowerState.ON)
    world.set("vm-91", attributes={"gpuops.rotation": f"{NIGHT} ml"})
    return world


def journal(world: World) -> tuple[Original, ...]:
    return (original(world, "vm-1"), original(world, "vm-2"), original(world, "vm-91", Role.ML))


def plan(world: World, originals: tuple[Original, ...] = (), policy: Policy = POLICY) -> Plan:
    return RotateDay(policy, originals).plan(world.snapshot(), CATALOG, MORNING)


@pytest.mark.parametrize(("ref", "role"), [("vm-1", Role.DESKTOP), ("vm-91", Role.ML)])
def test_what_may_still_come_is_named_and_stays_marked(world: World, ref: str, role: Role) -> None:
    """Its reply and its task were lost: as it is now it may not stay, and without its marker nobody would know."""
    world._set_power("vm-91", PowerState.OFF)
    if role is Role.DESKTOP:
        world._set_power(ref, PowerState.ON)
    lost = replace(original(world, ref, role), unsure=True)
    named = plan(world, (lost, *(each for each in journal(world) if each.vm != ref)))
    assert [each.subject for each in named.unmet] == [world.vms[ref].name]
    assert "may still be changed" in named.unmet[0].rule
    assert [step for step in named.steps if step.vm == ref] == []
    assert not is_returned(lost, world.snapshot())
    assert is_returned(replace(lost, unsure=False), world.snapshot())


@pytest.mark.parametrize(
    ("ref", "power", "method", "said"),
    [
        ("vm-1", PowerState.ON, "SuspendVM_Task", "is being suspended"),
        ("vm-1", PowerState.SUSPENDED, "PowerOnVM_Task", "is being resumed"),
        ("vm-91", PowerState.OFF, "PowerOnVM_Task", "is being started"),
        ("vm-91", PowerState.ON, "PowerOffVM_Task", "is being powered off"),
    ],
)
def test_what_is_on_its_way_is_named_and_stays_marked(
    world: World, ref: str, power: PowerState, method: str, said: str
) -> None:
    """Where it ends up is not known yet: called back now, it would be forgotten where it then is."""
    world.set(ref, power=power, tasks=(RunningTask("task-1", method, "running"),))
    found = plan(world, journal(world))
    assert [refusal.rule for refusal in found.unmet] == [said]
    assert ref not in {step.vm for step in found.steps}
    assert not any(is_returned(each, world.snapshot()) for each in journal(world) if each.vm == ref)


def untaken(world: World) -> tuple[Original, ...]:
    """What the journal of a machine holds whose night was cut off before it took anything."""
    return tuple(replace(each, taken=False) for each in journal(world))


def test_under_a_lock_vm_the_marker_tells_of_what_another_machine_took(world: World) -> None:
    world._set_power("vm-2", PowerState.OFF)
    found = {mine.original.vm: mine.whereabouts for mine in taken_vms(SHARED, untaken(world), world.snapshot())}
    assert found == {"vm-1": Whereabouts.AWAY, "vm-2": Whereabouts.LOST, "vm-91": Whereabouts.AWAY}
    morning = plan(world, untaken(world), SHARED)
    assert ShutDownGuest("vm-91", 120, then_off=True) in morning.steps
    assert SetAttribute("vm-2", "gpuops.rotation", "") not in morning.steps, "it is not as it was"


def test_without_one_the_journal_knows_what_no_night_started(world: World) -> None:
    found = {mine.original.vm: mine.whereabouts for mine in taken_vms(POLICY, untaken(world), world.snapshot())}
    assert found["vm-91"] is Whereabouts.UNTOUCHED
    assert ShutDownGuest("vm-91", 120, then_off=True) not in plan(world, untaken(world)).steps


def test_under_a_lock_vm_what_runs_without_a_marker_is_nobodys(world: World) -> None:
    world.set("vm-91", attributes={})
    found = {mine.original.vm: mine.whereabouts for mine in taken_vms(SHARED, untaken(world), world.snapshot())}
    assert found["vm-91"] is Whereabouts.UNTOUCHED


def test_another_task_is_no_way_to_somewhere(world: World) -> None:
    world.set("vm-1", power=PowerState.ON, tasks=(RunningTask("task-1", "CreateSnapshot_Task", "running"),))
    assert plan(world, journal(world)).unmet == ()


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
    assert [each.subject for each in first.unmet] == [world.vms[ref].name]
    world.set(ref, attributes={"gpuops.rotation": note.value})
    world.now += LATE - timedelta(seconds=1)
    again = plan(world, journal(world))
    assert [step for step in again.steps if step.vm == ref] == []
    assert len(again.unmet) == 1
    world.now += timedelta(seconds=1)
    last = plan(world, journal(world))
    assert [step for step in last.steps if step.vm == ref] == [SetAttribute(ref, "gpuops.rotation", "")]
    assert last.unmet == ()


def test_what_another_machine_has_taken_comes_back_at_once_however_its_marker_was_seen(world: World) -> None:
    seen = marker_value(NIGHT, Role.DESKTOP, seen=world.now)
    world.set("vm-1", attributes={"gpuops.rotation": seen})
    steps = [step for step in plan(world).steps if step.vm == "vm-1"]
    assert steps == [ResumeVm("vm-1", "host-1"), SetAttribute("vm-1", "gpuops.rotation", "")]


def test_a_marker_left_on_what_this_journal_knows_to_be_back_goes_at_once(world: World) -> None:
    world.set("vm-3", attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    back = replace(original(world, "vm-3"), returned=True)
    found = plan(world, (*journal(world), back))
    assert [step for step in found.steps if step.vm == "vm-3"] == [SetAttribute("vm-3", "gpuops.rotation", "")]
    assert found.unmet == ()


@pytest.mark.parametrize("taken", [False, True])
def test_an_ml_vm_that_this_journal_knows_to_be_over_is_not_stopped_for_a_marker_that_could_not_be_cleared(
    world: World, taken: bool
) -> None:
    """Its start failed, or a morning has stopped it; who runs it now is somebody else, whatever the marker says."""
    over = replace(original(world, "vm-91", Role.ML), taken=taken, returned=True)
    found = plan(world, (*(each for each in journal(world) if each.vm != "vm-91"), over))
    assert [step for step in found.steps if step.vm == "vm-91"] == [SetAttribute("vm-91", "gpuops.rotation", "")]
    assert found.unmet == ()


@pytest.mark.parametrize("sources", ["both", "journal alone", "markers alone"])
def test_ml_stops_then_every_desktop_resumes_then_the_markers_go(world: World, sources: str) -> None:
    originals = journal(world) if sources != "markers alone" else ()
    if sources == "journal alone":
        for ref in ("vm-1", "vm-2", "vm-91"):
            world.set(ref, attributes={})
    found = plan(world, originals)
    assert [(wave.title.split(",")[0], wave.steps) for wave in found.waves] == [
        ("stop the ML VMs of the night", (ShutDownGuest("vm-91", 120, then_off=True),)),
        ("resume one desktop of each host first", (ResumeVm("vm-1", "host-1"),)),
        ("resume the others", (ResumeVm("vm-2", "host-1"),)),
        ("clear the markers", tuple(SetAttribute(ref, "gpuops.rotation", "") for ref in ("vm-1", "vm-2", "vm-91"))),
    ]
    assert found.unmet == ()
    assert found.disruptive


def test_a_day_after_nothing_is_empty() -> None:
    found = plan(small_world())
    assert found.steps == ()
    assert found.because == ("no night has taken anything that is not back",)


def test_a_desktop_that_runs_already_is_left_alone(world: World) -> None:
    world._set_power("vm-91", PowerState.OFF)
    world._set_power("vm-1", PowerState.ON)
    found = plan(world, journal(world))
    assert ResumeVm("vm-1", "host-1") not in found.steps
    assert SetAttribute("vm-1", "gpuops.rotation", "") in found.steps
    assert found.unmet == ()


def test_an_ml_vm_that_somebody_else_started_is_left_alone(world: World) -> None:
    world._set_power("vm-92", PowerState.ON)
    originals = (*journal(world), original(world, "vm-92", Role.ML, taken=False))
    found = plan(world, originals)
    assert {step.vm for step in found.steps} == {"vm-1", "vm-2", "vm-91"}


def test_an_ml_vm_that_somebody_started_after_a_return_had_stopped_it_is_left_alone(world: World) -> None:
    stopped = tuple(replace(each, stopped=each.role is Role.ML) for each in journal(world))
    found = plan(world, stopped)
    assert ShutDownGuest not in {type(step) for step in found.steps}
    assert SetAttribute("vm-91", "gpuops.rotation", "") in found.steps
    [ml] = [each for each in stopped if each.role is Role.ML]
    assert is_returned(ml, world.snapshot())


def test_a_desktop_that_somebody_else_suspended_is_left_alone(world: World) -> None:
    world._set_power("vm-3", PowerState.SUSPENDED)
    found = plan(world, (*journal(world), original(world, "vm-3", taken=False)))
    assert "vm-3" not in {step.vm for step in found.steps}
    assert found.unmet == ()


def test_a_discarded_state_is_named_and_never_booted(world: World) -> None:
    world.set("vm-1", power=PowerState.OFF)
    found = plan(world, journal(world))
    [named] = found.unmet
    assert str(named) == "desktop-01: is powered off: its suspended state was discarded by somebody else"
    assert named.hint == "power it on in the vSphere Client, then gpuops rotate day"
    assert {step.vm for step in found.steps} == {"vm-2", "vm-91"}


def test_a_vm_that_is_gone_or_replaced_is_named(world: World) -> None:
    originals = journal(world)
    del world.vms["vm-1"]
    world.set("vm-2", instance_uuid="another")
    found = plan(world, originals)
    assert {named.subject: named.rule for named in found.unmet} == {
        "desktop-01": "is gone from vCenter",
        "desktop-02": "is another VM now: its instance uuid changed",
    }
    assert {step.vm for step in found.steps} == {"vm-91"}


def test_a_marker_that_the_journal_knows_nothing_of_is_believed_only_where_the_policy_names_something(
    world: World,
) -> None:
    world.set("vm-1", name="renamed", path="/dc/vm/desktops/renamed")
    world.set("vm-2", path="/dc/vm/misc/desktop-02")
    world.set("vm-91", name="foreign-ml", path="/dc/vm/desktops/foreign-ml")
    found = plan(world)
    assert {step.vm for step in found.steps} == {"vm-1"}
    alone = "only its marker says that a night took it, and"
    assert {named.subject: (named.rule, named.hint) for named in found.unmet} == {
        "desktop-02": (
            f"{alone} it is in no folder that the policy names (/dc/vm/misc/desktop-02): not touched",
            "gpuops rotate restore --vm desktop-02 --policy FILE",
        ),
        "foreign-ml": (
            f"{alone} no entry of the policy's queue means it: not touched",
            "gpuops rotate restore --vm foreign-ml --policy FILE",
        ),
    }


def test_such_a_vm_is_brought_back_when_it_is_asked_for_by_name_and_somebody_agrees(world: World) -> None:
    world.set("vm-2", path="/dc/vm/misc/desktop-02")
    found = RestoreVms(RotateDay(POLICY), ("desktop-02",)).plan(world.snapshot(), CATALOG, MORNING)
    assert [type(step) for step in found.steps] == [ResumeVm, SetAttribute]
    assert {step.vm for step in found.steps} == {"vm-2"}
    assert found.disruptive, "it is asked about first"
    [warning] = found.warnings
    assert warning.startswith("desktop-02: only its marker says that a night took it, and it is in no folder that")
    inside = RestoreVms(RotateDay(POLICY), ("desktop-01",)).plan(world.snapshot(), CATALOG, MORNING)
    assert (inside.disruptive, inside.warnings) == (False, ())


def test_a_pool_without_a_folder_names_no_place_where_a_marker_alone_is_believed(world: World) -> None:
    everywhere = replace(POLICY, pools=(replace(POLICY.pools[0], select=Selector(name="desktop-*")),))
    found = plan(world, policy=everywhere)
    assert {step.vm for step in found.steps} == {"vm-91"}
    assert {named.subject for named in found.unmet} == {"desktop-01", "desktop-02"}


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
    found = plan(world, originals)
    assert found.unmet == ()
    assert ShutDownGuest("vm-91", 120, then_off=True) in found.steps
    assert set(resumed(found)) == {"vm-1", "vm-2"}


def test_a_vm_that_was_registered_anew_is_known_by_its_instance_uuid(world: World) -> None:
    originals = journal(world)
    world.vms["vm-7001"] = replace(world.vms.pop("vm-1"), ref="vm-7001", attributes={})
    world.vms["vm-7091"] = replace(world.vms.pop("vm-91"), ref="vm-7091", attributes={})
    found = plan(world, originals)
    assert found.unmet == ()
    assert ShutDownGuest("vm-7091", 120, then_off=True) in found.steps
    assert set(resumed(found)) == {"vm-7001", "vm-2"}
    world.set("vm-7001", power=PowerState.ON)
    assert is_returned(originals[0], world.snapshot())
    assert not is_returned(originals[1], world.snapshot())


def test_two_vms_of_one_instance_uuid_are_named_and_never_touched(world: World) -> None:
    originals = journal(world)
    world.vms["vm-8"] = replace(world.vms["vm-1"], ref="vm-8", path="/dc/vm/desktops/copy")
    for known in (originals, ()):
        found = plan(world, known)
        assert not {"vm-1", "vm-8"} & {step.vm for step in found.steps}
        assert {(named.subject, named.rule) for named in found.unmet} == {
            (
                "desktop-01",
                "/dc/vm/desktops/copy and /dc/vm/desktops/desktop-01 have one instance uuid",
            )
        }
    assert not is_returned(originals[0], world.snapshot())


def test_each_vm_is_returned_under_the_policy_of_its_night(world: World) -> None:
    """Its marker, its order, how its ML VMs are stopped: the policy that is said speaks for the rest."""
    tonight = replace(POLICY, name="another", marker="other.marker", ml_stop=MlStop(grace_s=7, then_off=False))
    originals = tuple(replace(each, policy=tonight if each.vm != "vm-2" else POLICY) for each in journal(world))
    for ref in ("vm-1", "vm-91"):
        value = world.vms[ref].attributes["gpuops.rotation"]
        world.set(ref, attributes={"other.marker": value})
    edited = replace(POLICY, name="edited", pools=(), ml=(), marker="third.marker")
    found = plan(world, originals, edited)
    assert ShutDownGuest("vm-91", 7, then_off=False) in found.steps
    assert set(resumed(found)) == {"vm-1", "vm-2"}
    assert {step for step in found.steps if isinstance(step, SetAttribute)} == {
        SetAttribute("vm-1", "other.marker", ""),
        SetAttribute("vm-2", "gpuops.rotation", ""),
        SetAttribute("vm-91", "other.marker", ""),
    }
    assert found.unmet == ()


def test_a_marker_that_was_left_under_the_name_of_its_night_goes_when_the_policy_says_another(world: World) -> None:
    back = tuple(replace(each, policy=POLICY, returned=True) for each in journal(world))
    for ref in ("vm-1", "vm-2"):
        world._set_power("vm-91", PowerState.OFF)
        world._set_power(ref, PowerState.ON)
    found = plan(world, back, replace(POLICY, marker="third.marker"))
    assert set(found.steps) == {SetAttribute(ref, "gpuops.rotation", "") for ref in ("vm-1", "vm-2", "vm-91")}


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"power": None}, "connect its host"),
        ({"connected": False}, "connect its host"),
        ({"instance_uuid": None}, "connect its host, or let this login read it"),
    ],
)
def test_what_cannot_be_read_is_named_not_guessed(world: World, changes: dict[str, object], first: str) -> None:
    world.set("vm-1", **changes)
    found = plan(world, journal(world))
    [named] = found.unmet
    assert (named.subject, named.hint) == ("desktop-01", f"{first}, then gpuops rotate day")
    assert "vm-1" not in {step.vm for step in found.steps}


def test_a_marker_that_cannot_be_read_is_not_taken_for_none(world: World) -> None:
    """Without a journal it is the only record: who may be away is named, and who runs or is no desktop is not."""
    for ref in ("vm-1", "vm-2", "vm-3", "vm-91"):
        world.set(ref, attributes={}, unreadable=("customValue",))
    world.set("vm-3", power=PowerState.ON)
    found = plan(world)
    assert {(named.subject, named.hint) for named in found.unmet} == {
        ("desktop-01", "log in as somebody who may read it, then gpuops rotate day"),
        ("desktop-02", "log in as somebody who may read it, then gpuops rotate day"),
    }
    assert all("its marker cannot be read" in named.rule for named in found.unmet)
    assert plan(world, (original(world, "vm-1"),)).unmet == (), "a journal knows who is"


def test_a_vm_resumes_where_it_is_registered_now(world: World) -> None:
    world.set("vm-1", host="host-2")
    assert ResumeVm("vm-1", "host-2") in plan(world, journal(world)).steps


def test_the_grace_and_the_power_off_are_the_policys(world: World) -> None:
    policy = replace(POLICY, ml_stop=MlStop(grace_s=5, then_off=False))
    assert plan(world, policy=policy).waves[0].steps == (ShutDownGuest("vm-91", 5, then_off=False),)


def resumed(found: Plan) -> list[str]:
    return [step.vm for step in found.steps if isinstance(step, ResumeVm)]


def test_each_profile_claims_its_gpus_before_any_fills_up() -> None:
    """A host that spreads VMs would give the second 24q an empty GPU, and no 12q would find one."""
    world = small_world()
    for ref in ("vm-1", "vm-2", "vm-3", "vm-4", "vm-5"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    found = plan(world, policy=replace(POLICY, morning=MorningOrder.LARGEST_FIRST))
    assert [step.vm for step in found.waves[0].steps] == ["vm-1", "vm-3"]
    assert resumed(found) == ["vm-1", "vm-3", "vm-2", "vm-4", "vm-5"]


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
        assert [ref for ref in resumed(canary) if ref in on_host] == [ref for ref in resumed(plainly) if ref in on_host]


def test_a_profile_that_has_its_gpu_lets_the_others_claim_theirs_first() -> None:
    world = small_world()
    for ref in ("vm-2", "vm-3", "vm-4", "vm-5"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    assert resumed(plan(world)) == ["vm-3", "vm-2", "vm-4", "vm-5"]


def test_on_mixed_size_gpus_the_largest_comes_first() -> None:
    world = small_world()
    host = world.hosts["host-1"]
    world.hosts["host-1"] = replace(host, gpus=tuple(replace(gpu, vgpu_mode=VgpuMode.MIXED_SIZE) for gpu in host.gpus))
    world.vms["vm-6"] = desktop(6, "nvidia_a40-48q", "host-1")
    for ref in ("vm-1", "vm-2", "vm-3", "vm-4", "vm-5", "vm-6"):
        world.set(ref, power=PowerState.SUSPENDED, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    found = plan(world)
    assert resumed(found) == ["vm-6", "vm-1", "vm-2", "vm-3", "vm-4", "vm-5"]


@pytest.mark.parametrize(
    ("role", "power", "taken", "returned"),
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
def test_what_counts_as_returned(role: Role, power: PowerState | None, taken: bool, returned: bool) -> None:
    world = small_world()
    world.set("vm-1", power=power)
    assert is_returned(original(world, "vm-1", role, taken=taken), world.snapshot()) is returned


@pytest.mark.parametrize(("role", "power"), [(Role.SHUT_DOWN, PowerState.OFF), (Role.DESKTOP, PowerState.SUSPENDED)])
@pytest.mark.parametrize(("marker", "returned"), [("", True), ("2026-11-20 desktop-off", False)])
def test_a_desktop_that_is_marked_and_does_not_run_stays_open(
    role: Role, power: PowerState, marker: str, returned: bool
) -> None:
    """Though its step was called failed, and though the VM is inaccessible so that no step is planned for it."""
    world = small_world()
    world.set("vm-1", power=power, connected=False, attributes={"gpuops.rotation": marker})
    assert is_returned(original(world, "vm-1", role, taken=False), world.snapshot()) is returned


def test_an_ml_vm_keeps_its_work_by_the_entry_that_it_had_in_the_queue_of_its_night(world: World) -> None:
    hook = Checkpoint(grace_s=60, hook=GuestCommand("/bin/save"))
    queued = replace(POLICY, ml=(QueuedVm("moid:vm-91", checkpoint=hook),))
    originals = (replace(original(world, "vm-91", Role.ML), policy=queued),)
    world.vms["vm-7091"] = replace(world.vms.pop("vm-91"), ref="vm-7091", name="renamed")
    for ref in ("vm-1", "vm-2"):
        world.set(ref, attributes={})
    found = plan(world, originals, replace(POLICY, ml=()))
    assert [type(step) for step in found.steps] == [RunInGuest, ShutDownGuest, SetAttribute]
    assert {step.vm for step in found.steps} == {"vm-7091"}


def test_where_each_vm_is_without_any_policy(world: World) -> None:
    world.set("vm-1", power=PowerState.OFF)
    found = {mine.original.name: mine.whereabouts for mine in taken_vms(None, journal(world), world.snapshot())}
    assert found == {
        "desktop-01": Whereabouts.LOST,
        "desktop-02": Whereabouts.AWAY,
        "ml-01": Whereabouts.AWAY,
    }


@pytest.mark.parametrize(("hours_early", "ends"), [(7, True), (1, False), (0, False), (-2, False)])
def test_a_return_in_an_open_window_says_that_it_ends_the_night(world: World, hours_early: int, ends: bool) -> None:
    policy = replace(POLICY, windows=(Window(time(20), time(5), UTC),))
    now = MORNING - timedelta(hours=hours_early)
    found = RotateDay(policy).plan(world.snapshot(), CATALOG, now)
    said = "night 2026-11-20, open until 05:00 UTC, ends with this return: it takes nothing more"
    assert found.warnings.count(said) == ends
    assert found.steps
