"""Hosts that choose GPUs and starts otherwise than documented: what `place` promises is admitted all the same."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.plan.queue.one_workload import Placed
from gpuops.sim.state.gpu_admission import Deviation, GpuOrder, NotAdmitted, StartOrder
from tests.bench.placement.filling import answer
from tests.bench.placement.filling_fleet import FLEETS, SEVERAL, FillingFleet, FleetKind


def promises_of(kind: FleetKind, seed: int, deviation: Deviation, *, starts: bool) -> int:
    """Fill one host by what `place` says, and return how many of its promises were certain: all of these are kept."""
    fleet, certain = FillingFleet(kind, starts=starts, host_count=1, deviation=deviation), 0
    requests = kind.requests(seed)
    Random(seed).shuffle(requests)
    for number, (profile, count) in enumerate(requests[:40]):
        placed = answer(fleet, number, profile, count)
        if not isinstance(placed, Placed):
            continue
        placement = placed.placement
        admitted = fleet.power_on(placed.vm, placement.host.ref, placement.pins)
        if not placement.doubts:
            assert not isinstance(admitted, NotAdmitted), f"{number}: {count} x {profile} was promised: {admitted}"
            certain += 1
    return certain


@pytest.mark.long
@given(
    kind=st.sampled_from(FLEETS + SEVERAL),
    seed=st.integers(0, 1 << 20),
    gpus=st.sampled_from(GpuOrder),
    starts=st.sampled_from(StartOrder),
    checks_start=st.booleans(),
)
@settings(deadline=None)
def test_a_certain_place_is_admitted(
    kind: FleetKind, seed: int, gpus: GpuOrder, starts: StartOrder, checks_start: bool
) -> None:
    promises_of(kind, seed, Deviation(gpus, starts), starts=checks_start)


@pytest.mark.parametrize("gpus", GpuOrder)
def test_such_promises_are_made(gpus: GpuOrder) -> None:
    """Else the property would say nothing."""
    assert promises_of(FLEETS[0], 1, Deviation(gpus, StartOrder.HIGHEST), starts=True) > 5
