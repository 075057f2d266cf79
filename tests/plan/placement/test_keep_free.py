"""What is to stay free stays free: judged by starting vGPUs on the simulator's admission, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.keep_free import FreeSlots
from gpuops.plan.placement.project import take
from gpuops.plan.placement.select import place, place_exactly, place_in_fleet
from gpuops.plan.placement.vm_demand import KeepFree, KeptProfile, PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.place import Place, Placements
from gpuops.plan.queue.workload import running
from tests.plan.small_vcenter import SmallVcenter
from tests.plan.snapshots import FIRST, SECOND, THIRD, catalog, gpu, host, inventory, on_gpu, vm

MODES: Final = {"a40": VgpuMode.SAME_SIZE, "a100": VgpuMode.MULTI_INSTANCE, "l40s": VgpuMode.MIXED_SIZE}
PROFILES: Final = {
    "a40": ("nvidia_a40-8q", "nvidia_a40-16q", "nvidia_a40-48q"),
    "a100": ("grid_a100-1-5c", "grid_a100-2-10c", "grid_a100-3-20c", "grid_a100-7-40c"),
    "l40s": ("nvidia_l40s-8q", "nvidia_l40s-24q", "nvidia_l40s-48q"),
}
QUICK: Final = settings(max_examples=40)
LONG: Final = settings(max_examples=80)
Kept = dict[str, int]


@st.composite
def worlds(draw: st.DrawFn) -> SmallVcenter:
    """Up to three hosts of up to three GPUs, some in one cluster, with a few VMs that run."""
    hosts = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        board = draw(st.sampled_from(sorted(MODES)))
        gpus = [gpu(address, board, 0, MODES[board]) for address in (FIRST, SECOND, THIRD)[: draw(st.integers(1, 3))]]
        cluster = draw(st.sampled_from(["domain-c1", "domain-c1", None]))
        hosts.append(host(f"esx-{number}", *gpus, cluster=cluster))
    world = SmallVcenter({each.ref: each for each in hosts})
    for number in range(draw(st.integers(0, 5))):
        there = draw(st.sampled_from(hosts))
        profile = draw(st.sampled_from(PROFILES[_board(there)]))
        world.start(vm(number, f"vm-{number}", there.ref[5:], f"vgpu {profile}", memory_mib=1024))
    return world


def _board(there: Host) -> str:
    name = there.gpus[0].name.lower()
    return next(board for board in MODES if board in name)


@st.composite
def requests(draw: st.DrawFn, world: SmallVcenter) -> tuple[Workload, ...]:
    names = sorted({name for each in world.hosts.values() for name in PROFILES[_board(each)]})
    asked = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from([1, 1, 1, 2])), min_size=1, max_size=8))
    return tuple(
        Workload(f"w-{n}", 4, 1024, name, count, numa=NumaPolicy.NONE) for n, (name, count) in enumerate(asked)
    )


@st.composite
def kept(draw: st.DrawFn, world: SmallVcenter) -> Kept:
    names = sorted({name for each in world.hosts.values() for name in PROFILES[_board(each)]})
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return {name: draw(st.integers(0, 12)) for name in chosen}


def copy(world: SmallVcenter) -> SmallVcenter:
    return SmallVcenter(world.hosts, dict(world.vms), dict(world.running))


def startable(world: SmallVcenter, there: Host, profile: str) -> int:
    """How many more vGPUs of the profile the simulated hosts of the host's cluster let start, one after another."""
    alike = [each for each in world.hosts.values() if each is there or each.cluster == there.cluster is not None]
    trial, count = copy(world), 0
    for each in alike:
        for seat in each.gpus:
            while _starts(trial, each, str(seat.address), profile, count):
                count += 1
    return count


def _starts(world: SmallVcenter, there: Host, address: str, profile: str, number: int) -> bool:
    made = vm(1000 + number, f"probe-{number}", there.ref[5:], f"vgpu {profile}", memory_mib=0)
    return not world.start(replace(made, extra_config={"pciPassthru0.cfg.gpu-pci-id": address}))


def placed_on(world: SmallVcenter, asked: tuple[Workload, ...], keep: Kept, *, optimize: bool) -> Placements:
    given_free = tuple(f"{name}={count}" for name, count in keep.items())
    seen = world.inventory(inventory([], []))
    return Place(asked, keep_free=given_free, optimize=optimize).placements(seen, catalog())


def started(world: SmallVcenter, found: Placements) -> SmallVcenter:
    after = copy(world)
    for each in found.placed:
        assert not after.start(running(each.vm, each.placement, each.workload.numa))
    return after


def is_kept(data: st.DataObject) -> None:
    """Each cluster keeps what it is to keep, or what it surely had."""
    world = data.draw(worlds())
    asked, keep = data.draw(requests(world)), data.draw(kept(world))
    found = placed_on(world, asked, keep, optimize=data.draw(st.booleans()))
    if found.doubts or any(each.placement.doubts for each in found.placed):
        return
    seen, after = world.inventory(inventory([], [])), started(world, found)
    for there in world.hosts.values():
        for profile, count in keep.items():
            sure = FreeSlots(seen, catalog(), claims=True).in_cluster_of(there, profile)
            assert sure <= startable(world, there, profile)
            assert startable(after, there, profile) >= min(count, sure)


