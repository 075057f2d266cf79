"""Why requests are refused is true of the world: each printed reason is checked by what runs, in small worlds."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, VgpuMode
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Vgpus, Workload
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.placement import multi_node, seating
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Place
from gpuops.report.advice.placement_view import placements_document, placements_text
from gpuops.report.json_and_csv import document_text
from gpuops.report.layout import plain
from tests.plan.moving.worlds import after, world
from tests.plan.queue.reasons import Judge, told_reasons
from tests.plan.queue.test_admitted import MODELS, names
from tests.plan.small_vcenter import SmallVcenter
from tests.plan.snapshots import FIRST, FOURTH, SECOND, THIRD, catalog, gpu, host, inventory, vm, whole
from tests.sample import every_nth

FIFTH = "0000:d8:00.0"
JUDGED_BY_HAND = (1022, 1058, 1061, 1265, 1366, 1443, 2067, 2429, 2585, 7362)
"""Worlds in which planner and checker once disagreed: devices that no node has twice, what unpinned earlier requests
leave, and what suspended VMs take where starts are not known."""


def world_of(random: Random, most: int = 3) -> SmallVcenter:
    """Up to three hosts, their GPUs in one mode with some of another model and whole ones; VMs run or are suspended."""
    hosts = []
    for number in range(1, random.randint(1, most) + 1):
        model, mode = random.choice(MODELS)
        gpus = [gpu(FIRST, model, 0, mode), gpu(SECOND, model, 1, mode)]
        gpus += [gpu(THIRD, model, random.choice((0, 1)), mode)] if random.random() < 0.3 else []
        gpus += [whole(FOURTH, "t4", 0), whole(FIFTH, "t4", 1)] if random.random() < 0.6 else []
        esx = host(f"esx-{number}", *gpus)
        hosts.append(replace(esx, assignment_policy=random.choice(list(AssignmentPolicy))))
    world = SmallVcenter({each.ref: each for each in hosts})
    for number in range(1, random.randint(0, 3 * most) + 1):
        on = random.choice(hosts)
        offered = [offer.name for offer in on.profiles or () if any(offer.name in names(model) for model in MODELS)]
        devices = [f"vgpu {random.choice(offered)}"] * random.choice((1, 1, 1, 2))
        if random.random() < 0.2 and on.gpu(PciAddress.parse(FOURTH)):
            devices = [f"directpath {random.choice((FOURTH, FIFTH))} 10de:1eb8"]
        drawn_vm = vm(number, f"vm-{number}", on.name.removeprefix("esx-"), *devices)
        size = random.choice((8192, 8192, 60000))
        if not world.start(replace(drawn_vm, memory_mib=size, memory_reservation_mib=size)) and random.random() < 0.3:
            world.suspend(world.vms[drawn_vm.ref])
    return world


def requests_of(random: Random, world: SmallVcenter) -> tuple[Workload, ...]:
    offered = sorted({offer.name for esx in world.hosts.values() for offer in esx.profiles or ()})
    known_names = [name for name in offered if any(name in names(model) for model in MODELS)]
    requests = []
    for number in range(1, random.randint(1, 5) + 1):
        request = Workload(
            f"w-{number}",
            vcpus=random.choice((4, 4, 20, 40, 100)),
            memory_mib=random.choice((8192, 8192, 8192, 100000, 300000)),
            numa=random.choice(list(NumaPolicy)),
            priority=random.randint(0, 1),
        )
        match random.choice(("vgpu", "vgpu", "vgpu", "vgpu", "several", "whole", "device")):
            case "vgpu":
                request = replace(request, profile=random.choice(known_names), count=random.choice((1, 1, 2, 3, 7, 12)))
            case "several":
                more_vgpus = tuple(
                    Vgpus(random.choice(known_names), random.randint(1, 2)) for _ in range(random.randint(1, 2))
                )
                request = replace(
                    request, profile=random.choice(known_names), count=random.randint(1, 2), more=more_vgpus
                )
            case "whole":
                request = replace(request, gpus=random.randint(1, 4))
            case _:
                request = replace(request, device=(PciAddress.parse(random.choice((FOURTH, FIFTH))),))
        requests.append(request)
    return tuple(requests)


def check(seed: int) -> int:
    """The number of reasons that were read, all of them true."""
    random = Random(seed)
    world = world_of(random)
    pin, suspended = random.choice(list(PinPolicy)), random.choice(list(SuspendedPolicy))
    request = Place(requests_of(random, world), pin=pin, suspended=suspended)
    placements = request.placements(world.inventory(inventory([], [])), catalog())
    printed = plain(placements_text(placements))
    refused = {answer.workload.name: answer for answer in placements.answers if isinstance(answer, Refusal)}
    lines = list(told_reasons(printed))
    assert {name for name, _ in lines} == set(refused), "each refusal has a reason"
    for name, line in lines:
        Judge(world, placements, refused[name], pin).check(line)
    return len(lines)


def test_what_may_run_elsewhere_is_not_said_to_run_there() -> None:
    """Seven vGPUs of one VM lie on two GPUs, four and three: how, vCenter does not tell."""
    esx = host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1))
    world = SmallVcenter({esx.ref: esx})
    assert world.start(vm(1, "vm-1", "1", *["vgpu nvidia_a40-8q"] * 7)) == ""
    request = Place((Workload("new", 4, 8192, "a40-8q"),))
    (refused,) = request.placements(world.inventory(inventory([], [])), catalog()).refused
    rule = "no slot for nvidia_a40-8q can be promised: vCenter does not report which vGPUs of vm-1 run on it"
    assert [str(rejection) for rejection in refused.rejections] == [f"esx-1 {FIRST}: {rule}", f"esx-1 {SECOND}: {rule}"]


def test_a_suspended_vm_that_is_kept_its_slot_is_not_said_to_run() -> None:
    """Two run on the GPU and a third of their size is to come back to it: the size is locked while two run."""
    esx = host("esx-1", gpu(FIRST, "a40", 0))
    world = SmallVcenter({esx.ref: esx})
    for number in (1, 2):
        assert world.start(vm(number, f"vm-{number}", "1", "vgpu nvidia_a40-8q")) == ""
    asleep = vm(3, "vm-3", "1", "vgpu nvidia_a40-8q", power=PowerState.SUSPENDED)
    snapshot = replace(world.inventory(inventory([], [])), vms={**world.vms, asleep.ref: asleep})
    placements = Place((Workload("new", 4, 8192, "a40-24q"),)).placements(snapshot, catalog())
    assert [claim.gpus for claim in placements.claims] == [(PciAddress.parse(FIRST),)]
    locked = "locked to vGPUs of 8192 MiB while 2 run, nvidia_a40-24q has 24576 MiB; held by vm-1, vm-2"
    assert [str(rejection) for rejection in placements.refused[0].rejections] == [
        f"esx-1 {FIRST}: {locked}: needs 1 slot, 0 there"
    ]


def test_what_earlier_requests_leave_is_a_range_where_nobody_tells_how_they_lie() -> None:
    """Three vGPUs of one VM on two GPUs, two and one: one slot is left, on one of them."""
    esx = host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1))
    snapshot = inventory([esx], [])
    first = Workload("first", 4, 8192, "a40-24c", count=3, numa=NumaPolicy.NONE, priority=1)
    second = Workload("second", 4, 8192, "a40-24c", count=2, numa=NumaPolicy.NONE)
    (refused,) = Place((first, second), pin=PinPolicy.NEVER).placements(snapshot, catalog()).refused
    rule = "its 2 slots for nvidia_a40-24c are perhaps taken by earlier requests; held by first"
    assert [str(rejection) for rejection in refused.rejections] == [
        "esx-1: room for nvidia_a40-24c beside earlier requests: needs 2 slots, 0 to 2 there",
        f"esx-1 {FIRST}: {rule}",
        f"esx-1 {SECOND}: {rule}",
    ]


def test_what_may_find_no_room_itself_is_not_said_to_have_taken_it() -> None:
    """Beside a 3g and a 2g instance another 2g fits or not, by where they start; a 1g.10gb fits in any case."""
    esx = host("esx-1", gpu(FIRST, "a100", 0, VgpuMode.MULTI_INSTANCE))
    world = SmallVcenter({esx.ref: esx})
    for number, profile in enumerate(("2-10c", "3-20c"), 1):
        assert world.start(vm(number, f"vm-{number}", "1", f"vgpu grid_a100-{profile}")) == ""
    asleep = vm(3, "vm-3", "1", "vgpu grid_a100-2-10c", power=PowerState.SUSPENDED)
    snapshot = replace(world.inventory(inventory([], [])), vms={**world.vms, asleep.ref: asleep})
    request = Place((Workload("new", 4, 8192, "a100-1-10c", count=2, numa=NumaPolicy.NONE),))
    (refused,) = request.placements(snapshot, catalog()).refused
    beside = "suspended VMs that come back"
    assert [str(rejection) for rejection in refused.rejections] == [
        f"esx-1: room for grid_a100-1-10c beside {beside}: needs 2 slots, 0 to 1 there",
        f"esx-1 {FIRST}: its 1 slot for grid_a100-1-10c is perhaps taken by {beside}; held by vm-3 (suspended)",
    ]


def test_room_on_a_gpu_whose_vms_are_not_told_is_no_number() -> None:
    esx = host("esx-1", replace(gpu(FIRST, "a40", 0), vms=None), gpu(SECOND, "a40", 1))
    request = Place((Workload("new", 4, 8192, "a40-24c", count=3, numa=NumaPolicy.NONE),))
    (refused,) = request.placements(inventory([esx], []), catalog()).refused
    rule = "esx-1: room for nvidia_a40-24c: needs 3 slots, 2 or more there"
    assert str(refused.rejections[0]) == rule


class Forgetful(dict[object, dict[object, object]]):
    """Remembers no answer."""

    def setdefault(self, key: object, default: object = None) -> dict[object, object]:
        return {}


def told_of(seed: int) -> str:
    """What is printed and in the document, of a world that the index of fleets is asked about too."""
    random = Random(seed)
    world = world_of(random, most=12)
    pin, suspended = random.choice(list(PinPolicy)), random.choice(list(SuspendedPolicy))
    request = Place(requests_of(random, world), pin=pin, suspended=suspended)
    placements = request.placements(world.inventory(inventory([], [])), load(everything=True))
    return plain(placements_text(placements)) + document_text(placements_document(placements, catalog()))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_what_is_worked_out_once_for_many_is_what_each_would_be_told(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of GPUs that are alike one is asked; vGPUs that have too few slots are counted; full hosts are passed over."""
    seeds = range(first, first + 10)
    at_once = [told_of(seed) for seed in seeds]
    monkeypatch.setattr(Catalog, "worked_out", property(lambda _: Forgetful()))
    monkeypatch.setattr(seating._SeatingAttempt, "_fill_all_gpus", lambda *_: 0)
    may_spread = multi_node._may_spread
    monkeypatch.setattr(
        multi_node, "_may_spread", lambda needs, world, *, refused: may_spread(needs, world, refused=False)
    )
    monkeypatch.setattr(multi_node, "without_full_hosts", lambda question, *_: question)
    assert [told_of(seed) for seed in seeds] == at_once
    assert any("no place" in text for text in at_once)


