"""The hosts' own choice: on which GPUs each host would put the VM's devices, over all hosts of a fleet at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.numa import NumaPolicy
from gpuops.plan.placement.fleet.index import BY_SIZE, UNIT, Fleet
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.wanted import Demand, PinPolicy, Wanted, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Ints

_NOWHERE: Final = 2**62


@dataclass(frozen=True, slots=True)
class Ways:
    """Feasible places, one each: a host, or one of its NUMA nodes where locality is required."""

    rows: Ints
    """Of the index, of all places together; those of one place lie together."""
    place_of: Ints
    """For each of these rows, its place."""
    before: Ints
    """The states of the GPUs of these rows."""
    after: Ints
    """The same once the VM is there."""
    seats: tuple[tuple[Ints, Ints], ...]
    """For each demand and each place, which of these rows and which GPU of it."""


def ways_of(wanted: Wanted, rows: Ints, fleet: Fleet) -> Ways:
    """The places among these rows that have, for certain, a seat for each demand where the host would put it."""
    if wanted.numa is NumaPolicy.REQUIRED:
        rows = rows[~_needs_forbidden_pin(rows, wanted, fleet)]
    return _seated(rows, wanted, fleet)


def first_choice(profile: str, rows: Ints, fleet: Fleet) -> tuple[int, int]:
    """The row and the GPU, among these of one host where there is one, that it would choose for a vGPU."""
    free = fleet.states.vgpu_surely(profile).of(fleet.state[rows])
    row, gpu = divmod(int(np.where(free, fleet.order[rows], _NOWHERE).argmin()), fleet.state.shape[1])
    return int(rows[row]), gpu


def _needs_forbidden_pin(rows: Ints, wanted: Wanted, fleet: Fleet) -> Flags:
    """Where only a pin would keep the vGPU on its node, and pinning is switched off."""
    forbidden = np.zeros(len(rows), dtype=np.bool_)
    if wanted.pin is not PinPolicy.NEVER:
        return forbidden
    for profile in {demand.profile for demand in wanted.demands if isinstance(demand, WantsVgpu)}:
        able = fleet.states.made_for(profile).of(fleet.state).sum(axis=1)
        on_host = np.add.reduceat(able, fleet.first_row[:-1])
        forbidden |= on_host[fleet.host_of[rows]] > able[rows]
    return forbidden


def _seated(rows: Ints, wanted: Wanted, fleet: Fleet) -> Ways:
    """Each demand in turn on the GPU that each host would choose; places where one finds none are left out."""
    place_of = rows if wanted.numa is NumaPolicy.REQUIRED else fleet.host_of[rows]
    before = fleet.state[rows]
    after, order = before.copy(), fleet.order[rows]
    mine = np.zeros(after.shape, dtype=np.bool_)
    seats: list[tuple[Ints, Ints]] = []
    for demand in in_order_of_seating(wanted.demands):
        row, gpu = _first_in_order(demand, after, order, place_of, fleet)
        found = np.zeros(len(fleet.host_of), dtype=np.bool_)
        found[place_of[row]] = True
        kept = found[place_of]
        shift = np.cumsum(kept) - 1
        seats = [(shift[r[kept[r]]], g[kept[r]]) for r, g in (*seats, (row, gpu))]
        rows, place_of, before = rows[kept], place_of[kept], before[kept]
        after, order, mine = after[kept], order[kept], mine[kept]
        _take(demand, *seats[-1], after, order, mine, fleet.more[rows], fleet)
    numbers = np.cumsum(place_of[1:] != place_of[:-1])
    numbers = np.concatenate([np.zeros(min(1, len(rows)), dtype=np.int64), numbers])
    return Ways(rows, numbers, before, after, tuple(seats))


def _first_in_order(demand: Demand, states: Ints, order: Ints, place_of: Ints, fleet: Fleet) -> tuple[Ints, Ints]:
    """For each place with a seat for the demand: the row and the GPU that come first in the host's order."""
    if isinstance(demand, WantsVgpu):
        key = np.where(fleet.states.vgpu_surely(demand.profile).of(states), order, _NOWHERE)
    else:
        assert isinstance(demand, WantsDynamic), "others are not ours to place"
        key = np.where(fleet.states.whole_free(demand).of(states), order % UNIT, _NOWHERE)
    gpu = key.argmin(axis=1)
    best = key[np.arange(len(key)), gpu] if len(key) else gpu
    if not len(best):
        return best, gpu
    of_place = np.full(len(fleet.host_of), _NOWHERE)
    np.minimum.at(of_place, place_of, best)
    row = np.flatnonzero((best == of_place[place_of]) & (best < _NOWHERE))
    return row, gpu[row]


def _take(
    demand: Demand, row: Ints, gpu: Ints, states: Ints, order: Ints, mine: Flags, more: Ints, fleet: Fleet
) -> None:
    """The demand on these GPUs: their states, and their places in the order of choice."""
    if not isinstance(demand, WantsVgpu):
        states[row, gpu] = fleet.states.given_whole().of(states[row, gpu])
        return
    states[row, gpu] = fleet.states.with_vgpu(demand.profile).of(states[row, gpu])
    facts = fleet.catalog.profile(demand.profile)
    size = (facts.framebuffer_mib if facts is not None else 0) * UNIT
    one_more = more[row, gpu]
    order[row, gpu] += np.where(one_more == BY_SIZE, size, np.where(mine[row, gpu], 0, one_more))
    mine[row, gpu] = True