@pytest.mark.long
@QUICK
@given(st.data())
def test_what_is_kept_could_be_started(data: st.DataObject) -> None:
    is_kept(data)


@pytest.mark.long
@LONG
@given(st.data())
def test_what_is_kept_could_be_started_in_many_worlds(data: st.DataObject) -> None:
    is_kept(data)


@pytest.mark.long
@QUICK
@given(st.data())
def test_nothing_is_refused_that_would_leave_enough(data: st.DataObject) -> None:
    """Where the count is no range, as with one size: every GPU is tried for each VM of one vGPU that was refused.

    Of several vGPUs in one VM the plan knows the host's own choice and the best of each node, not every way.
    """
    world = data.draw(worlds())
    world = SmallVcenter({ref: each for ref, each in world.hosts.items() if _board(each) == "a40"})
    if not world.hosts:
        return
    asked, keep = data.draw(requests(world)), data.draw(kept(world))
    found = placed_on(world, asked, keep, optimize=False)
    after = started(world, found)
    for refused in (each for each in found.refused if each.workload.count == 1):
        for there in world.hosts.values():
            for then in _any_way(after, refused.workload, there):
                assert any(startable(then, there, profile) < count for profile, count in keep.items())


def _any_way(world: SmallVcenter, asked: Workload, there: Host) -> Iterator[SmallVcenter]:
    """The hosts with that VM on each GPU that takes it."""
    made = vm(500, asked.name, there.ref[5:], f"vgpu {asked.profile}", memory_mib=asked.memory_mib)
    for each in there.gpus:
        trial = copy(world)
        if not trial.start(replace(made, extra_config={"pciPassthru0.cfg.gpu-pci-id": str(each.address)})):
            yield trial


@st.composite
def alike(draw: st.DrawFn) -> SmallVcenter:
    """Four hosts of one model, each GPU of which runs nothing or one vGPU."""
    board = draw(st.sampled_from(sorted(MODES)))
    gpus = [gpu(address, board, 0, MODES[board]) for address in (FIRST, SECOND)]
    hosts = [
        host(f"esx-{n}", *gpus, cluster=draw(st.sampled_from(["domain-c1", "domain-c2", None]))) for n in range(1, 5)
    ]
    world = SmallVcenter({each.ref: each for each in hosts})
    for number, (there, address) in enumerate(product(hosts, (FIRST, SECOND))):
        profile = draw(st.sampled_from([*PROFILES[board], None, None]))
        if profile is not None:
            made = vm(number, f"vm-{number}", there.ref[5:], f"vgpu {profile}", memory_mib=1024)
            world.start(replace(made, extra_config={"pciPassthru0.cfg.gpu-pci-id": address}))
    return world


@pytest.mark.long
@QUICK
@given(st.data())
def test_the_index_keeps_free_as_the_exact_pass(data: st.DataObject) -> None:
    """About as much is to be kept as there is, so that it often decides; more VMs until there is no place."""
    small = data.draw(alike())
    world = small.inventory(inventory([], []))
    profiles = PROFILES[_board(next(iter(small.hosts.values())))]
    name = data.draw(st.sampled_from(profiles))
    free = FreeSlots(world, catalog(), claims=False)
    most = max(free.in_cluster_of(each, name) for each in world.hosts.values())
    kept = (name, max(0, most - data.draw(st.integers(0, 3))))
    for number in range(1, 5):
        made = wanted(data.draw(st.sampled_from(profiles)), world, kept, *data.draw(also(profiles, name)))
        numa = data.draw(st.sampled_from(list(NumaPolicy)))
        asked = replace(made, numa=numa, vm=replace(made.vm, ref=f"new-{number}"), chooses_gpu=True)
        asked = replace(asked, pin=data.draw(st.sampled_from(list(PinPolicy))))
        exact, quick = place_exactly(asked, world, catalog()), place_in_fleet(asked, world, catalog())
        if not isinstance(exact, Placement):
            assert quick is None
            return
        assert quick is not None or exact.doubts
        assert quick is None or (quick.host.ref, quick.seats, quick.pins) == (exact.host.ref, exact.seats, exact.pins)
        world = take(running(asked.vm, exact, asked.numa), world, catalog())