@pytest.mark.long
@pytest.mark.parametrize("seed", (*range(10), *JUDGED_BY_HAND))
def test_each_printed_reason_is_true(seed: int) -> None:
    check(seed)


@pytest.mark.long
def test_each_printed_reason_is_true_in_many_worlds() -> None:
    assert sum(check(seed) for seed in every_nth(range(1000, 2000), 4)) > 250


PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"
OFF = ("1-2q", "1-3q", "1-6q", "1-12q", "1-12c", "1-24c", "2-24q", "2-48c")

EVERY = tuple(
    profile.name.removeprefix(PREFIX)
    for board in catalog().boards
    for profile in board.profiles
    if profile.name.startswith(PREFIX) and profile.mig_backed
)


def two_hosts(profiles: tuple[str, ...]) -> Inventory:
    """Two empty hosts with four RTX PRO 6000 in MIG mode, and a VM that is off for each of the profiles."""
    nodes = {FIRST: 0, SECOND: 0, THIRD: 1, FOURTH: 1}
    hosts = [
        host(f"esx-{number}", *(gpu(at, "rtx-pro-6000", node, VgpuMode.MULTI_INSTANCE) for at, node in nodes.items()))
        for number in (1, 2)
    ]
    vms = [vm(n, f"off-{n}", str(n % 2 + 1), f"vgpu {PREFIX}{profile}") for n, profile in enumerate(profiles, 1)]
    return inventory(hosts, [replace(guest_vm, power=PowerState.OFF) for guest_vm in vms])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("profiles", [OFF, EVERY], ids=["eight profiles", "every profile"])
