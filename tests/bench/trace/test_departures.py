"""Streams of VMs that come and go: what the fluid reference takes, on a fleet of one host."""

from __future__ import annotations

import pytest

from gpuops.plan.placement.fleet.geometry import PoolRequest
from tests.bench.trace import departures
from tests.bench.trace.departures import fluid_hours, play_stream
from tests.bench.trace.profiles import STEP
from tests.bench.trace.vgpu_across import Engine
from tests.bench.trace.vgpu_rules import pool_of
from tests.bench.trace.vgpu_world import HOSTS, Request, Scenario

WHOLE, HALF = 5, 4
"""Kinds of the same-size profiles 40C and 20C."""


def of(*requests: tuple[int, float], cpu: int = 0) -> Scenario:
    return Scenario(
        "made up",
        "ts",
        "G3",
        tuple(Request(PoolRequest(kind, 1, cpu, 1024), stay, 1.0) for kind, stay in requests),
        False,
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HOSTS_EACH", 1), ("ARRIVALS", 400), ("WARM", 100)):
        monkeypatch.setattr(departures, name, value)


@pytest.mark.long
@pytest.mark.parametrize("load", [0.2, 1.2])
def test_the_reference_takes_all_that_is_small_and_is_never_below_a_rule(
    load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole GPUs alone packing is perfect, so that the engine takes just what the reference does."""
    monkeypatch.setattr(departures, "LOAD", load)
    whole = of((WHOLE, 3600.0))
    pool = pool_of(Engine, whole, 1, STEP)
    outcome = play_stream(departures.Stream(whole, pool), 1)
    assert outcome.hours == pytest.approx(fluid_hours(whole, 1))
    assert (outcome.hours == 100.0) is (load < 1)


@pytest.mark.long
def test_memory_hours_count_stays_and_not_vms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where VMs that stay long are as many as those that do not, nearly all that is placed is theirs."""
    monkeypatch.setattr(departures, "LOAD", 3.0)
    mixed = of((WHOLE, 60.0), (WHOLE, 36_000.0))
    outcome = play_stream(departures.Stream(mixed, pool_of(Engine, mixed, 1, STEP)), 1)
    assert outcome.allocated > outcome.hours > 20


@pytest.mark.long
def test_the_reference_packs_cores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each VM takes a quarter of a host's cores, four of eight GPUs are all that anybody can give."""
    monkeypatch.setattr(departures, "LOAD", 3.0)
    thirsty = of((WHOLE, 3600.0), cpu=HOSTS["G3"][0] // 4)
    outcome = play_stream(departures.Stream(thirsty, pool_of(Engine, thirsty, 1, STEP)), 1)
    assert outcome.hours == pytest.approx(fluid_hours(thirsty, 1))
    assert outcome.hours < fluid_hours(of((WHOLE, 3600.0)), 1) / 1.5


def test_hours_are_those_between_the_warm_up_and_the_last_arrival() -> None:
    """A VM that came earlier counts for the rest of its stay, and none for later hours."""
    come = departures.Arrivals([0] * 200, [float(at) for at in range(200)], [2] * 200, [60.0] * 200)
    assert [come.hours(at) for at in (0, 39, 40, 41, 99, 100, 139, 140, 199)] == [0, 0, 0, 2, 118, 120, 120, 118, 0]
