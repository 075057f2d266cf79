"""A batch that asks for all GPU memory of a fleet, placed at once and then started on the simulator as prescribed.

Measured per fleet: the GPU memory placed beside the bound on what any plan could place, and the power-ons that the
simulated hosts refuse when the VMs are started in the order of the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Final

from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.vgpu import Series, VgpuProfile
from gpuops.model.workloads.workload import Workload
from gpuops.plan.queue.batch.place_all import most_placeable_mib
from gpuops.plan.queue.place import Place, Placements
from tests.bench.simulator.simulated_fleet import GPUS, simulated_fleet
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import catalog

HOSTS: Final = 8
SEEDS: Final = tuple(range(100, 106))
WHOLE_GPU: Final = 0.1
"""Share of the VMs that ask for a whole GPU; the others are of any smaller size, each as likely."""
MOST_BELOW: Final = 0.2


@dataclass(frozen=True, slots=True)
class Fleet:
    """Eight hosts of eight GPUs of one model in one mode."""

    board: str
    mode: VgpuMode

    def __str__(self) -> str:
        return f"{self.board} {self.mode.value}"


FLEETS: Final = (
    Fleet("h100", VgpuMode.MULTI_INSTANCE),
    Fleet("a100", VgpuMode.MULTI_INSTANCE),
    Fleet("l40s", VgpuMode.MIXED_SIZE),
    Fleet("a40", VgpuMode.MIXED_SIZE),
    Fleet("a40", VgpuMode.SAME_SIZE),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Percent of the fleet's GPU memory, and why power-ons were refused."""

    placed: float
    bound: float
    refusals: tuple[str, ...]


def run() -> Result:
    """Per fleet the mean over the seeds; judged: the distance to the bound, and that no power-on is refused."""
    return Result("batch: 100 % of GPU memory asked for at once, started on the simulator", tuple(_figures()))


def _figures() -> Iterator[Figure]:
    for fleet in FLEETS:
        outcomes = [play_batch(fleet, seed) for seed in SEEDS]
        yield Figure(f"{fleet}: GPU memory placed", mean(outcome.placed for outcome in outcomes), "%")
        below = mean(outcome.bound - outcome.placed for outcome in outcomes)
        yield Figure(f"{fleet}: below the bound", below, "points", MOST_BELOW)
        refused = sum(len(outcome.refusals) for outcome in outcomes)
        yield Figure(f"{fleet}: power-ons refused in the order prescribed", refused, "", 0)


def play_batch(fleet: Fleet, seed: int) -> Outcome:
    """One batch, planned and started."""
    workloads = batch(fleet, seed)
    with simulated_fleet(HOSTS, fleet.mode.value, "performance", fleet.board) as simulated:
        placements = Place(workloads, optimize=True).placements(simulated.seen, simulated.catalog)
        most_mib = most_placeable_mib(workloads, simulated.seen, simulated.catalog)
        refusals = simulated.refusals(placements.placed)
    return Outcome(percent(fleet, placed_mib(placements)), percent(fleet, most_mib), tuple(refusals))


def batch(fleet: Fleet, seed: int, gpus: int = HOSTS * GPUS) -> tuple[Workload, ...]:
    """VMs by chance until they ask for all GPU memory of so many GPUs."""
    chance = random.Random(seed)
    whole, *smaller = _profiles(fleet)
    left_mib = gpus * _board(fleet).framebuffer_mib
    workloads: list[Workload] = []
    while left_mib > 0:
        profile = whole if chance.random() < WHOLE_GPU else chance.choice(smaller)
        left_mib -= profile.framebuffer_mib
        workloads.append(Workload(f"vm-{len(workloads):04}", 4, 8 * 1024, profile.name))
    return tuple(workloads)


def placed_mib(placements: Placements) -> int:
    """GPU memory that has a place."""
    assert placements.optimum is not None
    return placements.optimum.placed_mib


def percent(fleet: Fleet, memory_mib: int) -> float:
    """Of the fleet's GPU memory."""
    return 100 * memory_mib / (HOSTS * GPUS * _board(fleet).framebuffer_mib)


def _board(fleet: Fleet) -> Board:
    board = catalog().board(fleet.board)
    assert board is not None, fleet.board
    return board


def _profiles(fleet: Fleet) -> list[VgpuProfile]:
    """The compute profiles that run in the mode, largest first; without those that own the media engines."""
    mig = fleet.mode is VgpuMode.MULTI_INSTANCE
    profiles = [
        profile
        for profile in _board(fleet).profiles
        if profile.series is Series.C
        and profile.mig_backed is mig
        and not profile.name.endswith("me")
        and (fleet.mode is not VgpuMode.MIXED_SIZE or profile.placement_ids_mixed)
    ]
    return sorted(
        profiles, key=lambda profile: (-profile.framebuffer_mib, -(profile.compute_slices or 0), profile.name)
    )