def test_vms_of_many_profiles_do_not_multiply_the_states_of_a_gpu(profiles: tuple[str, ...]) -> None:
    """The search for the best filling of a GPU followed every mixture of up to 48 vGPUs."""
    world = two_hosts(profiles)
    placements = Place((Workload("w", 4, 16384, f"{PREFIX}2-24q"),)).placements(world, catalog())
    assert len(placements.placed) == 1
    assert len(FleetIndex.of(placements.before, catalog()).states) < 500


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("optimize", [False, True])
def test_a_queue_of_every_profile_is_placed_in_a_limited_number_of_states(optimize: bool) -> None:
    world = two_hosts(())
    requests = tuple(Workload(f"w-{name}", 4, 16384, f"{PREFIX}{name}") for name in EVERY)
    placements = Place(requests, optimize=optimize).placements(world, catalog())
    assert len(placements.placed) + len(placements.refused) == len(EVERY)
    assert len(FleetIndex.of(placements.before, catalog()).states) < 2000


WHOLE = Workload("asked", 4, 8192, "a40-48q")
TWO_HALVES = ([[8]], [[8, 8]])
"""The one VM of esx-01 has room on esx-02."""


def suggestions(now: Inventory, *workloads: Workload, **options: Any) -> list[str | None]:
    """For each workload what moves would make room for it; None = it has a place."""
    answers = Place(workloads, **options).placements(now, catalog()).answers
    return [answer.moves if isinstance(answer, Refusal) else None for answer in answers]