def also(profiles: tuple[str, ...], but: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Mostly nothing else is kept."""
    other = st.tuples(st.sampled_from([each for each in profiles if each != but]), st.integers(0, 4))
    return st.one_of(st.just([]), st.just([]), other.map(lambda each: [each]))


def two_a40() -> Inventory:
    """One GPU runs an 8q, the other nothing."""
    there = on_gpu(host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 0)), FIRST, "vm-1")
    return inventory([there], [vm(1, "a", "1", "vgpu nvidia_a40-8q", power=PowerState.ON)])


def wanted(profile: str, world: Inventory, *kept: tuple[str, int], claims: bool = False) -> Wanted:
    made = replace(vm(99, "new", "9", f"vgpu {profile}", memory_mib=1024), host=None)
    keep = KeepFree(tuple(KeptProfile(*each) for each in kept), claims)
    return Wanted(made, demands_of(made.devices or (), {}), tuple(world.hosts), explain=False, keep_free=keep)


class TestPlace:
    def test_a_place_that_keeps_it_is_preferred(self) -> None:
        """esx-1 is the first by name, and its GPU the only one that is empty."""
        taken = on_gpu(host("esx-2", gpu(FIRST, "a40", 0)), FIRST, "vm-1")
        world = inventory(
            [host("esx-1", gpu(FIRST, "a40", 0)), taken], [vm(1, "a", "2", "vgpu nvidia_a40-8q", power=PowerState.ON)]
        )
        whole = ("nvidia_a40-48q", 1)
        assert ("esx-1", (1, 0)) in _refusals(wanted("nvidia_a40-16q", world, whole), world)
        found = place(wanted("nvidia_a40-8q", world, whole), world, catalog())
        assert isinstance(found, Placement)
        assert found.host.name == "esx-2"

    @pytest.mark.long
    def test_the_reason_has_the_profile_the_numbers_and_the_next_move(self) -> None:
        world = two_a40()
        found = place(wanted("nvidia_a40-16q", world, ("nvidia_a40-48q", 1)), world, catalog())
        assert not isinstance(found, Placement)
        (reason,) = (each for each in found if "--keep-free" in each.rule)
        assert str(reason) == (
            "esx-1: vGPUs of nvidia_a40-48q left free in cluster gpu afterwards (--keep-free): needs 1, 0 there"
        )
        assert "gpuops capacity --profile nvidia_a40-48q --cluster gpu" in reason.hint

    @pytest.mark.long
    def test_who_takes_none_of_it_is_let_in_where_there_are_too_few_already(self) -> None:
        world = two_a40()
        with_both = take(replace(vm(2, "b", "1", "vgpu nvidia_a40-8q"), power=PowerState.ON), world, catalog())
        assert (
            FreeSlots(with_both, catalog(), claims=False).in_cluster_of(with_both.hosts["host-1"], "nvidia_a40-48q")
            == 0
        )
        found = place(wanted("nvidia_a40-8q", with_both, ("nvidia_a40-48q", 3)), with_both, catalog())
        assert isinstance(found, Placement)

    @pytest.mark.long
    def test_a_suspended_vm_is_counted_as_back_where_that_is_asked(self) -> None:
        there = on_gpu(host("esx-1", gpu(FIRST, "a40", 0)), FIRST, "vm-1")
        runs = vm(1, "a", "1", "vgpu nvidia_a40-8q", power=PowerState.ON)
        asleep = vm(2, "b", "1", "vgpu nvidia_a40-8q", power=PowerState.SUSPENDED)
        world = inventory([there], [runs, asleep])
        kept = ("nvidia_a40-8q", 4)
        assert isinstance(place(wanted("nvidia_a40-8q", world, kept), world, catalog()), Placement)
        assert _refusals(wanted("nvidia_a40-8q", world, kept, claims=True), world) == [("esx-1", (4, 3))]

    @pytest.mark.long
    def test_other_clusters_do_not_count(self) -> None:
        world = inventory([host("esx-1", gpu(FIRST, "a40", 0)), host("esx-2", gpu(FIRST, "a40", 0), cluster=None)], [])
        found = _refusals(wanted("nvidia_a40-48q", world, ("nvidia_a40-48q", 1)), world)
        assert found == [("esx-1", (1, 0)), ("esx-2", (1, 0))]

    @pytest.mark.long
    def test_a_fleet_is_searched_by_its_index_for_what_leaves_enough(self) -> None:
        """Twenty hosts with an empty GPU and one that is in use: all but the last one have no slot in the used one."""
        hosts, vms = [], []
        for n in range(1, 21):
            there = on_gpu(host(f"esx-{n:02}", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 0)), FIRST, f"vm-{n}")
            hosts.append(there)
            size = "8q" if n == 20 else "48q"
            vms.append(vm(n, f"a-{n}", str(n), f"vgpu nvidia_a40-{size}", power=PowerState.ON))
        world = inventory(hosts, vms)
        asked = replace(wanted("nvidia_a40-8q", world, ("nvidia_a40-48q", 20)), chooses_gpu=True, pin=PinPolicy.AUTO)
        quick, exact = place_in_fleet(asked, world, catalog()), place_exactly(asked, world, catalog())
        assert isinstance(exact, Placement) and isinstance(quick, Placement)
        assert (quick.host.name, quick.seats) == (exact.host.name, exact.seats) == ("esx-20", exact.seats)


def _refusals(asked: Wanted, world: Inventory) -> list[tuple[str, tuple[float | str | None, float | str | None]]]:
    """Of each host that would leave too few: how many are to be kept, how many would be left."""
    found = place(asked, world, catalog())
    assert not isinstance(found, Placement)
    return [(each.subject, (each.needed, each.available)) for each in found if "--keep-free" in each.rule]
