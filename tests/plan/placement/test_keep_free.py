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
from gpuops.plan.queue.workload_hosts import running
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
    world = SmallVcenter({esx.ref: esx for esx in hosts})
    for number in range(draw(st.integers(0, 5))):
        chosen = draw(st.sampled_from(hosts))
        profile = draw(st.sampled_from(PROFILES[_board(chosen)]))
        world.start(vm(number, f"vm-{number}", chosen.ref[5:], f"vgpu {profile}", memory_mib=1024))
    return world


def _board(esx: Host) -> str:
    name = esx.gpus[0].name.lower()
    return next(board for board in MODES if board in name)


@st.composite
def requests(draw: st.DrawFn, world: SmallVcenter) -> tuple[Workload, ...]:
    names = sorted({name for esx in world.hosts.values() for name in PROFILES[_board(esx)]})
    drawn = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from([1, 1, 1, 2])), min_size=1, max_size=8))
    return tuple(
        Workload(f"w-{n}", 4, 1024, name, count, numa=NumaPolicy.NONE) for n, (name, count) in enumerate(drawn)
    )


@st.composite
def kept_profiles(draw: st.DrawFn, world: SmallVcenter) -> Kept:
    names = sorted({name for esx in world.hosts.values() for name in PROFILES[_board(esx)]})
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return {name: draw(st.integers(0, 12)) for name in chosen}


def copy(world: SmallVcenter) -> SmallVcenter:
    return SmallVcenter(world.hosts, dict(world.vms), dict(world.running))


def startable(world: SmallVcenter, esx: Host, profile: str) -> int:
    """How many more vGPUs of the profile the simulated hosts of the host's cluster let start, one after another."""
    alike = [
        cluster_member
        for cluster_member in world.hosts.values()
        if cluster_member is esx or cluster_member.cluster == esx.cluster is not None
    ]
    trial, count = copy(world), 0
    for candidate in alike:
        for seat in candidate.gpus:
            while _starts(trial, candidate, str(seat.address), profile, count):
                count += 1
    return count


def _starts(world: SmallVcenter, esx: Host, address: str, profile: str, number: int) -> bool:
    probe = vm(1000 + number, f"probe-{number}", esx.ref[5:], f"vgpu {profile}", memory_mib=0)
    return not world.start(replace(probe, extra_config={"pciPassthru0.cfg.gpu-pci-id": address}))


def placed_on(world: SmallVcenter, workloads: tuple[Workload, ...], keep: Kept, *, optimize: bool) -> Placements:
    given_free = tuple(f"{name}={count}" for name, count in keep.items())
    snapshot = world.inventory(inventory([], []))
    return Place(workloads, keep_free=given_free, optimize=optimize).placements(snapshot, catalog())


def start_placed(world: SmallVcenter, placements: Placements) -> SmallVcenter:
    after = copy(world)
    for placed in placements.placed:
        assert not after.start(running(placed.vm, placed.placement, placed.workload.numa))
    return after


def is_kept(draws: st.DataObject) -> None:
    """Each cluster keeps what it is to keep, or what it surely had."""
    world = draws.draw(worlds())
    workloads, keep = draws.draw(requests(world)), draws.draw(kept_profiles(world))
    placements = placed_on(world, workloads, keep, optimize=draws.draw(st.booleans()))
    if placements.doubts or any(placed.placement.doubts for placed in placements.placed):
        return
    snapshot, after = world.inventory(inventory([], [])), start_placed(world, placements)
    for esx in world.hosts.values():
        for profile, count in keep.items():
            sure = FreeSlots(snapshot, catalog(), claims=True).in_cluster_of(esx, profile)
            assert sure <= startable(world, esx, profile)
            assert startable(after, esx, profile) >= min(count, sure)


@pytest.mark.long
@QUICK
@given(st.data())
def test_what_is_kept_could_be_started(draws: st.DataObject) -> None:
    is_kept(draws)


@pytest.mark.long
@LONG
@given(st.data())
def test_what_is_kept_could_be_started_in_many_worlds(draws: st.DataObject) -> None:
    is_kept(draws)


