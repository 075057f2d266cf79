"""The hosts' own choices: on which GPUs each host would put the VM's devices, for all hosts of a fleet at once.

`choice.py` calls it. It does with arrays what `seating.py` does for one host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.vcenter.host import NumaPolicy
from gpuops.plan.placement.fleet.index import BY_SIZE, ORDER_UNIT, FleetIndex
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.vm_demand import Demand, PinPolicy, Wanted, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Ints

_NOWHERE: Final = 2**62


@dataclass(frozen=True, slots=True)
class HostChoices:
    """Feasible places: hosts, or NUMA nodes of hosts where locality is required."""

    rows: Ints
    """The rows of the index of all places; the rows of one place are consecutive."""
    place_of: Ints
    """For each of these rows, its place."""
    before: Ints
    """The states of the GPUs of these rows."""
    after: Ints
    """The states once the VM is there."""
    seats: tuple[tuple[Ints, Ints], ...]
    """For each demand and each place: the position in `rows`, and the GPU."""


def host_choices(needs: Wanted, rows: Ints, fleet: FleetIndex) -> HostChoices:
    """Return the places among these rows with a certain seat for each demand, where the host would put it."""
    if needs.numa is NumaPolicy.REQUIRED:
        rows = rows[~_needs_forbidden_pin(rows, needs, fleet)]
    return _seat_demands(rows, needs, fleet)


def first_choice(profile: str, rows: Ints, fleet: FleetIndex) -> tuple[int, int]:
    """Return the row and the GPU that a host would choose for a vGPU, among these rows of it."""
    free = fleet.states.vgpu_surely(profile).of(fleet.state[rows])
    row, gpu = divmod(int(np.where(free, fleet.order[rows], _NOWHERE).argmin()), fleet.state.shape[1])
    return int(rows[row]), gpu


def _needs_forbidden_pin(rows: Ints, needs: Wanted, fleet: FleetIndex) -> Flags:
    """Which rows need a pin to keep the vGPU on its node while pinning is switched off."""
    forbidden = np.zeros(len(rows), dtype=np.bool_)
    if needs.pin is not PinPolicy.NEVER:
        return forbidden
    for profile in {demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu)}:
        able = fleet.states.made_for(profile).of(fleet.state).sum(axis=1)
        on_host = np.add.reduceat(able, fleet.first_row[:-1])
        forbidden |= on_host[fleet.host_of[rows]] > able[rows]
    return forbidden


def _seat_demands(rows: Ints, needs: Wanted, fleet: FleetIndex) -> HostChoices:
    """Seat the demands in turn on the GPU that each host would choose, dropping places without room for one of them."""
    place_of = rows if needs.numa is NumaPolicy.REQUIRED else fleet.host_of[rows]
    before = fleet.state[rows]
    after, order = before.copy(), fleet.order[rows]
    taken_by_vm = np.zeros(after.shape, dtype=np.bool_)
    seats: list[tuple[Ints, Ints]] = []
    for demand in in_order_of_seating(needs.demands):
        row, gpu = _first_with_room(demand, after, order, place_of, fleet)
        has_room = np.zeros(len(fleet.host_of), dtype=np.bool_)
        has_room[place_of[row]] = True
        surviving = has_room[place_of]
        shift = np.cumsum(surviving) - 1
        seats = [(shift[r[surviving[r]]], g[surviving[r]]) for r, g in (*seats, (row, gpu))]
        rows, place_of, before = rows[surviving], place_of[surviving], before[surviving]
        after, order, taken_by_vm = after[surviving], order[surviving], taken_by_vm[surviving]
        _take_gpus(demand, *seats[-1], after, order, taken_by_vm, fleet.more[rows], fleet)
    numbers = np.cumsum(place_of[1:] != place_of[:-1])
    numbers = np.concatenate([np.zeros(min(1, len(rows)), dtype=np.int64), numbers])
    return HostChoices(rows, numbers, before, after, tuple(seats))


def _first_with_room(demand: Demand, states: Ints, order: Ints, place_of: Ints, fleet: FleetIndex) -> tuple[Ints, Ints]:
    """For each place with a seat for the demand: the row and the GPU that come first in the host's order."""
    if isinstance(demand, WantsVgpu):
        key = np.where(fleet.states.vgpu_surely(demand.profile).of(states), order, _NOWHERE)
    else:
        assert isinstance(demand, WantsDynamic), "the index does not place named devices"
        key = np.where(fleet.states.whole_free(demand).of(states), order % ORDER_UNIT, _NOWHERE)
    gpu = key.argmin(axis=1)
    best = key[np.arange(len(key)), gpu] if len(key) else gpu
    if not len(best):
        return best, gpu
    of_place = np.full(len(fleet.host_of), _NOWHERE)
    np.minimum.at(of_place, place_of, best)
    row = np.flatnonzero((best == of_place[place_of]) & (best < _NOWHERE))
    return row, gpu[row]


def _take_gpus(
    demand: Demand, row: Ints, gpu: Ints, states: Ints, order: Ints, taken_by_vm: Flags, more: Ints, fleet: FleetIndex
) -> None:
    """Put the demand on these GPUs: change their states and their order keys in place."""
    if not isinstance(demand, WantsVgpu):
        states[row, gpu] = fleet.states.given_whole().of(states[row, gpu])
        return
    states[row, gpu] = fleet.states.with_vgpu(demand.profile).of(states[row, gpu])
    facts = fleet.catalog.profile(demand.profile)
    size = (facts.framebuffer_mib if facts is not None else 0) * ORDER_UNIT
    one_more = more[row, gpu]
    order[row, gpu] += np.where(one_more == BY_SIZE, size, np.where(taken_by_vm[row, gpu], 0, one_more))
    taken_by_vm[row, gpu] = True
