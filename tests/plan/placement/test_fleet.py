"""The index of a fleet answers as the exact pass does, whatever the fleet and however it got there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.fleet.site_demand import count_shapes
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.select import place, place_exactly, place_in_fleet
from gpuops.plan.placement.vm_demand import KeepFree, KeptProfile, PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.workload_hosts import running
from tests.plan.snapshots import FIRST, FOURTH, SECOND, THIRD, catalog, gpu, host, inventory, vm, whole, without_vm

KINDS: Final = {
    "a100": [
        "grid_a100-1-5c",
        "grid_a100-2-10c",
        "grid_a100-3-20c",
        "grid_a100-7-40c",
        "grid_a100-8c",
        "grid_a100-20c",
    ],
    "a40": ["nvidia_a40-8q", "nvidia_a40-12q", "nvidia_a40-24c", "nvidia_a40-48q", "nvidia_a40-2b"],
    "l40s": ["nvidia_l40s-4c", "nvidia_l40s-16q", "nvidia_l40s-24c", "nvidia_l40s-48c"],
}
MODES: Final[dict[str, list[VgpuMode | None]]] = {
    "a100": [VgpuMode.MULTI_INSTANCE, VgpuMode.SAME_SIZE, None],
    "a40": [VgpuMode.SAME_SIZE],
    "l40s": [VgpuMode.MIXED_SIZE, VgpuMode.SAME_SIZE],
}
NAMES: Final = [name for names in KINDS.values() for name in names]
FEW: Final = settings(max_examples=100)


@st.composite
def hosts(draw: st.DrawFn, number: int) -> Host:
    """A host, like most hosts of its fleet without a peculiarity."""
    board = draw(st.sampled_from(sorted(KINDS)))
    at = [FIRST, SECOND, THIRD, FOURTH][: draw(st.integers(1, 4))]
    gpus = [
        whole(address, board, draw(st.sampled_from([0, 1])))
        if draw(st.integers(0, 5)) == 0
        else gpu(address, board, draw(st.sampled_from([0, 0, 1, 1, None])), draw(st.sampled_from(MODES[board])))
        for address in at
    ]
    esx = host(f"esx-{number}", *gpus, cluster=draw(st.sampled_from(["domain-c1", "domain-c2", None])))
    return replace(esx, assignment_policy=draw(st.sampled_from([*AssignmentPolicy, None])), cpu_mhz=2000)


@st.composite
def peculiar(draw: st.DrawFn, plain: Host) -> Host:
    """The host as it is, mostly; or with one property that rules it out or is unknown."""
    oddities: list[dict[str, Any]] = [
        {"connected": False},
        {"connected": None},
        {"in_maintenance": True},
        {"in_maintenance": None},
        {"memory_mib": 200_000},
        {"memory_mib": None},
        {"profiles": None},
        {"cpu_threads": 24},
        {"cpu_threads": None},
        {"cluster": "domain-c1"},
    ]
    return replace(plain, **draw(st.sampled_from([{}] * len(oddities) + oddities)))


@st.composite
def fleets(draw: st.DrawFn) -> Inventory:
    """Hosts of few kinds, as in most fleets: between equals it is the last rule that decides."""
    kinds = draw(st.lists(hosts(1), min_size=1, max_size=2))
    plain_hosts = [replace(draw(st.sampled_from(kinds)), ref=f"host-{n}", name=f"esx-{n}") for n in range(1, 6)]
    return inventory([draw(peculiar(esx)) for esx in plain_hosts], [])


@st.composite
def vms(draw: st.DrawFn, number: int, fleet: Inventory) -> Vm:
    board_names = " ".join(gpu.name.lower() for esx in fleet.hosts.values() for gpu in esx.gpus)
    kind = draw(st.sampled_from([kind for kind in sorted(KINDS) if kind in board_names]))
    dynamic = st.just("dynamic 10de:26b9") if kind == "l40s" else st.just("dynamic 10de:20f1")
    vgpu = st.sampled_from([f"vgpu {name}" for name in KINDS[kind]])
    devices = draw(st.lists(st.one_of(vgpu, vgpu, vgpu, dynamic), min_size=1, max_size=3))
    if draw(st.booleans()):
        devices = devices[:1] * len(devices)
    drawn_vm = vm(number, f"vm-{number}", "9", *devices)
    return replace(
        drawn_vm,
        host=draw(st.sampled_from([None, None, *(f"host-{n}" for n in range(1, len(fleet.hosts) + 1))])),
        vcpus=draw(st.sampled_from([4, 16, 16, 40, None])),
        memory_mib=draw(st.sampled_from([4096, 32768, 65536, 150_000, 300_000, None])),
    )


@st.composite
def keep_free_options(draw: st.DrawFn) -> KeepFree:
    """Mostly nothing; else one or two profiles, in numbers that such a small fleet may have or not."""
    count = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=count, max_size=count, unique=True))
    return KeepFree(tuple(KeptProfile(name, draw(st.integers(0, 30))) for name in names), draw(st.booleans()))


@st.composite
def questions(draw: st.DrawFn, number: int, world: Inventory) -> Wanted:
    drawn_vm = draw(vms(number, world))
    refs = sorted(world.hosts)
    among = draw(st.sampled_from([refs, refs, refs[1:], list(reversed(refs))]))
    among.sort(key=lambda ref: world.hosts[ref].name)
    return Wanted(
        drawn_vm,
        demands_of(drawn_vm.devices or (), {}),
        tuple(among),
        draw(st.sampled_from(list(NumaPolicy))),
        draw(st.sampled_from(list(PinPolicy))),
        tuple(draw(st.lists(st.sampled_from(refs), max_size=2))),
        explain=False,
        chooses_gpu=draw(st.booleans()),
        coming=count_shapes(draw(st.lists(vms(90, world), max_size=2)), catalog()),
        keep_free=draw(keep_free_options()),
    )


def comparable(placement: Placement) -> tuple[object, ...]:
    return placement.host, placement.seats, placement.pins, placement.numa_node, placement.doubts


@pytest.mark.long
@FEW
@given(st.data())
def test_the_index_answers_as_the_exact_pass(draws: st.DataObject) -> None:
    world = draws.draw(fleets())
    for number in range(1, 16):
        question = draws.draw(questions(number, world))
        exact, quick = place_exactly(question, world, catalog()), place_in_fleet(question, world, catalog())
        if quick is not None:
            assert isinstance(exact, Placement)
            assert comparable(quick) == comparable(exact)
        elif not (question.mixed and question.numa is NumaPolicy.PREFERRED):
            assert not isinstance(exact, Placement) or exact.doubts
        if isinstance(exact, Placement):
            started = running(question.vm, exact, question.numa)
            cpu_mhz = draws.draw(st.sampled_from([None, 0, 20_000]))
            started = replace(started, memory_reservation_mib=question.vm.memory_mib, cpu_reservation_mhz=cpu_mhz)
            world = take(started, world, catalog())
        if world.vms and draws.draw(st.integers(0, 3)) == 0:
            world = _without_running(draws.draw(st.sampled_from(sorted(world.vms))), world)


def _without_running(ref: str, world: Inventory) -> Inventory:
    released = release(replace(world.vms[ref], power=PowerState.OFF), world)
    return without_vm(ref, released)


def wanted_anywhere(world: Inventory, number: int = 1, profile: str = "nvidia_a40-8q") -> Wanted:
    new_vm = replace(vm(number, f"new-{number}", "9", f"vgpu {profile}"), host=None)
    return Wanted(new_vm, demands_of(new_vm.devices or (), {}), tuple(world.hosts), NumaPolicy.PREFERRED, explain=False)


class TestIndex:
    def test_a_fleet_is_read_once_and_then_where_it_changed(self) -> None:
        world = inventory([host(f"esx-{n}", gpu(FIRST, "a40")) for n in range(1, 4)], [])
        fleet = FleetIndex.of(world, catalog())
        with_running_vm = take(replace(vm(1, "a", "2", "vgpu nvidia_a40-48q"), power=PowerState.ON), world, catalog())
        assert FleetIndex.of(with_running_vm, catalog()) is fleet
        assert [int(number) for number in (fleet.state[:, 0] != fleet.state[0, 0]).nonzero()[0]] == [1]
        assert FleetIndex.of(world, catalog()) is fleet
        assert len(set(fleet.state[:, 0].tolist())) == 1

    def test_hosts_that_come_and_go_are_seen(self) -> None:
        world = inventory([host(f"esx-{n}", gpu(FIRST, "a40")) for n in range(1, 4)], [])
        FleetIndex.of(world, catalog())
        with_fourth_host = world.with_hosts([host("esx-4", gpu(FIRST, "a40"), gpu(SECOND, "a40", 1))])
        assert [indexed.name for indexed in FleetIndex.of(with_fourth_host, catalog()).hosts] == [
            "esx-1",
            "esx-2",
            "esx-3",
            "esx-4",
        ]
        assert len(FleetIndex.of(world, catalog()).hosts) == 3

    def test_a_host_with_another_gpu_is_read_anew(self) -> None:
        world = inventory([host(f"esx-{n}", gpu(FIRST, "a40")) for n in range(1, 3)], [])
        FleetIndex.of(world, catalog())
        with_other_gpu = world.with_hosts([host("esx-1", gpu(FIRST, "a40"), gpu(SECOND, "a40"))])
        assert FleetIndex.of(with_other_gpu, catalog()).state.shape == (2, 2)


class TestPlace:
    @pytest.fixture
    def fleet(self) -> Inventory:
        return inventory([host(f"esx-{n}", gpu(FIRST, "a40"), gpu(SECOND, "a40", 1)) for n in range(1, 21)], [])

    def test_a_fleet_is_asked_through_its_index(self, fleet: Inventory) -> None:
        placement = place(wanted_anywhere(fleet), fleet, catalog())
        assert isinstance(placement, Placement)
        assert (placement.host.name, placement.choices) == ("esx-1", ())
        assert FleetIndex in fleet.worked_out

    def test_reasons_are_told_where_they_are_asked_for(self, fleet: Inventory) -> None:
        placement = place(replace(wanted_anywhere(fleet), explain=True), fleet, catalog())
        assert isinstance(placement, Placement)
        assert len(placement.choices) == 20

    def test_refusals_are_told_in_full(self, fleet: Inventory) -> None:
        rejections = place(wanted_anywhere(fleet, profile="nvidia_l40s-8c"), fleet, catalog())
        assert not isinstance(rejections, Placement)
        assert len(rejections) == 20

    def test_beside_the_gpu_before_the_first_name(self, fleet: Inventory) -> None:
        world = fleet.with_hosts([host("esx-1", gpu(FIRST, "a40", None))])
        placement = place(wanted_anywhere(world), world, catalog())
        assert isinstance(placement, Placement)
        assert placement.host.name == "esx-10"

    def test_what_reserves_cpu_is_asked_of_each_host(self, fleet: Inventory) -> None:
        question = wanted_anywhere(fleet)
        question = replace(question, vm=replace(question.vm, cpu_reservation_mhz=1000))
        assert place_in_fleet(question, fleet, catalog()) is None
        hosts = {ref: replace(esx, cpu_mhz=2000 if ref == "host-7" else 1) for ref, esx in fleet.hosts.items()}
        placement = place(question, replace(fleet, hosts=hosts), catalog())
        assert isinstance(placement, Placement) and placement.host.ref == "host-7"

    def test_a_vm_stays_where_it_can(self, fleet: Inventory) -> None:
        question = wanted_anywhere(fleet)
        question_with_host = replace(question, vm=replace(question.vm, host="host-7"))
        placement = place(question_with_host, fleet, catalog())
        assert isinstance(placement, Placement)
        assert placement.host.name == "esx-7"
