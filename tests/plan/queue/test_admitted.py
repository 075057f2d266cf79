"""What `place` answers comes true: started in any order the plan allows, every VM is admitted by the simulated hosts.

`make long` looks at many more worlds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.vm import PowerState, Vm, pin_key
from gpuops.model.workloads.workload import Vgpus, Workload
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue import place
from gpuops.plan.queue.one_workload import Placed, Refusal, Steering
from gpuops.plan.queue.place import Place, Placements
from gpuops.plan.queue.workload_hosts import running, vm_of
from tests.plan.small_vcenter import SmallVcenter
from tests.plan.snapshots import FIRST, FOURTH, SECOND, THIRD, catalog, gpu, host, inventory, vm, whole
from tests.plan.test_properties import PROFILES

QUICK = settings(max_examples=12, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=300, suppress_health_check=list(HealthCheck))
MIG = VgpuMode.MULTI_INSTANCE
MODELS = [*PROFILES, ("a40", VgpuMode.MIXED_SIZE)]


SHARED = ("rtx-pro-6000", MIG)
"""Several vGPUs share a GPU instance of it."""
SHARING = [f"nvidia_rtx_pro_6000_blackwell_dc-{name}" for name in ("1-3q", "1-3a", "1-12q", "1-24c", "2-24q", "2-48q")]


def names(model: tuple[str, VgpuMode]) -> list[str]:
    return SHARING if model == SHARED else PROFILES.get(model) or PROFILES["a40", VgpuMode.SAME_SIZE]


@st.composite
def vcenters(draw: st.DrawFn, *, shared: bool = False) -> SmallVcenter:
    """Up to two hosts, some with GPUs of several modes and whole ones; some VMs run, some are suspended.

    Some have several vGPUs, of one profile or not, and some of these are pinned. With `shared`, vGPUs share GPU
    instances, and more VMs started than run now.
    """
    hosts = []
    for number in range(1, draw(st.integers(1, 2)) + 1):
        model = SHARED if shared else draw(st.sampled_from(MODELS))
        gpus = [gpu(FIRST, model[0], 0, model[1]), gpu(SECOND, model[0], 1, model[1])]
        if draw(st.booleans()):
            board = draw(st.sampled_from(["a40", "l40s"]))
            gpus.append(gpu(THIRD, board, 1, VgpuMode.SAME_SIZE))
        gpus.append(whole(FOURTH, "t4", 0))
        policy = draw(st.sampled_from(list(AssignmentPolicy)))
        hosts.append(replace(host(f"esx-{number}", *gpus), assignment_policy=policy))
    world = SmallVcenter({esx.ref: esx for esx in hosts})
    for number in range(draw(st.integers(0, 30 if shared else 6))):
        on = draw(st.sampled_from(hosts))
        offered = [offer.name for offer in on.profiles or ()]
        profiles = [draw(st.sampled_from(offered)) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
        devices = [f"vgpu {profile}" for profile in profiles]
        drawn_vm = vm(number + 1, f"vm-{number + 1}", on.name.removeprefix("esx-"), *devices, memory_mib=8192)
        if draw(st.integers(0, 3)) == 0:
            pins = {pin_key(ordinal): draw(st.sampled_from([FIRST, SECOND])) for ordinal in range(len(profiles))}
            drawn_vm = replace(drawn_vm, extra_config=pins)
        if not world.start(replace(drawn_vm, memory_reservation_mib=8192)) and draw(st.integers(0, 3)) == 0:
            world.suspend(world.vms[drawn_vm.ref])
    for ref in draw(st.sets(st.sampled_from([*world.running, ""]))) - {""} if shared else ():
        del world.running[ref], world.vms[ref]
    return world


@st.composite
def requests(draw: st.DrawFn, world: SmallVcenter) -> tuple[Workload, ...]:
    offered = sorted({offer.name for esx in world.hosts.values() for offer in esx.profiles or ()})
    known_names = [name for name in offered if any(name in names(model) for model in (*MODELS, SHARED))]
    drawn = []
    for number in range(draw(st.integers(1, 7))):
        whole_gpu = draw(st.integers(0, 5)) == 0
        mixed = not whole_gpu and draw(st.integers(0, 5)) == 0
        drawn.append(
            Workload(
                f"w-{number}",
                4,
                8192,
                profile=None if whole_gpu else draw(st.sampled_from(known_names or offered)),
                count=1 if whole_gpu else draw(st.sampled_from([1, 1, 1, 2])),
                gpus=int(whole_gpu),
                numa=draw(st.sampled_from(list(NumaPolicy))),
                priority=draw(st.integers(0, 1)),
                more=(Vgpus(draw(st.sampled_from(known_names or offered))),) if mixed else (),
            )
        )
    return tuple(drawn)


def order_of_start(placements: Placements, draws: st.DataObject) -> list[Placed | Vm]:
    """Any order that the plan allows: where it says `listed order`, that, and suspended VMs of the host come after."""
    listed = {p.placement.host.ref for p in placements.placed if p.steering is Steering.LISTED_ORDER}
    back: list[Vm] = [claim.vm for claim in placements.claims if not claim.lost]
    free: list[Placed | Vm] = [p for p in placements.placed if p.steering is not Steering.LISTED_ORDER]
    free += [returning for returning in back if returning.host not in listed]
    shuffled = list(draws.draw(st.permutations(free)))
    for placed in (p for p in placements.placed if p.steering is Steering.LISTED_ORDER):
        shuffled.insert(draws.draw(st.integers(_after_listed(shuffled, placed), len(shuffled))), placed)
    return [*shuffled, *draws.draw(st.permutations([returning for returning in back if returning.host in listed]))]


def _after_listed(order: list[Placed | Vm], placed: Placed) -> int:
    """The first position behind the earlier ones of its host that are started in turn."""
    positions = [
        number
        for number, start in enumerate(order)
        if isinstance(start, Placed)
        and start.steering is Steering.LISTED_ORDER
        and start.placement.host.ref == placed.placement.host.ref
    ]
    return max(positions, default=-1) + 1


def come_true(draws: st.DataObject, *, optimize: bool = False, shared: bool = False) -> None:
    world = draws.draw(vcenters(shared=shared))
    request = Place(
        draws.draw(requests(world)),
        pin=draws.draw(st.sampled_from([PinPolicy.AUTO, PinPolicy.AUTO, PinPolicy.NEVER])),
        suspended=draws.draw(st.sampled_from(list(SuspendedPolicy))),
        optimize=optimize,
    )
    placements = request.placements(world.inventory(inventory([], [])), catalog())
    # A plan that names what it is not certain of is not held to it.
    assume(not placements.doubts and not any(placed.placement.doubts for placed in placements.placed))
    order = order_of_start(placements, draws)
    alone = SmallVcenter(world.hosts, dict(world.vms), dict(world.running))
    # Two suspended VMs may keep each other out, whatever is planned beside them.
    assume(not any(alone.start(start) for start in order if isinstance(start, Vm)))
    for starting in order:
        vm = starting if isinstance(starting, Vm) else running(starting.vm, starting.placement, starting.workload.numa)
        assert world.start(vm) == "", [e.name if isinstance(e, Vm) else describe(e) for e in order]


def describe(placed: Placed) -> str:
    seats = " ".join(map(str, placed.placement.seats.values()))
    return f"{placed.workload.name} {placed.workload.profile} {placed.placement.host.name} {seats} {placed.steering}"


@QUICK
@given(st.data())
def test_every_order_that_the_plan_allows_is_admitted(draws: st.DataObject) -> None:
    come_true(draws)


@pytest.mark.long
@LONG
@given(st.data())
def test_every_order_that_the_plan_allows_is_admitted_in_many_worlds(draws: st.DataObject) -> None:
    come_true(draws)


@QUICK
@given(st.data())
def test_every_order_is_admitted_where_vgpus_share_gpu_instances(draws: st.DataObject) -> None:
    come_true(draws, shared=True)


@pytest.mark.long
@LONG
@given(st.data())
def test_every_order_is_admitted_where_vgpus_share_gpu_instances_in_many_worlds(draws: st.DataObject) -> None:
    come_true(draws, shared=True)


def a100_with_two_suspended() -> SmallVcenter:
    """One 1-10c runs on the first of two A100 in MIG mode, a 2-10c and a 1-10c are suspended."""
    esx = host("esx-1", gpu(FIRST, "a100", 0, MIG), gpu(SECOND, "a100", 1, MIG))
    world = SmallVcenter({esx.ref: esx})
    for number, profile in enumerate(("1-10c", "2-10c", "1-10c"), 1):
        suspended_vm = vm(number, f"vm-{number}", "1", f"vgpu grid_a100-{profile}", memory_mib=8192)
        assert world.start(replace(suspended_vm, memory_reservation_mib=8192)) == ""
    for ref in ("vm-2", "vm-3"):
        world.suspend(world.vms[ref])
    return world


def test_suspended_vms_come_back_in_any_order_or_it_is_said() -> None:
    """The first to come back takes the start that the other needs: only vm-2 before vm-3 ends well."""
    world = a100_with_two_suspended()
    snapshot = world.inventory(inventory([], []))
    batch = [Workload(f"w-{n}", 4, 8192, f"grid_a100-{p}") for n, p in enumerate(("1-10c", "1-10c", "3-20c"))]
    placements = Place(tuple(replace(workload, numa=NumaPolicy.REQUIRED) for workload in batch)).placements(
        snapshot, catalog()
    )
    assert [len(placements.placed), {placed.steering for placed in placements.placed}] == [3, {Steering.LISTED_ORDER}]
    assert placements.doubts == ("vm-2 (suspended) may find no GPU on esx-1 when it comes back after vm-3",)
    for placed_vm in placements.placed:
        assert world.start(running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa)) == ""
    assert world.start(world.vms["vm-3"]) == ""
    assert "no GPU instance left" in world.start(world.vms["vm-2"])
    # A smaller request leaves room for both, in either order.
    assert Place(tuple(batch[:2])).placements(snapshot, catalog()).doubts == ()


def test_a_suspended_vm_that_is_pinned_keeps_its_gpu() -> None:
    """Alike as they are: the new one must not be left to choose, for it would take its slot. Pinned both, any order
    does."""
    esx = host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1))
    world = SmallVcenter({esx.ref: esx})
    back = replace(vm(1, "back", "1", "vgpu nvidia_a40-48q"), extra_config={pin_key(0): FIRST})
    assert world.start(back) == ""
    world.suspend(world.vms[back.ref])
    placements = Place((Workload("new", 4, 8192, "a40-48q"),)).placements(world.inventory(inventory([], [])), catalog())
    (placed,) = placements.placed
    assert (placed.steering, str(placed.placement.pins[0]), placements.doubts) == (Steering.PINNED, SECOND, ())
    assert world.start(world.vms[back.ref]) == ""
    assert world.start(running(placed.vm, placed.placement, placed.workload.numa)) == ""


@pytest.mark.parametrize(
    ("gpus", "sizes", "steering"),
    [
        (3, ("8q", "24q"), Steering.ANY_ORDER),  # three sizes, and a GPU for each
        (2, ("24q", "24q"), Steering.LISTED_ORDER),  # the one that comes back may lock the GPU that both are to have
    ],
)
def test_the_order_of_power_on_is_said_only_where_one_can_hurt(
    gpus: int, sizes: tuple[str, ...], steering: Steering
) -> None:
    esx = host("esx-1", *(gpu(address, "a40", 0) for address in (FIRST, SECOND, THIRD)[:gpus]))
    asleep = vm(1, "back", "1", "vgpu nvidia_a40-12q", power=PowerState.SUSPENDED)
    requests = tuple(Workload(f"w-{n}", 4, 8192, f"a40-{size}") for n, size in enumerate(sizes))
    placements = Place(requests).placements(inventory([esx], [asleep]), catalog())
    assert ({placed.steering for placed in placements.placed}, placements.doubts) == ({steering}, ())


def test_what_is_pinned_may_start_at_any_time_where_what_comes_back_cannot_take_its_gpu() -> None:
    """The GPUs of the new VMs hold others of their sizes: a 12q finds room on the third alone."""
    esx = host("esx-1", *(gpu(address, "a40", 0) for address in (FIRST, SECOND, THIRD)))
    world = SmallVcenter({esx.ref: esx})
    for number, (address, size) in enumerate(((FIRST, "8q"), (SECOND, "24q")), 1):
        suspended_vm = vm(number, f"vm-{number}", "1", f"vgpu nvidia_a40-{size}", memory_mib=8192)
        assert world.start(replace(suspended_vm, extra_config={pin_key(0): address})) == ""
    asleep = vm(3, "back", "1", "vgpu nvidia_a40-12q", power=PowerState.SUSPENDED, memory_mib=8192)
    snapshot = world.inventory(inventory([], []))
    requests = (Workload("small", 4, 8192, "a40-8q"), Workload("large", 4, 8192, "a40-24q"))
    placements = Place(requests).placements(replace(snapshot, vms={**snapshot.vms, asleep.ref: asleep}), catalog())
    assert [placed.steering for placed in placements.placed] == [Steering.PINNED, Steering.PINNED]
    new = [running(placed.vm, placed.placement, placed.workload.numa) for placed in placements.placed]
    for order in permutations([asleep, *new]):
        trial = SmallVcenter(world.hosts, dict(world.vms), dict(world.running))
        assert [trial.start(starting) for starting in order] == ["", "", ""]


def test_in_turn_are_only_those_whose_gpu_an_order_can_spoil() -> None:
    """A 3g that starts first takes the one start of the 4g beside it; the 1g on the other GPU lie anyhow."""
    esx = host("esx-1", gpu(FIRST, "a100", 0, MIG), gpu(SECOND, "a100", 1, MIG))
    world = SmallVcenter({esx.ref: esx})
    profiles = ("4-20c", "3-20c", "1-5c", "1-5c")
    batch = tuple(Workload(f"w-{n}", 4, 8192, f"grid_a100-{profile}") for n, profile in enumerate(profiles))
    placements = Place(batch).placements(world.inventory(inventory([], [])), catalog())
    in_turn = [placed.workload.name for placed in placements.placed if placed.steering is Steering.LISTED_ORDER]
    assert in_turn == ["w-0", "w-1"]
    for order in permutations(placements.placed):
        trial = SmallVcenter(world.hosts)
        new = [running(placed.vm, placed.placement, placed.workload.numa) for placed in order]
        refused = [refusal for starting in new if (refusal := trial.start(starting))]
        names = [placed.workload.name for placed in order if placed.workload.name in in_turn]
        assert bool(refused) == (names != in_turn), (refused, names)


def test_orders_that_are_too_many_to_follow_are_prescribed(mocker: MockerFixture) -> None:
    esx = host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1))
    asleep = [vm(n, f"back-{n}", "1", "vgpu nvidia_a40-8q", power=PowerState.SUSPENDED) for n in (1, 2)]
    request = Place((Workload("new", 4, 8192, "a40-8q", numa=NumaPolicy.REQUIRED),))
    assert [placed.steering for placed in request.placements(inventory([esx], asleep), catalog()).placed] == [
        Steering.PINNED
    ]
    mocker.patch.multiple(place, _MAX_WAYS=1, _MIN_WAYS_PER_GROUP=1)
    assert [placed.steering for placed in request.placements(inventory([esx], asleep), catalog()).placed] == [
        Steering.LISTED_ORDER
    ]


def test_a_device_of_a_suspended_vm_that_the_host_may_give_away_is_said() -> None:
    esx = host("esx-1", whole(FIRST, "t4"), whole(SECOND, "t4"))
    back = vm(1, "back", "1", f"directpath {FIRST}", power=PowerState.SUSPENDED)
    request = Place((Workload("new", 4, 8192, gpus=1),))
    placements = request.placements(inventory([esx], [back]), catalog())
    assert [str(placed.placement.seats[0]) for placed in placements.placed] == [SECOND]
    warning = f"esx-1 may give new the GPU {FIRST} of back (suspended)"
    rule = f"{warning}; to prevent that, attach {SECOND} with gpuops attach --device"
    assert placements.doubts == (rule,)
    assert request.placements(inventory([esx], []), catalog()).doubts == ()


def agree(draws: st.DataObject) -> None:
    """One request: a place is found exactly where some way to pin it would be admitted."""
    world = draws.draw(vcenters())
    (workload, *_) = draws.draw(requests(world))
    workload = replace(workload, numa=NumaPolicy.NONE, more=())
    assume(workload.profile is not None)
    snapshot = world.inventory(inventory([], []))
    (answer,) = Place((workload,), suspended=SuspendedPolicy.IGNORE).placements(snapshot, catalog()).answers
    devices = tuple(f"vgpu {workload.profile}" for _ in range(workload.count))
    pinned_vms = [
        replace(vm(90 + n, "w", "1", *devices), host=ref, memory_mib=workload.memory_mib)
        for n, ref in enumerate(world.hosts)
    ]
    possible = any(world.could_start(pinned_vm) for pinned_vm in pinned_vms)
    if isinstance(answer, Refusal):
        alone = any("the only vGPU of its VM" in str(rejection) for rejection in answer.rejections)
        # where a VM's unlike vGPUs are on several GPUs, vCenter does not tell which is where
        untold = any("vCenter does not report" in refusal.rule for refusal in answer.rejections)
        unlike = any(len({vgpu.type for vgpu in vgpus}) > 1 for vgpus in world.running.values())
        assert not possible or alone or (untold and unlike), answer.rejections
    else:
        assert possible or answer.placement.doubts, answer


@QUICK
@given(st.data())
def test_brute_force_agrees(draws: st.DataObject) -> None:
    agree(draws)


@pytest.mark.long
@LONG
@given(st.data())
def test_brute_force_agrees_in_many_worlds(draws: st.DataObject) -> None:
    agree(draws)


def test_the_simulated_hosts_do_refuse() -> None:
    """The judge can say no: a second size on a GPU, and memory that is not there."""
    esx = host("esx-1", gpu(FIRST, "a40"))
    world = SmallVcenter({esx.ref: esx})
    first = replace(vm_of(Workload("a", 4, 8192)), host=esx.ref)
    assert world.start(vm(1, "a", "1", "vgpu nvidia_a40-8q")) == ""
    assert "locked to" in world.start(vm(2, "b", "1", "vgpu nvidia_a40-24q"))
    assert "no memory" in world.start(replace(first, memory_mib=10**6))
