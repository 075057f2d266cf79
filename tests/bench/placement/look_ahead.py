"""How near to the bounds of `filling` a rule can come that moves nothing and does not know who will come.

For each VM every GPU with room is tried: how much is placed at the end if those that come later are drawn by chance
from the shares of the profiles, and FGD places them. Where that is most, on the mean over the same futures for each
GPU, the VM goes. It knows the shares and how much will be asked for, which no site tells, and takes thousands of times
as long as a decision may. Beside it the same with the one future that comes: what a rule could make of knowing it,
without moving or refusing anybody. Neither is a bound: who comes later is placed by FGD, which in MIG mode is no good
rule.

Starts are told, and the simulator's admission lets GPUs fill, as in `filling.py`; CPU and memory are no limit there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from os import cpu_count
from statistics import mean, stdev
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.sim.state.board import board
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, VgpuPolicy, WantedVgpu, admit
from tests.bench.placement.filling import SEEDS
from tests.bench.placement.filling_fleet import FLEETS, GPUS, HOSTS, MIG, MIXED, MODES, FleetKind
from tests.bench.verdict import Figure, Result

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

FUTURES: Final = 40
FROM: Final = 0.4
"""Share of the fleet's memory that is asked for before it looks ahead; until then FGD places."""
NOBODY: Final = -1
NO_ROOM: Final = np.inf


@dataclass(frozen=True)
class GpuTable:
    """What a GPU of the fleet can be, state 0 = empty, and what a vGPU of each profile makes of it."""

    profiles: tuple[str, ...]
    shares: Floats
    sizes_mib: Floats
    after: Ints
    """By state and profile; -1 = not admitted."""
    cost: Floats
    """The fragmentation that it adds (Weng et al., USENIX ATC 2023), of equals the fullest GPU."""


@cache
def gpu_table(kind: FleetKind) -> GpuTable:
    """Every state that admission can lead to, from the empty GPU on."""
    profiles = tuple(kind.shares())
    sizes = np.array([float(kind.size_mib(profile)) for profile in profiles])
    shares = np.array(list(kind.shares().values()))
    loads = [GpuLoad("0000:10:00.0", board(kind.board), MODES[kind.modes[0]], serves_vgpus=True)]
    numbers = {_places(loads[0]): 0}
    after: list[list[int]] = []
    while len(after) < len(loads):
        load, row = loads[len(after)], []
        for profile in profiles:
            seats = admit("vm", [WantedVgpu(profile)], [load], VgpuPolicy.CONSOLIDATION)
            if isinstance(seats, NotAdmitted):
                row.append(NOBODY)
                continue
            then = replace(load, seats=(*load.seats, *seats))
            if _places(then) not in numbers:
                numbers[_places(then)] = len(loads)
                loads.append(then)
            row.append(numbers[_places(then)])
        after.append(row)
    table = np.array(after)
    free = np.array([sizes.max() - sum(kind.size_mib(seat.type.name) for seat in load.seats) for load in loads])
    fragments = shares @ np.maximum(0, free - _rooms(table).T * sizes[:, None])
    cost = np.where(table == NOBODY, NO_ROOM, fragments[table] - fragments[:, None] + 1e-6 * free[:, None])
    return GpuTable(profiles, shares, sizes, table, cost)


def _places(load: GpuLoad) -> tuple[tuple[int, int], ...]:
    """(start, size of the profile in MiB) of each vGPU."""
    return tuple(sorted((seat.start or 0, seat.type.framebuffer_mib) for seat in load.seats))


def _rooms(after: Ints) -> Ints:
    """How many vGPUs of each profile fit in each state, one after the other."""
    rooms = np.zeros_like(after)
    for profile in range(after.shape[1]):
        now = np.arange(len(after))
        while (now != NOBODY).any():
            now = np.where(now == NOBODY, NOBODY, after[now, profile])
            rooms[:, profile] += now != NOBODY
    return rooms