@pytest.mark.long
@QUICK
@given(st.data())
def test_nothing_is_refused_that_would_leave_enough(draws: st.DataObject) -> None:
    """Where the count is no range, as with one size: every GPU is tried for each VM of one vGPU that was refused.

    Of several vGPUs in one VM the plan knows the host's own choice and the best of each node, not every way.
    """
    world = draws.draw(worlds())
    world = SmallVcenter({ref: esx for ref, esx in world.hosts.items() if _board(esx) == "a40"})
    if not world.hosts:
        return
    workloads, keep = draws.draw(requests(world)), draws.draw(kept_profiles(world))
    placements = placed_on(world, workloads, keep, optimize=False)
    after = start_placed(world, placements)
    for refused in (refusal for refusal in placements.refused if refusal.workload.count == 1):
        for origin in world.hosts.values():
            for then in _any_way(after, refused.workload, origin):
                assert any(startable(then, origin, profile) < count for profile, count in keep.items())


def _any_way(world: SmallVcenter, workload: Workload, esx: Host) -> Iterator[SmallVcenter]:
    """The hosts with that VM on each GPU that takes it."""
    new_vm = vm(500, workload.name, esx.ref[5:], f"vgpu {workload.profile}", memory_mib=workload.memory_mib)
    for seat in esx.gpus:
        trial = copy(world)
        if not trial.start(replace(new_vm, extra_config={"pciPassthru0.cfg.gpu-pci-id": str(seat.address)})):
            yield trial


@st.composite
def alike(draw: st.DrawFn) -> SmallVcenter:
    """Four hosts of one model, each GPU of which runs nothing or one vGPU."""
    board = draw(st.sampled_from(sorted(MODES)))
    gpus = [gpu(address, board, 0, MODES[board]) for address in (FIRST, SECOND)]
    hosts = [
        host(f"esx-{n}", *gpus, cluster=draw(st.sampled_from(["domain-c1", "domain-c2", None]))) for n in range(1, 5)
    ]
    world = SmallVcenter({esx.ref: esx for esx in hosts})
    for number, (slot_host, address) in enumerate(product(hosts, (FIRST, SECOND))):
        profile = draw(st.sampled_from([*PROFILES[board], None, None]))
        if profile is not None:
            running_vm = vm(number, f"vm-{number}", slot_host.ref[5:], f"vgpu {profile}", memory_mib=1024)
            world.start(replace(running_vm, extra_config={"pciPassthru0.cfg.gpu-pci-id": address}))
    return world


@pytest.mark.long
@QUICK
@given(st.data())
def test_the_index_keeps_free_as_the_exact_pass(draws: st.DataObject) -> None:
    """About as much is to be kept as there is, so that it often decides; more VMs until there is no place."""
    small = draws.draw(alike())
    world = small.inventory(inventory([], []))
    profiles = PROFILES[_board(next(iter(small.hosts.values())))]
    name = draws.draw(st.sampled_from(profiles))
    free = FreeSlots(world, catalog(), claims=False)
    most = max(free.in_cluster_of(esx, name) for esx in world.hosts.values())
    kept_profile = (name, max(0, most - draws.draw(st.integers(0, 3))))
    for number in range(1, 5):
        base_question = wanted_place(
            draws.draw(st.sampled_from(profiles)), world, kept_profile, *draws.draw(also(profiles, name))
        )
        numa = draws.draw(st.sampled_from(list(NumaPolicy)))
        question = replace(
            base_question, numa=numa, vm=replace(base_question.vm, ref=f"new-{number}"), chooses_gpu=True
        )
        question = replace(question, pin=draws.draw(st.sampled_from(list(PinPolicy))))
        exact, quick = place_exactly(question, world, catalog()), place_in_fleet(question, world, catalog())
        if not isinstance(exact, Placement):
            assert quick is None
            return
        assert quick is not None or exact.doubts
        assert quick is None or (quick.host.ref, quick.seats, quick.pins) == (exact.host.ref, exact.seats, exact.pins)
        world = take(running(question.vm, exact, question.numa), world, catalog())


