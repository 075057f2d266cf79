"""Which desktops make room for which ML VM, and a reason for every VM that stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time

import pytest

from gpuops.catalog import load
from gpuops.model.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Datastore, OfferedProfile
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import QueuedVm
from gpuops.model.rotation import IdleRule, Original, Policy, Pool, Role
from gpuops.model.selector import Mark, Selector
from gpuops.model.vm import DirectPathDevice, PowerState, RunningTask, VgpuDevice, Vm
from gpuops.model.window import Window
from gpuops.plan.core.plan import Plan, Rejection
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, SetAttribute, SuspendVm
from gpuops.plan.placement.room import Room
from gpuops.plan.rotation.night import RotateNight
from gpuops.plan.rotation.queue import serve
from gpuops.plan.rotation.waiting import waiting
from tests.execute.small_vcenter import SLOTS, World, small_world

CATALOG = load(profiles=SLOTS)
EVENING = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)
NIGHT = "2026-11-20"
POOL = Pool("all", Selector(name="desktop-*"), idle=IdleRule(500), parked=True)
POLICY = Policy(
    "small", (POOL,), ml=(QueuedVm("ml-01"), QueuedVm("ml-02")), windows=(Window(time(20), time(6), UTC),), digest="d"
)
Change = Callable[[World], None]


def plan(world: World, policy: Policy = POLICY, originals: tuple[Original, ...] = (), now: datetime = EVENING) -> Plan:
    return RotateNight(policy, originals).plan(world.snapshot(), CATALOG, now)


def reasons(found: Plan) -> dict[str, str]:
    return {choice.subject: choice.reason for choice in found.choices}


def suspended(found: Plan) -> set[str]:
    return {step.vm for step in found.steps if isinstance(step, SuspendVm)}


def test_the_fewest_desktops_make_room_and_each_vm_has_its_reason() -> None:
    found = plan(small_world())
    assert suspended(found) == {"vm-1", "vm-2"}, "the GPU with two desktops, not the one with three"
    assert reasons(found) == {
        "ml-01": "starts on esx-01: 2 desktop(s) make room",
        "ml-02": "starts on esx-02: there is room without any desktop",
        "desktop-01": "makes room for ml-01",
        "desktop-02": "makes room for ml-01",
        "desktop-03": "idle; no VM of the queue needs its GPU",
        "desktop-04": "idle; no VM of the queue needs its GPU",
        "desktop-05": "idle; no VM of the queue needs its GPU",
    }
    assert [wave.title for wave in found.waves] == ["mark what is taken", "suspend idle desktops", "start ML VMs"]
    assert found.waves[0].steps[0] == SetAttribute("vm-1", "gpuops.rotation", "2026-11-20 desktop")
    assert found.waves[-1].steps == (PowerOnVm("vm-91", "host-1"), PowerOnVm("vm-92", "host-2"))
    assert found.disruptive


def test_what_the_morning_needs_is_told_for_every_vm_that_is_taken() -> None:
    world = small_world()
    request = RotateNight(POLICY)
    saved = request.saved(plan(world), world.snapshot(), EVENING)
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
    saved = RotateNight(POLICY).saved(first, small_world().snapshot(), EVENING)
    second = plan(world, originals=tuple(replace(original, taken=True) for original in saved))
    assert second.steps == ()
    assert reasons(second)["desktop-01"] == "suspended tonight"
    assert reasons(second)["ml-01"] == "runs already"
    assert plan(world).steps == (), "the markers alone say so too"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"console_connections": 1}, "1 console connection(s) open"),
        ({"console_connections": None}, "its console connections cannot be read"),
        ({"cpu_usage_mhz": 500}, "uses 500 MHz, idle is below 500"),
        ({"cpu_usage_mhz": None}, "its CPU usage cannot be read"),
        ({"question": "Is the disk full?"}, "waits for an answer: Is the disk full?"),
        ({"tasks": (RunningTask("task-1", "Relocate", "running"),)}, "a task is running: Relocate"),
        ({"connected": None}, "is not connected, or does not tell"),
        ({"unreadable": ("runtime.question",)}, "cannot be read whole: runtime.question"),
        ({"attributes": {"gpuops.opt-out": "yes"}}, "opted out (attribute gpuops.opt-out)"),
        ({"devices": None}, "its devices cannot be read"),
        ({"devices": ()}, "has no vGPU: suspending it frees none"),
        ({"template": True}, "is a template"),
        ({"power": PowerState.OFF}, "is powered off"),
        ({"power": None}, "is not running (its power state cannot be read)"),
        ({"datastores": ()}, "its datastore is unknown"),
        ({"memory_mib": None}, "the size of its suspend file is unknown"),
        ({"host": "host-gone"}, "its host is not connected, or not known"),
    ],
)
def test_a_desktop_that_is_not_certainly_idle_stays(changes: dict[str, object], reason: str) -> None:
    world = small_world()
    world.set("vm-1", **changes)
    found = plan(world)
    assert reasons(found)["desktop-01"] == reason
    assert "vm-1" not in {step.vm for step in found.steps}


def test_a_desktop_with_a_directpath_device_stays() -> None:
    world = small_world()
    nic = DirectPathDevice(13001, PciAddress(0, 0xAF, 0, 0), 0x15B3, 0x1017, "sys")
    world.set("vm-1", devices=(*(world.vms["vm-1"].devices or ()), nic))
    assert reasons(plan(world))["desktop-01"] == "has a DirectPath device: such a VM cannot be suspended"


@pytest.mark.parametrize("told", [None, False])
def test_a_profile_the_host_does_not_call_suspendable_keeps_its_vms(told: bool | None) -> None:
    world = small_world()
    host = world.hosts["host-1"]
    offered = tuple(replace(offer, suspend=told) for offer in host.profiles or ())
    world.hosts["host-1"] = replace(host, profiles=offered)
    found = plan(world)
    assert suspended(found) == set()
    assert reasons(found)["desktop-01"] == "esx-01 does not say that nvidia_a40-24q can be suspended"


@pytest.mark.parametrize("maintenance", [True, None])
def test_a_host_in_maintenance_is_left_alone(maintenance: bool | None) -> None:
    world = small_world()
    world.hosts["host-1"] = replace(world.hosts["host-1"], in_maintenance=maintenance)
    found = plan(world)
    assert {step.vm for step in found.steps} == {"vm-92"}
    assert reasons(found)["desktop-01"] == "esx-01 is in maintenance mode, or does not tell"


@pytest.mark.parametrize("connected", [False, None])
def test_a_host_that_may_not_be_connected_is_left_alone(connected: bool | None) -> None:
    world = small_world()
    world.hosts["host-1"] = replace(world.hosts["host-1"], connected=connected)
    found = plan(world)
    assert {step.vm for step in found.steps} == {"vm-92"}
    assert reasons(found)["desktop-01"] == "its host is not connected, or not known"


def test_a_pool_that_is_not_parked_gives_nothing() -> None:
    found = plan(small_world(), replace(POLICY, pools=(replace(POOL, parked=False),)))
    assert suspended(found) == set()
    assert reasons(found)["desktop-01"] == "pool all is not declared parked"


def test_what_a_policy_does_not_mean_is_warned_of() -> None:
    mistyped = Pool(
        name="mistyped", select=Selector(folder="desktop"), idle=IdleRule(500), parked=True, owner=Mark("o")
    )
    resting = replace(POOL, name="resting", parked=False)
    policy = replace(POLICY, pools=(resting, mistyped), ml=(QueuedVm("no-such-ml"),))
    assert plan(small_world(), policy).warnings == (
        "pool resting: `parked: false`, so none of its desktops is taken",
        "pool mistyped: no VM is in it",
        "ML queue: no VM 'no-such-ml' in this vCenter",
    )


def test_both_keys_turn_or_nothing_is_taken() -> None:
    policy = replace(POLICY, pools=(replace(POOL, owner=Mark("gpuops.owner", "cad")),))
    world = small_world()
    world.set("vm-1", attributes={"gpuops.owner": "cad"})
    world.set("vm-2", attributes={"gpuops.owner": "cad", "gpuops.opt-out": "demo tomorrow"})
    found = plan(world, policy)
    assert reasons(found)["desktop-01"] == "idle; no VM of the queue needs its GPU"
    assert reasons(found)["desktop-02"] == "opted out (attribute gpuops.opt-out)"
    assert reasons(found)["desktop-03"] == "its owner has not agreed (attribute gpuops.owner = cad)"
    assert found.warnings == ()


def test_a_tag_that_was_not_read_is_not_an_agreement() -> None:
    policy = replace(POLICY, pools=(replace(POOL, owner=Mark(tag="owner:cad")),), opt_out=Mark(tag="gpu:keep"))
    world = small_world()
    world.set("vm-1", tags=("owner:cad",))
    world.set("vm-2", tags=("owner:cad", "gpu:keep"))
    found = plan(world, policy)
    assert reasons(found)["desktop-01"] == "idle; no VM of the queue needs its GPU"
    assert reasons(found)["desktop-02"] == "opted out (tag gpu:keep)"
    assert reasons(found)["desktop-03"] == "tag gpu:keep cannot be read"
    unread = replace(policy, opt_out=Mark("gpuops.opt-out"))
    assert reasons(plan(world, unread))["desktop-03"] == "its owner has not agreed (tag owner:cad)"


def test_the_floor_keeps_the_busiest() -> None:
    world = small_world()
    world.set("vm-1", cpu_usage_mhz=400)
    found = plan(world, replace(POLICY, pools=(replace(POOL, floor=1),)))
    assert reasons(found)["desktop-01"] == "floor: 1 of pool all stay running"
    assert suspended(found) == {"vm-3", "vm-4", "vm-5"}


def test_a_desktop_on_its_way_into_suspend_does_not_count_towards_the_floor() -> None:
    world, kept = small_world(), "floor: 4 of pool all stay running"
    policy = replace(POLICY, pools=(replace(POOL, floor=4),))
    assert list(reasons(plan(world, policy)).values()).count(kept) == 4
    world.set("vm-1", tasks=(RunningTask("task-1", "SuspendVM_Task", "running"),), question="Is the disk full?")
    found = reasons(plan(world, policy))
    assert [found[f"desktop-0{number}"] for number in (2, 3, 4, 5)] == [kept] * 4


def test_no_space_for_the_suspend_file_keeps_the_desktop() -> None:
    world = small_world()
    needed = round(1.1 * (16384 + 24576))
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=needed + 199, accessible=True)
    found = plan(world)
    assert reasons(found)["desktop-01"] == f"datastore ssd: its suspend file needs {needed} MiB, {needed + 199} free"
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=needed + 200, accessible=True)
    assert reasons(plan(world))["desktop-02"].startswith("datastore ssd: its suspend file needs"), "one fits, not two"
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=None, accessible=True)
    assert reasons(plan(world))["desktop-01"] == "the free space of datastore ssd is unknown"
    for accessible in (False, None):
        world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=10 * needed, accessible=accessible)
        assert reasons(plan(world))["desktop-01"] == "the free space of datastore ssd is unknown"


def test_space_kept_for_a_suspend_file_stays_kept_when_the_file_takes_less() -> None:
    """Or a second run of the same night would find room for one more."""
    world = small_world()
    state = 16384 + 24576
    needed = round(1.1 * state)
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=2 * needed + 199, accessible=True)
    assert reasons(plan(world))["desktop-02"].startswith("datastore ssd: its suspend file needs"), "one fits, not two"
    tonight = (taken(NIGHT, world.vms["vm-1"]),)
    world.set("vm-1", tasks=(RunningTask("task-1", "SuspendVM_Task", "running"),))
    assert reasons(plan(world, originals=tonight))["desktop-02"].startswith("datastore ssd"), "it is being written"
    world.set("vm-1", tasks=())
    world._set_power("vm-1", PowerState.SUSPENDED)
    world.datastores["ds-1"] = Datastore("ds-1", "ssd", free_mib=2 * needed + 199 - state, accessible=True)
    assert reasons(plan(world, originals=tonight))["desktop-02"].startswith("datastore ssd"), "it is written"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"power": PowerState.ON}, "runs already"),
        ({"power": PowerState.SUSPENDED}, "is not powered off (suspended)"),
        ({"power": None}, "is not powered off (its power state cannot be read)"),
        ({"connected": False}, "cannot be read whole, or is not connected"),
        ({"unreadable": ("rootSnapshot",)}, "cannot be read whole, or is not connected"),
        ({"tasks": (RunningTask("task-1", "Clone", "queued"),)}, "a task is queued: Clone"),
    ],
)
def test_an_ml_vm_that_cannot_start_costs_no_desktop(changes: dict[str, object], reason: str) -> None:
    world = small_world()
    world.set("vm-91", **changes)
    found = plan(world)
    assert reasons(found)["ml-01"] == reason
    assert suspended(found) == set()


def test_an_ml_vm_that_does_not_fit_costs_no_desktop() -> None:
    world = small_world()
    world.set("vm-1", cpu_usage_mhz=4000)
    world.set("vm-3", console_connections=2)
    found = plan(world)
    assert suspended(found) == set()
    assert reasons(found)["ml-01"].startswith("does not fit: ")
    assert {step.vm for step in found.steps} == {"vm-92"}


def test_an_unknown_name_in_the_queue_does_not_stop_the_night() -> None:
    found = plan(small_world(), replace(POLICY, ml=(QueuedVm("ml-99"), QueuedVm("ml-01"))))
    assert reasons(found)["ml-99"].startswith("no VM 'ml-99' in this vCenter")
    assert suspended(found) == {"vm-1", "vm-2"}


def test_a_vm_that_is_named_twice_starts_once_and_that_is_said() -> None:
    policy = replace(POLICY, ml=(QueuedVm("ml-01"), QueuedVm("moid:vm-91")))
    found = plan(small_world(), policy)
    assert [step.vm for step in found.steps if isinstance(step, PowerOnVm)] == ["vm-91"]
    assert found.warnings == ("ML queue: moid:vm-91 is ml-01, which is in the queue already",)


def test_a_vm_that_may_move_goes_where_it_costs_no_desktop() -> None:
    found = plan(small_world(), replace(POLICY, ml=(QueuedVm("ml-01", relocate=True),)))
    assert suspended(found) == set()
    assert [step for step in found.steps if not isinstance(step, SetAttribute)] == [
        RelocateVm("vm-91", "host-2"),
        PowerOnVm("vm-91", "host-2"),
    ]
    assert reasons(found)["ml-01"] == "starts on esx-02: there is room without any desktop, after a cold move"


@pytest.mark.parametrize("key", ["pciPassthru0.cfg.gpu-pci-id", "numa.nodeAffinity"])
def test_a_vm_bound_to_its_host_is_not_moved_by_a_night(key: str) -> None:
    """Its pin or its node would mean another GPU or node there; the one-desktop way on its own host stays open."""
    world = small_world()
    value = "0" if key.startswith("numa") else "0000:3b:00.0"
    world.set("vm-91", extra_config={**(world.vms["vm-91"].extra_config or {}), key: value})
    found = plan(world, replace(POLICY, ml=(QueuedVm("ml-01", relocate=True),)))
    assert not any(isinstance(step, RelocateVm) for step in found.steps)


def test_an_empty_queue_suspends_nothing() -> None:
    found = plan(small_world(), replace(POLICY, ml=()))
    assert found.steps == ()
    assert "the ML queue is empty: no desktop is suspended for nothing" in found.because


def test_outside_the_window_the_night_is_refused() -> None:
    found = plan(small_world(), now=datetime(2026, 11, 21, 6, 0, tzinfo=UTC))
    assert not found.feasible
    [rejection] = found.rejections
    assert str(rejection) == (
        "small: outside the window: it is 2026-11-21 06:00 UTC, the next night is from 2026-11-21 20:00 to 06:00"
    )


def taken(night: str, vm: Vm, *, returned: bool = False) -> Original:
    return Original(night, Role.DESKTOP, vm.ref, vm.instance_uuid, vm.name, vm.host, vm.profiles, True, returned)


def test_an_earlier_night_that_is_not_over_refuses_the_next() -> None:
    world = small_world()
    world._set_power("vm-1", PowerState.SUSPENDED)
    found = plan(world, originals=(taken("2026-11-19", world.vms["vm-1"]),))
    assert [str(rejection) for rejection in found.rejections] == [
        "night 2026-11-19: is not over: desktop-01 not back yet"
    ]
    assert found.rejections[0].hint.startswith("gpuops rotate day ends it")
    world.set("vm-1", attributes={"gpuops.rotation": "2026-11-19 desktop"})
    assert not plan(world).feasible, "the marker alone says so too"


def test_an_open_night_is_one_line_however_much_it_took() -> None:
    world = small_world()
    for number in range(1, 6):
        world._set_power(f"vm-{number}", PowerState.SUSPENDED)
    found = plan(world, originals=tuple(taken("2026-11-19", world.vms[f"vm-{number}"]) for number in range(1, 6)))
    assert [str(rejection) for rejection in found.rejections] == [
        "night 2026-11-19: is not over: desktop-01, desktop-02, desktop-03 and 2 more not back yet"
    ]


def test_a_desktop_that_came_back_by_itself_is_left_alone_for_the_night() -> None:
    world = small_world()
    found = plan(world, originals=(taken(NIGHT, world.vms["vm-1"]),))
    assert reasons(found)["desktop-01"] == "came back by itself tonight: left alone"
    assert suspended(found) == {"vm-3", "vm-4", "vm-5"}


def test_an_ml_vm_that_was_started_tonight_and_is_off_again_is_left_alone() -> None:
    world = small_world()
    started = replace(taken(NIGHT, world.vms["vm-91"]), role=Role.ML)
    found = plan(world, originals=(started,))
    assert reasons(found)["ml-01"] == "was started tonight and is off again: left alone"
    assert suspended(found) == set(), "no desktop gives way to it"
    assert [step.vm for step in found.steps if isinstance(step, PowerOnVm)] == ["vm-92"]


@pytest.mark.parametrize("change", [{"taken": False}, {"night": "2026-11-19"}])
def test_an_ml_vm_that_never_was_started_tonight_is_not_left_alone(change: dict[str, object]) -> None:
    world = small_world()
    known = replace(taken(NIGHT, world.vms["vm-91"]), role=Role.ML, **change)  # type: ignore[arg-type]
    assert "vm-91" in {step.vm for step in plan(world, originals=(known,)).steps if isinstance(step, PowerOnVm)}


def test_an_ml_vm_whose_start_may_still_come_is_not_started_again() -> None:
    world = small_world()
    lost = replace(taken(NIGHT, world.vms["vm-91"]), role=Role.ML, unsure=True)
    assert reasons(plan(world, originals=(lost,)))["ml-01"].startswith("may still be changed")


def test_a_pool_whose_desktops_come_back_by_themselves_is_left_alone() -> None:
    world = small_world()
    two = tuple(taken(NIGHT, world.vms[f"vm-{number}"]) for number in (1, 2))
    assert suspended(plan(world, originals=two)), "two are no pattern"
    found = plan(world, originals=(*two, taken(NIGHT, world.vms["vm-3"])))
    assert suspended(found) == set()
    assert reasons(found)["desktop-03"] == "came back by itself tonight: left alone"
    assert reasons(found)["desktop-04"] == (
        "3 desktops of its pool came back by themselves tonight: no more of it are taken"
    )


def test_a_desktop_that_was_marked_and_not_taken_may_still_be_taken() -> None:
    world = small_world()
    world.set("vm-1", attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    known = replace(taken(NIGHT, world.vms["vm-1"]), taken=False)
    assert "vm-1" in suspended(plan(world, originals=(known,)))


def test_one_window_is_one_night() -> None:
    world = small_world()
    found = plan(world, originals=(taken(NIGHT, world.vms["vm-1"], returned=True),))
    assert found.steps == ()
    assert found.because == (f"night {NIGHT} is over: its morning has begun",)
    tomorrow = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
    assert plan(world, originals=(taken(NIGHT, world.vms["vm-1"], returned=True),), now=tomorrow).steps


def test_without_a_window_an_open_night_goes_on_and_a_closed_one_does_not() -> None:
    policy = replace(POLICY, windows=())
    world = small_world()
    assert RotateNight(policy).night(world.snapshot(), EVENING) == "2026-11-20T21:00Z"
    world._set_power("vm-1", PowerState.SUSPENDED)
    open_night = (taken("2026-11-20T19:00Z", world.vms["vm-1"]),)
    assert RotateNight(policy, open_night).night(world.snapshot(), EVENING) == "2026-11-20T19:00Z"
    assert plan(world, policy, open_night).feasible
    assert "vm-1" not in suspended(plan(world, policy, open_night))


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
    served = serve(waiting(POLICY, now)[:1], desktops, now, room, lambda desktops: (never,) if desktops else ())
    assert served.starts == ()
    assert [choice.reason for choice in served.choices] == [f"its desktops could not come back: {never}"]
    assert serve(waiting(POLICY, now)[:1], desktops, now, room, lambda desktops: ()).desktops == tuple(desktops)


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
    catalog = load(profiles=[*SLOTS, "grid_a100-40c"])
    found = RotateNight(replace(POLICY, ml=(QueuedVm("ml-02"),))).plan(world.snapshot(), catalog, EVENING)
    assert found.steps == ()
    assert "whether it is in MIG mode is not known" in reasons(found)["ml-02"]
    told = replace(a100, vgpu_mode=VgpuMode.SAME_SIZE)
    world.hosts["host-2"] = replace(world.hosts["host-2"], gpus=(told,))
    found = RotateNight(replace(POLICY, ml=(QueuedVm("ml-02"),))).plan(world.snapshot(), catalog, EVENING)
    assert PowerOnVm("vm-92", "host-2") in found.steps