def filled(kind: FleetKind, seed: int, *, foresees: bool) -> float:
    """Percent of the fleet's GPU memory. `foresees`: the future is that which comes, else it is drawn by chance."""
    table, chance = gpu_table(kind), np.random.default_rng(seed)
    coming = np.array([table.profiles.index(profile) for profile, _ in kind.requests(seed)])
    states = np.zeros(HOSTS * GPUS, dtype=np.int64)
    asked_mib = placed_mib = 0.0
    for at, profile in enumerate(coming.tolist()):
        asked_mib += table.sizes_mib[profile]
        ways = [state for state in np.unique(states).tolist() if table.after[state, profile] != NOBODY]
        if not ways:
            continue
        ways.sort(key=lambda state: table.cost[state, profile])
        if len(ways) > 1 and asked_mib >= FROM * kind.memory_mib:
            left_mib = kind.memory_mib - asked_mib
            futures = coming[None, at + 1 :] if foresees else _futures(table, left_mib, chance)
            ways = [ways[int(_placed_later(table, states, profile, ways, futures).argmax())]]
        gpu = int(np.flatnonzero(states == ways[0])[0])
        states[gpu] = table.after[ways[0], profile]
        placed_mib += table.sizes_mib[profile]
    return 100 * placed_mib / kind.memory_mib


def _futures(table: GpuTable, left_mib: float, chance: np.random.Generator) -> Ints:
    """Profiles that come until so much more was asked for, a row for each future; -1 after that."""
    longest = int(left_mib / table.sizes_mib.min()) + 1
    drawn = chance.choice(len(table.profiles), (FUTURES, longest), p=table.shares)
    ended = np.cumsum(table.sizes_mib[drawn], axis=1) > left_mib
    drawn = np.where(ended, NOBODY, drawn)
    return drawn[:, : int((~ended).sum(axis=1).max())]


def _placed_later(table: GpuTable, states: Ints, profile: int, ways: Sequence[int], futures: Ints) -> Floats:
    """Of each way, a state of the GPU that the VM takes: the memory that FGD places later, the mean of all futures."""
    many = len(futures)
    fleets = np.repeat(states[None, :], len(ways) * many, axis=0)
    for number, way in enumerate(ways):
        gpu = int(np.flatnonzero(states == way)[0])
        fleets[number * many : (number + 1) * many, gpu] = table.after[way, profile]
    comes, rows = np.tile(futures, (len(ways), 1)), np.arange(len(fleets))
    placed = np.zeros(len(fleets))
    for step in range(futures.shape[1]):
        wanted = np.maximum(0, comes[:, step])
        costs = table.cost[fleets, wanted[:, None]]
        gpus = costs.argmin(axis=1)
        fits = (costs[rows, gpus] < NO_ROOM) & (comes[:, step] != NOBODY)
        now = fleets[rows, gpus]
        fleets[rows, gpus] = np.where(fits, table.after[now, wanted], now)
        placed += np.where(fits, table.sizes_mib[wanted], 0.0)
    of_way: Floats = placed.reshape(len(ways), many).mean(axis=1)
    return of_way


def run() -> Result:
    """Per fleet whose GPUs have starts; nothing is judged."""
    return Result(f"fleets that fill by looking ahead, {len(SEEDS)} seeds each", tuple(_figures()))


def _figures() -> Iterator[Figure]:
    kinds = [kind for kind in FLEETS if kind.modes in ((MIG,), (MIXED,))]
    jobs = [(kind, seed, foresees) for kind in kinds for foresees in (False, True) for seed in SEEDS]
    with ProcessPoolExecutor(cpu_count()) as workers:
        done = dict(zip(jobs, workers.map(_filled, jobs), strict=True))
    for kind in kinds:
        for foresees, what in ((False, "knows the shares"), (True, "knows who comes")):
            each = [done[kind, seed, foresees] for seed in SEEDS]
            doubt = 1.96 * stdev(each) / len(each) ** 0.5
            yield Figure(f"{kind.name}: {what}, 95 % within {doubt:.2f}", mean(each), "%")


def _filled(job: tuple[FleetKind, int, bool]) -> float:
    kind, seed, foresees = job
    return filled(kind, seed, foresees=foresees)
