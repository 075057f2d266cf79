"""Which desktops make room for which ML VM, and a reason for every VM that stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time
from itertools import product

import pytest

from gpuops.catalog import load
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.host import Datastore, OfferedProfile
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, RunningTask, VgpuDevice, Vm
from gpuops.model.window import Window
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.privileges import needed_privileges, refused_without
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOnVm, SetAttribute, SuspendVm
from gpuops.plan.placement.seating import Room
from gpuops.plan.rotation.ml_queue.ml_vms import waiting_vms
from gpuops.plan.rotation.ml_queue.queue import decide_queue
from gpuops.plan.rotation.nights.night import RotateNight
from tests.execute.small_vcenter import SLOTS, World, small_world
from tests.plan.rotation import drawn_fleet as fleet
from tests.plan.snapshots import catalog

CATALOG = load(profiles=SLOTS)
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
NIGHT = "2026-11-20"
POOL = Pool("all", Selector(name="desktop-*"), idle=IdleRule(500), parked=True)

POLICY = Policy(
    "small", (POOL,), ml=(QueuedVm("ml-01"), QueuedVm("ml-02")), windows=(Window(time(20), time(6), UTC),), digest="d"
)


def plan(world: World, policy: Policy = POLICY, originals: tuple[Original, ...] = (), now: datetime = EVENING) -> Plan:
    return RotateNight(policy, originals).plan(world.snapshot(), CATALOG, now)


def reasons(night_plan: Plan) -> dict[str, str]:
    return {choice.subject: choice.reason for choice in night_plan.choices}


def refs_suspended(night_plan: Plan) -> set[str]:
    return {step.vm for step in night_plan.steps if isinstance(step, SuspendVm)}


def test_what_is_taken_is_marked_first() -> None:
    night_plan = plan(small_world())
    assert night_plan.waves[0].steps[0] == SetAttribute("vm-1", "gpuops.rotation", "2026-11-20 desktop")
    assert night_plan.waves[-1].steps == (PowerOnVm("vm-91", "host-1"), PowerOnVm("vm-92", "host-2"))
    assert night_plan.disruptive


def test_what_the_morning_needs_is_told_for_every_vm_that_is_taken() -> None:
    world = small_world()
    request = RotateNight(POLICY)
    saved = request.originals_of(plan(world), world.snapshot(), EVENING)
    assert {(original.vm, original.role, original.host, original.profiles) for original in saved} == {
        ("vm-1", Role.DESKTOP, "host-1", ("nvidia_a40-24q",)),
        ("vm-2", Role.DESKTOP, "host-1", ("nvidia_a40-24q",)),
        ("vm-91", Role.ML, "host-1", ("nvidia_a40-48c",)),
        ("vm-92", Role.ML, "host-2", ("nvidia_a40-48c",)),
    }
    assert all(original.uuid == f"50{original.vm}" and original.night == NIGHT for original in saved)


def test_the_second_run_is_empty() -> None:
    world = small_world()
    first = plan(world)
    for step in first.steps:
        assert world.apply("op", step) is None
    saved = RotateNight(POLICY).originals_of(first, small_world().snapshot(), EVENING)
    second = plan(world, originals=tuple(replace(original, taken=True) for original in saved))
    assert second.steps == ()
    assert reasons(second)["desktop-01"] == "suspended tonight"
    assert reasons(second)["ml-01"] == "runs already"
    assert plan(world).steps == (), "the markers alone say so too"


def test_space_kept_for_a_suspend_file_stays_kept_when_the_file_takes_less() -> None:
    """Or a second run of the same night would find room for one more."""
    world = small_world()
    state = 16384 + 24576
    needed = round(1.1 * state)
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=2 * needed + 199, accessible=True)
    assert reasons(plan(world))["desktop-02"].startswith("datastore ssd: its suspend file needs"), "one fits, not two"
    tonight = (taken_original(NIGHT, world.vms["vm-1"]),)
    world.set("vm-1", tasks=(RunningTask("task-1", "SuspendVM_Task", "running"),))
    assert reasons(plan(world, originals=tonight))["desktop-02"].startswith("datastore ssd"), "it is being written"
    world.set("vm-1", tasks=())
    world._set_power("vm-1", PowerState.SUSPENDED)
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=2 * needed + 199 - state, accessible=True)
    assert reasons(plan(world, originals=tonight))["desktop-02"].startswith("datastore ssd"), "it is written"


def taken_original(night: str, vm: Vm, *, returned: bool = False) -> Original:
    return Original(night, Role.DESKTOP, vm.ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, True, returned)


def test_without_a_window_an_open_night_goes_on_and_a_closed_one_does_not() -> None:
    policy = replace(POLICY, windows=())
    world = small_world()
    assert RotateNight(policy).night(world.snapshot(), EVENING) == "2026-11-20T21:00Z"
    world._set_power("vm-1", PowerState.SUSPENDED)
    open_night = (taken_original("2026-11-20T19:00Z", world.vms["vm-1"]),)
    assert RotateNight(policy, open_night).night(world.snapshot(), EVENING) == "2026-11-20T19:00Z"
    assert plan(world, policy, open_night).feasible
    assert "vm-1" not in refs_suspended(plan(world, policy, open_night))


def test_the_plan_does_not_change_the_snapshot() -> None:
    inventory = small_world().snapshot()
    copy = Inventory(**{name: getattr(inventory, name) for name in inventory.__dataclass_fields__})
    RotateNight(POLICY).plan(inventory, CATALOG, EVENING)
    assert inventory == copy


def test_a_vm_whose_desktops_could_not_come_back_is_not_started() -> None:
    now = small_world().snapshot()
    desktops = [now.vms[ref] for ref in ("vm-1", "vm-2")]
    never = Rejection("desktop-01", "its host would not take it back")
    room = Room(CATALOG, certain=True)
    first = waiting_vms(POLICY, now)[:1]
    refused = decide_queue(first, desktops, now, room, lambda desktops: (never,) if desktops else ())
    assert refused.starts == ()
    assert [choice.reason for choice in refused.choices] == [f"its desktops could not come back: {never}"]
    assert decide_queue(first, desktops, now, room, lambda desktops: ()).desktops == tuple(desktops)


def test_no_desktop_is_suspended_for_a_slot_that_is_a_guess() -> None:
    """Where a host does not tell the mode of its GPUs (before vSphere 8.0.3), a profile of some modes may not start."""
    world = small_world()
    a100 = PhysicalGpu(
        PciAddress(0, 0x3B, 0, 0), "NVIDIA A100 PCIe 40GB", 0x10DE, 0x20F1,
        memory_mib=40960, graphics_type=GraphicsType.SHARED_DIRECT, vms=(),
    )  # fmt: skip
    offered = (*(world.hosts["host-2"].profiles or ()), OfferedProfile("grid_a100-40c", suspend=True))
    world.hosts["host-2"] = replace(world.hosts["host-2"], gpus=(a100,), profiles=offered)
    world.set("vm-92", devices=(VgpuDevice(13000, "grid_a100-40c"),))
    with_a100 = load(profiles=[*SLOTS, "grid_a100-40c"])
    night_plan = RotateNight(replace(POLICY, ml=(QueuedVm("ml-02"),))).plan(world.snapshot(), with_a100, EVENING)
    assert night_plan.steps == ()
    assert "whether it is in MIG mode is not known" in reasons(night_plan)["ml-02"]
    with_known_mode = replace(a100, vgpu_mode=VgpuMode.SAME_SIZE)
    world.hosts["host-2"] = replace(world.hosts["host-2"], gpus=(with_known_mode,))
    night_plan = RotateNight(replace(POLICY, ml=(QueuedVm("ml-02"),))).plan(world.snapshot(), with_a100, EVENING)
    assert PowerOnVm("vm-92", "host-2") in night_plan.steps


@pytest.mark.long
def test_a_fleet_is_used_better_than_one_vm_after_the_other_would() -> None:
    night_plan = RotateNight(fleet.policy()).plan(fleet.world(), catalog(), fleet.EVENING)
    started = [step for step in night_plan.steps if isinstance(step, PowerOnVm)]
    assert len(started) == 56, "50 one after the other"
    assert len(refs_suspended(night_plan)) == 160, "the fewest that any choice of 63 GPUs has"


CELLS = list(product([True, False], repeat=4))
SUSPEND = "VirtualMachine.Interact.Suspend"


@pytest.mark.parametrize(("selected", "agreed", "opted_out", "permitted"), CELLS)
def test_one_cell_of_sixteen_may_suspend(selected: bool, agreed: bool, opted_out: bool, permitted: bool) -> None:
    chosen = Selector(name="desktop-*" if selected else "laptop-*")
    policy = replace(POLICY, pools=(replace(POOL, select=chosen, owner=Mark("gpuops.owner", "cad")),))
    world = small_world()
    for ref in world.vms:
        marks = ({"gpuops.owner": "cad"} if agreed else {}) | ({"gpuops.opt-out": "no"} if opted_out else {})
        world.set(ref, attributes=marks)
    # one whose owner agreed and whose user did not: without any, the whole pool would be refused before we come to ask
    world.set("vm-5", attributes={"gpuops.owner": "cad", "gpuops.opt-out": "no"})
    night_plan = plan(world, policy)
    wants = needed_privileges(night_plan.steps)
    lacking = {} if permitted else {vm: {SUSPEND} & privileges for vm, privileges in wants.items()}
    taken_refs = refs_suspended(refused_without(night_plan, lacking, world.snapshot()))
    assert bool(taken_refs) is ((selected, agreed, opted_out, permitted) == (True, True, False, True))