def test_the_move_is_named_and_makes_room() -> None:
    now = world(*TWO_HALVES)
    assert suggestions(now, WHOLE) == ["after vMotion of vm-1-1-1 to esx-02 it fits on esx-01"]
    moved = after([RelocateVm("vm-100", now.find_host("esx-02").ref)], now)
    assert suggestions(moved, WHOLE) == [None]


def test_as_few_moves_as_do() -> None:
    now = world([[8, 8]], [[8, 8]], [[24]])
    words = "after vMotion of vm-1-1-1 to esx-02, then of vm-1-1-2 to esx-02 it fits on esx-01"
    assert suggestions(now, WHOLE) == [words]


def test_each_is_told_what_helps_it_alone() -> None:
    now = world(*TWO_HALVES)
    first, second = suggestions(now, replace(WHOLE, name="a"), replace(WHOLE, name="b"))
    assert first == second == "after vMotion of vm-1-1-1 to esx-02 it fits on esx-01"


@pytest.mark.parametrize("power", [PowerState.SUSPENDED, PowerState.OFF])
def test_who_does_not_run_is_not_moved(power: PowerState) -> None:
    now = world([[8]], [[8] * 4])
    stopped = now.with_vm(replace(now.vms["vm-100"], power=power))
    assert suggestions(stopped, WHOLE) == ([None] if power is PowerState.OFF else [""])


def test_who_is_asked_for_is_not_moved() -> None:
    now = world([[]], [[8] * 5])
    small = Workload("small", 4, 8192, "a40-8q", priority=1, host="esx-01")
    assert suggestions(now, WHOLE, small) == [None, ""], "there would be room for it on esx-02"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(world(*TWO_HALVES), hot_migrate_enabled=False), "vMotion of vGPUs is switched off"),
        (world([[8] * 5], [[8] * 5]), "no host has room for so many"),
        (world(*[[[8]]] * 33, *[[[8, 8]]] * 33), "a large fleet is for `gpuops defrag`"),
    ],
)
def test_nothing_is_said_where_nothing_is_known(now: Inventory, why: str) -> None:
    assert suggestions(now, WHOLE) == [""], why


def test_of_whole_gpus_and_groups_nothing_is_said() -> None:
    now = world(*TWO_HALVES)
    assert suggestions(now, Workload("given", 4, 8192, gpus=1)) == [""]
    pair = [replace(WHOLE, name=name, affinity="pair") for name in ("a", "b")]
    assert suggestions(now, *pair) == ["", ""]


def test_a_placed_request_keeps_its_place() -> None:
    now = world([[8]], [[8]], [[]])
    answers = Place((replace(WHOLE, priority=1), replace(WHOLE, name="next"))).placements(now, catalog()).answers
    placed = next(answer for answer in answers if isinstance(answer, Placed))
    assert placed.placement.host.name == "esx-03"
    (refused,) = (answer for answer in answers if isinstance(answer, Refusal))
    assert refused.moves == "after vMotion of vm-1-1-1 to esx-02 it fits on esx-01"
