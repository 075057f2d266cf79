"""The cases in `cases/place/`: workloads and a snapshot in, places and reasons out; and what never happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.stored import to_stored
from gpuops.model.stored_json import decode_stored
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory, ProfileCapacity, Reservations
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.plan.placement.project import take
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed, Refusal, Steering
from gpuops.plan.queue.place import Place, Placements
from gpuops.plan.queue.workload_hosts import framebuffer_mib, running
from gpuops.sim.state.gpu_admission import NotAdmitted, VgpuPolicy, WantedVgpu, admit
from tests.bench.placement.batch_fleets import FLEETS, Fleet, batch
from tests.plan.case import Case, cases, rejection_line, snapshot
from tests.plan.small_vcenter import SmallVcenter
from tests.plan.snapshots import CORES, FIRST, MEMORY_MIB, SECOND, THIRD, catalog, gpu, host, inventory, lab, vm, whole
from tests.plan.test_properties import FAST, NAMES, fleets, overfull
from tests.sample import mostly_long

ALL = list(cases("place"))
SMALL = {"vcpus": 4, "memory_mib": 16 * 1024}


def workload(name: str, **fields: Any) -> Workload:
    device = [to_stored(PciAddress.parse(address)) for address in fields.pop("device", ())]
    return decode_stored(Workload, {**SMALL, "name": name, "device": device, **fields})


def describe_answer(answer: Placed | Refusal, expected: Any) -> Any:
    """As the case tells it: `esx-01 0000:3b:00.0 numa0`, or every reason."""
    if isinstance(answer, Placed):
        placement = answer.placement
        gpus = " ".join(
            f"{address}{' pinned' if placement.pins.get(ordinal) == address else ''}"
            for ordinal, address in sorted(placement.seats.items())
        )
        node = "" if placement.numa_node is None else f" numa{placement.numa_node}"
        return f"{placement.host.name} {gpus}{node}"
    reasons = list(expected) if isinstance(expected, list) else []
    lines = [
        rejection_line(rejection, reasons[n] if n < len(reasons) else "")
        for n, rejection in enumerate(answer.rejections)
    ]
    return [*lines, *([f"nearest: {answer.nearest}"] if answer.nearest else [])]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_case(case: Case) -> None:
    fields_of_workloads: Mapping[str, Any] = case.request["place"]
    workloads = tuple(workload(name, **fields) for name, fields in fields_of_workloads.items())
    # Most cases are about other things than the suspended desktop of the lab.
    suspended = SuspendedPolicy(str(case.request.get("suspended", "ignore")))
    pin = PinPolicy(str(case.request.get("pin", "auto")))
    request = Place(workloads, explain="choices" in case.expect, pin=pin, suspended=suspended)
    placements = request.placements(snapshot(case), catalog())
    expect = dict(case.expect)
    places = expect.pop("places")
    assert {a.workload.name: describe_answer(a, places.get(a.workload.name)) for a in placements.answers} == places
    assert [answer.workload.name for answer in placements.answers] == list(places), "the order of placing"
    warnings = [line for placed in placements.placed for line in placed.warnings]
    assert [*warnings, *placements.warnings] == expect.pop("warnings", [])
    if "start" in expect:
        assert {placed.workload.name: placed.steering.value for placed in placements.placed} == expect.pop("start")
    assert placements.exit_code == (3 if any(isinstance(text, list) for text in places.values()) else 0)
    if "choices" in expect:
        marks = {(True, True): "+", (False, True): "=", (False, False): "-"}
        lines = [
            f"{marks[c.chosen, c.feasible]} {c.subject}: {c.reason}" for a in placements.answers for c in a.choices
        ]
        assert lines == expect.pop("choices")
    assert not expect, f"unknown expectations: {expect}"


def test_two_requests_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two requests are named 'a'"):
        Place((workload("a", profile="a40-8q"), workload("a", gpus=1)))


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Workload, ...]:
    words = st.sampled_from([None, None, "x", "y"])
    drawn = []
    for number in range(draw(st.integers(1, 8))):
        whole_gpu = draw(st.integers(0, 4)) == 0
        drawn.append(
            Workload(
                name=f"w-{number}",
                vcpus=draw(st.sampled_from([1, CORES, CORES + 1, 99])),
                memory_mib=draw(st.sampled_from([4096, MEMORY_MIB // 2, MEMORY_MIB - 4096, 2 * MEMORY_MIB])),
                profile=None if whole_gpu else draw(st.sampled_from([*NAMES, "nonsense"])),
                count=1 if whole_gpu else draw(st.integers(1, 3)),
                gpus=draw(st.integers(1, 2)) if whole_gpu else 0,
                numa=draw(st.sampled_from(list(NumaPolicy))),
                host=draw(st.sampled_from([None, None, "esx-1", "*", "other"])),
                affinity=draw(words),
                anti_affinity=draw(words),
                spread=draw(words),
                priority=draw(st.integers(-1, 1)),
            )
        )
    return tuple(drawn)


def with_whole(world: Inventory) -> Inventory:
    """The fleet with a device in passthrough on each node of each host."""
    hosts = (
        replace(esx, gpus=(*esx.gpus, whole(THIRD, "l40s", 0), whole("0000:af:00.0", "l40s", 1)))
        for esx in world.hosts.values()
    )
    return world.with_hosts(hosts)


def after(placements: Placements, driver_catalog: Catalog | None = None) -> Inventory:
    """The snapshot with every placed workload running, started in the order of placing."""
    world = placements.before
    for placed in placements.placed:
        world = take(running(placed.vm, placed.placement, placed.workload.numa), world, driver_catalog or catalog())
    return world


def find_overcommitment(world: Inventory, placements: Placements) -> list[str]:
    """Hosts, NUMA nodes and whole devices that were promised more than once."""
    lines = []
    for esx in world.hosts.values():
        on = [vm for vm in world.vms_on(esx) if vm.power is PowerState.ON]
        new = {placed.vm.ref for placed in placements.placed}
        if any(vm.ref in new for vm in on) and sum(vm.memory_reservation_mib or 0 for vm in on) > esx.memory_mib:  # type: ignore[operator]
            lines.append(f"{esx.name}: memory")
        for node in esx.numa_nodes:
            bound = [vm for vm in on if (vm.extra_config or {}).get(AFFINITY_KEY) == str(node.id)]
            if sum(vm.memory_mib or 0 for vm in bound) > node.memory_mib:
                lines.append(f"{esx.name} numa{node.id}: memory")
        bound_gpus = [binding.address for binding in esx.bindings]
        if len(bound_gpus) != len(set(bound_gpus)):
            lines.append(f"{esx.name}: a device given twice")
    return lines


@pytest.mark.long
@FAST
@given(st.data())
def test_nothing_is_promised_twice(draws: st.DataObject) -> None:
    world = with_whole(draws.draw(fleets()))
    placements = Place(draws.draw(workloads())).placements(world, catalog())
    then = after(placements)
    assert [line for esx in then.hosts.values() for line in overfull(esx, then)] == []
    assert find_overcommitment(then, placements) == []
    seats = [
        (placed.placement.host.ref, address)
        for placed in placements.placed
        if placed.workload.gpus
        for address in placed.placement.seats.values()
    ]
    assert len(seats) == len(set(seats))
    for placed in placements.placed:
        device_count = placed.workload.gpus or placed.workload.count
        assert len(placed.placement.seats) == device_count
        if placed.workload.numa is NumaPolicy.REQUIRED:
            nodes = {placed.placement.host.gpu(address).numa_node for address in placed.placement.seats.values()}  # type: ignore[union-attr]
            assert nodes == set(placed.placement.local_nodes)


@pytest.mark.long
@FAST
@given(st.data())
def test_groups_are_kept(draws: st.DataObject) -> None:
    world = with_whole(draws.draw(fleets()))
    batch = draws.draw(workloads())
    placements = Place(batch).placements(world, catalog())
    assert sorted(answer.workload.name for answer in placements.answers) == sorted(drawn.name for drawn in batch)
    hosts = {placed.workload.name: placed.placement.host.ref for placed in placements.placed}
    for word in ("x", "y"):
        together = [drawn.name for drawn in batch if drawn.affinity == word]
        assert len({hosts.get(name) for name in together}) <= 1, "all of them on one host, or none anywhere"
        apart = [hosts[drawn.name] for drawn in batch if drawn.anti_affinity == word and drawn.name in hosts]
        assert len(apart) == len(set(apart))
    for refusal in placements.refused:
        assert refusal.rejections, "a no has its reasons"


@pytest.mark.long
@FAST
@given(st.data())
def test_the_order_of_a_mapping_decides_nothing(draws: st.DataObject) -> None:
    world = with_whole(draws.draw(fleets()))
    batch = draws.draw(workloads())

    def said_of(inventory: Inventory, ask: tuple[Workload, ...]) -> list[Any]:
        placements = Place(ask, explain=True).placements(inventory, catalog())
        return [
            (
                answer.workload,
                describe_answer(answer, None),
                sorted(map(str, answer.choices)),
                getattr(answer, "warnings", ()),
            )
            for answer in placements.answers
        ]

    turned = replace(
        world, hosts=dict(reversed(list(world.hosts.items()))), vms=dict(reversed(list(world.vms.items())))
    )
    shuffled = draws.draw(st.permutations(batch))
    assert said_of(turned, tuple(shuffled)) == said_of(world, batch)


def test_the_checker_can_fail() -> None:
    """Two bound to one node that holds one of them, and a device held by two, are seen."""
    world = lab()
    placements = Place((workload("a", profile="a40-8q", memory_mib=MEMORY_MIB), workload("b", gpus=1))).placements(
        world, catalog()
    )
    first, second = placements.placed
    twin = replace(first, vm=replace(first.vm, ref="twin"))
    twice = replace(placements, answers=(first, twin, second, replace(second, vm=replace(second.vm, ref="other"))))
    then = after(twice)
    assert find_overcommitment(then, twice) == ["esx-02: memory", "esx-02 numa0: memory"]
    bound = replace(then.hosts["host-4"], bindings=(*then.hosts["host-4"].bindings, then.hosts["host-4"].bindings[-1]))
    assert "esx-04: a device given twice" in find_overcommitment(then.with_hosts([bound]), twice)


def test_the_smallest_whole_gpu_that_will_do_is_given() -> None:
    world = inventory([host("esx-1", whole(FIRST, "l40s"), whole(SECOND, "t4"), gpu(THIRD, "a40"))], [])
    (answer,) = Place((workload("a", gpus=1),)).placements(world, catalog()).placed
    assert list(map(str, answer.placement.seats.values())) == [SECOND]


def smaller_and_whole(board: str, mode: VgpuMode, seed: int) -> tuple[Inventory, tuple[Workload, ...]]:
    """Two hosts of two GPUs, and VMs by chance that ask for all of their memory."""
    gpus = (gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode))
    fleet = Fleet(board, mode)
    return inventory([host(f"esx-{n}", *gpus) for n in (1, 2)], []), batch(fleet, seed, gpus=4)


def memory_mib(placed: Iterable[Placed]) -> int:
    """Of those whose power-on cannot be refused."""
    return sum(
        framebuffer_mib(placed_vm.vm.devices or (), catalog()) for placed_vm in placed if not placed_vm.placement.doubts
    )


def one_by_one(world: Inventory, batch: Sequence[Workload]) -> list[Placed]:
    """Those that find a place when each is asked for alone and then runs, in the order of the list."""
    placed = []
    for request in batch:
        (answer,) = Place((request,)).placements(world, catalog()).answers
        if isinstance(answer, Placed):
            placed.append(answer)
            world = take(running(answer.vm, answer.placement, request.numa), world, catalog())
    return placed


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("seed", mostly_long([*range(30), 38], [3, 25, 26, 38]))
@pytest.mark.parametrize("fleet", FLEETS, ids=str)
def test_a_file_is_never_worse_than_its_requests_one_by_one(fleet: Fleet, seed: int) -> None:
    world, batch = smaller_and_whole(fleet.board, fleet.mode, seed)
    placements = Place(batch).placements(world, catalog())
    assert memory_mib(placements.placed) >= memory_mib(one_by_one(world, batch))
    assert [refusal.rejections for refusal in placements.refused if not refusal.rejections] == []


def test_the_order_of_a_file_is_taken_where_it_places_more() -> None:
    world, batch = smaller_and_whole("a40", VgpuMode.SAME_SIZE, 25)
    placements = Place(batch).placements(world, catalog())
    by_size = Queue(world, catalog(), False, PinPolicy.AUTO).with_all(batch)
    assert memory_mib(placements.placed) > memory_mib(
        answer for answer in by_size.answers if isinstance(answer, Placed)
    )
    assert [answer.workload.name for answer in placements.answers] == [request.name for request in batch]
    first, *later = batch
    urgent = (*later, replace(first, priority=1))
    assert Place(urgent).placements(world, catalog()).answers[0].workload.name == first.name


MODELS = [("a100", VgpuMode.MULTI_INSTANCE), ("h100", VgpuMode.MULTI_INSTANCE), ("l40s", VgpuMode.MIXED_SIZE)]
QUICK = settings(max_examples=25, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=1500, suppress_health_check=list(HealthCheck))


def slots(world: SmallVcenter, esx: Host, profile: str) -> int:
    """How many more vGPUs of the profile the simulated host lets start."""
    count = 0
    for load in world.gpus(esx):
        while not isinstance(
            seats := admit("more", [WantedVgpu(profile)], [load], VgpuPolicy.PERFORMANCE), NotAdmitted
        ):
            count += 1
            load = replace(load, seats=(*load.seats, *seats))
    return count


def seen_with(world: SmallVcenter, esx: Host, profile: str, reserved: int) -> Inventory:
    """What the planner is shown, as vCenter counts it."""
    slot_capacity = ProfileCapacity(profile, esx.cluster or esx.ref, 0, 20, slots(world, esx, profile), reserved)
    return replace(world.inventory(inventory([], [])), reservations=Reservations((slot_capacity,)), origin=None)


def orders(placements: Placements) -> Iterator[tuple[Placed, ...]]:
    """Every order of power-on that the plan allows."""
    listed = [placed for placed in placements.placed if placed.steering is Steering.LISTED_ORDER]
    for order in permutations(placements.placed):
        if [placed for placed in order if placed.steering is Steering.LISTED_ORDER] == listed:
            yield order


def fewest_left(placements: Placements, world: SmallVcenter, esx: Host, profile: str) -> int:
    """So many of the profile are left in the worst order. Every VM starts."""
    fewest = slots(world, esx, profile)
    for order in orders(placements):
        trial = SmallVcenter(world.hosts, dict(world.vms), dict(world.running))
        for placed in order:
            assert trial.start(running(placed.vm, placed.placement, placed.workload.numa)) == ""
        fewest = min(fewest, slots(trial, esx, profile))
    return fewest


def reserved_slots_stay(draws: st.DataObject) -> None:
    board, mode = draws.draw(st.sampled_from(MODELS))
    esx = host("esx-1", gpu(FIRST, board, 0, mode), gpu(SECOND, board, 1, mode))
    names = [offer.name for offer in esx.profiles or () if offer.name.endswith("c") and catalog().profile(offer.name)]
    names = [name for name in names if (facts := catalog().profile(name)) and facts.mig_backed is (board != "l40s")]
    world = SmallVcenter({esx.ref: esx})
    for number, name in enumerate(draws.draw(st.lists(st.sampled_from(names), max_size=5), "ran"), 1):
        world.start(vm(number, f"vm-{number}", "1", f"vgpu {name}", memory_mib=1024))
    for ref in draws.draw(st.sets(st.sampled_from([*world.running, ""])), "stopped") - {""}:
        del world.running[ref], world.vms[ref]
    few = draws.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True), "asked for")
    wishes = draws.draw(st.lists(st.sampled_from(few), min_size=1, max_size=4), "requests")
    profile = draws.draw(st.sampled_from(names), "reserved")
    free = slots(world, esx, profile)
    assume(free)
    reserved = draws.draw(st.integers(1, free), "so many")
    request = Place(
        tuple(Workload(f"w-{number}", 1, 1024, wish) for number, wish in enumerate(wishes)),
        pin=draws.draw(st.sampled_from(list(PinPolicy))),
        optimize=draws.draw(st.booleans()),
    )
    placements = request.placements(seen_with(world, esx, profile, reserved), catalog())
    # A plan that names what it is not certain of is not held to it.
    assume(not placements.doubts and not any(placed.placement.doubts for placed in placements.placed))
    assert fewest_left(placements, world, esx, profile) >= reserved


@QUICK
@given(st.data())
def test_reserved_slots_are_left_in_every_order(draws: st.DataObject) -> None:
    reserved_slots_stay(draws)


@pytest.mark.long
@LONG
@given(st.data())
def test_reserved_slots_are_left_in_every_order_in_many_worlds(draws: st.DataObject) -> None:
    reserved_slots_stay(draws)


@pytest.mark.parametrize("pin", PinPolicy)
def test_vms_that_find_a_gpu_in_any_order_are_pinned_where_another_gpu_has_reserved_slots(pin: PinPolicy) -> None:
    """Both start in any order; but if the small one comes first, the large one is put on the second GPU, whose only
    slot for 7-40c is reserved.
    """
    mig = VgpuMode.MULTI_INSTANCE
    esx = host("esx-1", gpu(FIRST, "a100", 0, mig), gpu(SECOND, "a100", 1, mig))
    world = SmallVcenter({esx.ref: esx})
    assert world.start(vm(1, "vm-1", "1", "vgpu grid_a100-4-20c", memory_mib=1024)) == ""
    requests = tuple(
        Workload(f"w-{number}", 1, 1024, f"grid_a100-{size}") for number, size in enumerate(("2-10c", "1-10c"))
    )
    free = Place(requests, pin=pin).placements(world.inventory(inventory([], [])), catalog())
    assert {placed.steering for placed in free.placed} == {Steering.ANY_ORDER}, "nothing is reserved: any GPU will do"
    placements = Place(requests, pin=pin).placements(seen_with(world, esx, "grid_a100-7-40c", 1), catalog())
    assert len(placements.placed) == 2
    assert fewest_left(placements, world, esx, "grid_a100-7-40c") == 1
    steered = {placed.steering for placed in placements.placed}
    assert steered == {Steering.LISTED_ORDER}
    assert all(bool(placed.placement.pins) is (pin is PinPolicy.AUTO) for placed in placements.placed)