def also(profiles: tuple[str, ...], but: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Mostly nothing else is kept."""
    other_kept_profile = st.tuples(
        st.sampled_from([profile for profile in profiles if profile != but]), st.integers(0, 4)
    )
    return st.one_of(st.just([]), st.just([]), other_kept_profile.map(lambda pair: [pair]))


def two_a40() -> Inventory:
    """One GPU runs an 8q, the other nothing."""
    esx = on_gpu(host("esx-1", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 0)), FIRST, "vm-1")
    return inventory([esx], [vm(1, "a", "1", "vgpu nvidia_a40-8q", power=PowerState.ON)])


def wanted_place(profile: str, world: Inventory, *kept_profiles: tuple[str, int], claims: bool = False) -> Wanted:
    new_vm = replace(vm(99, "new", "9", f"vgpu {profile}", memory_mib=1024), host=None)
    keep = KeepFree(tuple(KeptProfile(*kept_profile) for kept_profile in kept_profiles), claims)
    return Wanted(new_vm, demands_of(new_vm.devices or (), {}), tuple(world.hosts), explain=False, keep_free=keep)


class TestPlace:
    def test_a_place_that_keeps_it_is_preferred(self) -> None:
        """esx-1 is the first by name, and its GPU the only one that is empty."""
        partly_used = on_gpu(host("esx-2", gpu(FIRST, "a40", 0)), FIRST, "vm-1")
        world = inventory(
            [host("esx-1", gpu(FIRST, "a40", 0)), partly_used],
            [vm(1, "a", "2", "vgpu nvidia_a40-8q", power=PowerState.ON)],
        )
        whole = ("nvidia_a40-48q", 1)
        assert ("esx-1", (1, 0)) in _refusals(wanted_place("nvidia_a40-16q", world, whole), world)
        placement = place(wanted_place("nvidia_a40-8q", world, whole), world, catalog())
        assert isinstance(placement, Placement)
        assert placement.host.name == "esx-2"

    @pytest.mark.long
    def test_the_reason_has_the_profile_the_numbers_and_the_next_move(self) -> None:
        world = two_a40()
        rejections = place(wanted_place("nvidia_a40-16q", world, ("nvidia_a40-48q", 1)), world, catalog())
        assert not isinstance(rejections, Placement)
        (reason,) = (rejection for rejection in rejections if "--keep-free" in rejection.rule)
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
        placement = place(wanted_place("nvidia_a40-8q", with_both, ("nvidia_a40-48q", 3)), with_both, catalog())
        assert isinstance(placement, Placement)

    @pytest.mark.long
    def test_a_suspended_vm_is_counted_as_back_where_that_is_asked(self) -> None:
        esx = on_gpu(host("esx-1", gpu(FIRST, "a40", 0)), FIRST, "vm-1")
        runs = vm(1, "a", "1", "vgpu nvidia_a40-8q", power=PowerState.ON)
        asleep = vm(2, "b", "1", "vgpu nvidia_a40-8q", power=PowerState.SUSPENDED)
        world = inventory([esx], [runs, asleep])
        kept_profile = ("nvidia_a40-8q", 4)
        assert isinstance(place(wanted_place("nvidia_a40-8q", world, kept_profile), world, catalog()), Placement)
        assert _refusals(wanted_place("nvidia_a40-8q", world, kept_profile, claims=True), world) == [("esx-1", (4, 3))]

    @pytest.mark.long
    def test_other_clusters_do_not_count(self) -> None:
        world = inventory([host("esx-1", gpu(FIRST, "a40", 0)), host("esx-2", gpu(FIRST, "a40", 0), cluster=None)], [])
        rejections = _refusals(wanted_place("nvidia_a40-48q", world, ("nvidia_a40-48q", 1)), world)
        assert rejections == [("esx-1", (1, 0)), ("esx-2", (1, 0))]

    @pytest.mark.long
    def test_a_fleet_is_searched_by_its_index_for_what_leaves_enough(self) -> None:
        """Twenty hosts with an empty GPU and one that is in use: all but the last one have no slot in the used one."""
        hosts, vms = [], []
        for n in range(1, 21):
            esx = on_gpu(host(f"esx-{n:02}", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 0)), FIRST, f"vm-{n}")
            hosts.append(esx)
            size = "8q" if n == 20 else "48q"
            vms.append(vm(n, f"a-{n}", str(n), f"vgpu nvidia_a40-{size}", power=PowerState.ON))
        world = inventory(hosts, vms)
        question = replace(
            wanted_place("nvidia_a40-8q", world, ("nvidia_a40-48q", 20)), chooses_gpu=True, pin=PinPolicy.AUTO
        )
        quick, exact = place_in_fleet(question, world, catalog()), place_exactly(question, world, catalog())
        assert isinstance(exact, Placement) and isinstance(quick, Placement)
        assert (quick.host.name, quick.seats) == (exact.host.name, exact.seats) == ("esx-20", exact.seats)


def _refusals(question: Wanted, world: Inventory) -> list[tuple[str, tuple[float | str | None, float | str | None]]]:
    """Of each host that would leave too few: how many are to be kept, how many would be left."""
    rejections = place(question, world, catalog())
    assert not isinstance(rejections, Placement)
    return [
        (rejection.subject, (rejection.needed, rejection.available))
        for rejection in rejections
        if "--keep-free" in rejection.rule
    ]
