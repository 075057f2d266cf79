"""The fleets that fill: their bound is one, and the simulated vCenter over the wire comes to the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gpuops.model.devices.gpu import VgpuMode
from gpuops.plan.queue.one_workload import Placed
from gpuops.sim.state.gpu_admission import NotAdmitted, VgpuPolicy, WantedVgpu, admit
from tests.bench.placement import filling
from tests.bench.placement.filling_bound import fillings, memory_bound
from tests.bench.placement.filling_fleet import FLEETS, HOSTS, SEVERAL, FillingFleet, FleetKind
from tests.bench.placement.filling_rules import RULES, fill
from tests.bench.simulator.simulated_fleet import simulated_fleet

SMALL = FleetKind("small", "a100", (VgpuMode.MULTI_INSTANCE,), ("a100-1-5c", "a100-3-20c"), "a100-7-40c", 0.1)


def test_fillings_are_what_admission_lets_start_in_some_order() -> None:
    """Every set of vGPUs that one GPU admits lies within a filling, and every filling is admitted in some order."""
    profiles = ("grid_a100-1-5c", "grid_a100-3-20c", "grid_a100-4-20c")
    full_counts = fillings("a100", VgpuMode.MULTI_INSTANCE, profiles)
    load = next(iter(FillingFleet(SMALL, starts=False).loads.values()))[0]
    reached = set()
    for order in product(profiles, repeat=5):
        seats, counts = load, [0, 0, 0]
        for name in order:
            admitted = admit("vm", [WantedVgpu(name)], [seats], VgpuPolicy.CONSOLIDATION)
            if not isinstance(admitted, NotAdmitted):
                seats = replace(seats, seats=(*seats.seats, *admitted))
                counts[profiles.index(name)] += 1
                reached.add(tuple(counts))
    assert all(
        any(all(a <= b for a, b in zip(reached_counts, full_count, strict=True)) for full_count in full_counts)
        for reached_counts in reached
    )
    assert full_counts == ((0, 1, 1), (0, 2, 0), (3, 0, 1), (4, 1, 0), (7, 0, 0))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", FLEETS + SEVERAL, ids=lambda kind: kind.name)
def test_no_rule_is_above_the_bound(kind: FleetKind) -> None:
    kind = kind.drawn(1)
    requests = kind.requests(1)
    fleet = FillingFleet(kind, starts=False)
    fill(RULES["first fit"], fleet, requests)
    assert 70 < fleet.filled <= memory_bound(kind, requests) + 1e-6 <= 100 + 1e-6


@pytest.mark.long
@pytest.mark.parametrize("starts", [True, False])
def test_a_fleet_is_filled_by_place_without_a_refusal(starts: bool) -> None:
    """Every promised slot can be used. If vCenter shows vGPU start offsets, all slots are; if not, a promise covers the
    worst case.
    """
    fleet = FillingFleet(SMALL, starts=starts)
    assert filling.fill_by_place(fleet, SMALL.requests(1)) == 0
    assert fleet.filled > 90


@pytest.mark.long
def test_over_the_wire_every_vm_gets_the_gpu_that_it_gets_here() -> None:
    """The same plans, done on a simulated vCenter at the other end of the wire."""
    fleet = FillingFleet(SMALL, starts=False)
    with simulated_fleet(HOSTS, "multiInstanceGpu", "consolidation") as wire:
        hosts = {host.name.partition(".")[0]: host for host in wire.seen.hosts.values()}
        for number, (profile, count) in enumerate(SMALL.requests(1)[:40]):
            placed = filling.answer(fleet, number, profile, count)
            assert isinstance(placed, Placed)
            seats = fleet.power_on(placed.vm, placed.placement.host.ref, placed.placement.pins)
            assert not isinstance(seats, NotAdmitted)
            number_of = int(placed.placement.host.name.rpartition("-")[2])
            host = hosts[f"esx-{number_of:03}"]
            gpus = wire.start(replace(placed, placement=replace(placed.placement, host=host)))
            assert gpus == tuple(seat.pci_id for seat in seats)
