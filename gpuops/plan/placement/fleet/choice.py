"""The choice: feasible, rank, select, over all hosts of a fleet at once.

Answers as the exact pass of `select.py` does, or not at all: where no host is certain to take the VM, it decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.fragmentation import NO_LIMIT, Mix, useless
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.numa import NumaPolicy
from gpuops.plan.placement.filters import MOVE_FILTERS
from gpuops.plan.placement.fleet.index import BY_SIZE, UNIT, Fleet
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.wanted import Demand, PinPolicy, Wanted, WantsDynamic, WantsVgpu
from gpuops.plan.placement.waste import STEP

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Floats, Ints

_NOWHERE: Final = 2**62


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best host, its NUMA node where one is required, and the GPU of each device by ordinal."""

    host: Host
    node: int | None
    seats: dict[int, PciAddress]


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


def choose(wanted: Wanted, fleet: Fleet, mix: Mix) -> Chosen | None:
    """The best of the places where every check is possible and passed; None = the exact pass must say."""
    if not wanted.demands or not all(_is_free_choice(demand) for demand in wanted.demands):
        return None
    ways = feasible(wanted, fleet)
    places = np.arange(len(ways.seats[0][0]))
    for key in KEYS:
        if len(places) < 2:
            break
        scores = key(places, ways, wanted, fleet, mix)
        places = places[scores == scores.max()]
    return _chosen(int(places[0]), ways, wanted, fleet) if len(places) else None


def _is_free_choice(demand: Demand) -> bool:
    """A pin or an address names a GPU of one host: nothing to search a fleet for."""
    return isinstance(demand, WantsDynamic) or (isinstance(demand, WantsVgpu) and demand.pin is None)


def feasible(wanted: Wanted, fleet: Fleet) -> Ways:
    """Every place that passes all host filters and has, for certain, a seat for each demand."""
    admitted = fleet.refs(wanted.hosts) & fleet.startable
    admitted &= fleet.threads >= (wanted.vm.vcpus or 0)
    admitted &= fleet.sure_mib >= (NO_LIMIT if wanted.vm.memory_mib is None else wanted.vm.memory_mib)
    for profile in {demand.profile for demand in wanted.demands if isinstance(demand, WantsVgpu)}:
        admitted &= fleet.offer(profile)
    if wanted.vm.datastores or wanted.vm.vapp or wanted.vm.unreadable:
        for number in np.flatnonzero(admitted):
            admitted[number] = not any(
                refuses(wanted, fleet.hosts[number], fleet.inventory) for refuses in MOVE_FILTERS
            )
    rows = np.flatnonzero(admitted[fleet.host_of])
    if wanted.numa is NumaPolicy.REQUIRED:
        rows = rows[_beside(rows, wanted, fleet)]
        rows = rows[~_needs_forbidden_pin(rows, wanted, fleet)]
    return _seated(rows, wanted, fleet)


def _beside(rows: Ints, wanted: Wanted, fleet: Fleet) -> Flags:
    """Which rows have the cores and the memory for the VM beside their GPUs."""
    vm = wanted.vm
    if vm.vcpus is None or vm.memory_mib is None:
        return np.zeros(len(rows), dtype=np.bool_)
    enough: Flags = fleet.known_node[rows] & (fleet.cores[rows] >= vm.vcpus) & (fleet.node_mib[rows] >= vm.memory_mib)
    return enough


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


Key = Callable[["Ints", Ways, Wanted, Fleet, Mix], "Ints"]


def spreads(places: Ints, ways: Ways, wanted: Wanted, fleet: Fleet, mix: Mix) -> Ints:
    if not wanted.spread_from:
        return 0 * places
    refs = [fleet.hosts[number].ref for number in _hosts(places, ways, fleet)]
    return np.array([-wanted.spread_from.count(ref) for ref in refs])


def beside_gpu(places: Ints, ways: Ways, wanted: Wanted, fleet: Fleet, mix: Mix) -> Ints:
    if wanted.numa is not NumaPolicy.PREFERRED:
        return 0 * places
    first = ways.seats[0][0][places]
    one_node = np.all([row[places] == first for row, _ in ways.seats], axis=0)
    beside: Ints = (one_node & _beside(ways.rows[first], wanted, fleet)).astype(np.int64)
    return beside


def same_cluster(places: Ints, ways: Ways, wanted: Wanted, fleet: Fleet, mix: Mix) -> Ints:
    own = fleet.inventory.host_of(wanted.vm)
    if own is None or own.cluster is None:
        return 0 * places
    return fleet.clusters(own.cluster)[_hosts(places, ways, fleet)].astype(np.int64)


def wastes_least(places: Ints, ways: Ways, wanted: Wanted, fleet: Fleet, mix: Mix) -> Ints:
    """What the places take from the NUMA nodes they touch, beyond their own GPUs and memory, in whole steps."""
    touched = np.zeros(len(ways.rows), dtype=np.bool_)
    for row, _ in ways.seats:
        touched[row[places]] = True
    near = np.flatnonzero(touched)
    rows = ways.rows[near]
    free_mib = np.minimum(fleet.unreserved_mib[fleet.host_of[rows]], fleet.node_mib[rows])
    left_mib = free_mib - (wanted.vm.memory_mib or 0)
    lost = _useless(ways.after[near], left_mib, fleet, mix) - _useless(ways.before[near], free_mib, fleet, mix)
    place_of = np.searchsorted(places, ways.place_of[near])
    lost_mib = np.bincount(place_of, weights=lost, minlength=len(places))
    largest_mib = np.ones(len(places))
    np.maximum.at(largest_mib, place_of, fleet.largest_mib[rows])
    return -np.floor(lost_mib / (largest_mib * STEP) + 0.5 + 1e-6).astype(np.int64)


def _useless(states: Ints, memory_mib: Ints, fleet: Fleet, mix: Mix) -> Floats:
    total = np.zeros(len(states))
    for board, shapes in mix.items():
        worth = fleet.states.worth(board, tuple(shape.profile for shape in shapes)).of(states).sum(axis=1)
        if worth[:, 0].any():
            total += useless(worth[:, 0], worth[:, 1:], memory_mib, shapes)
    return total


def fullest(places: Ints, ways: Ways, wanted: Wanted, fleet: Fleet, mix: Mix) -> Ints:
    hosts = _hosts(places, ways, fleet)
    on_host = np.zeros(len(fleet.hosts), dtype=np.int64)
    profiles = {demand.profile for demand in wanted.demands if isinstance(demand, WantsVgpu)}
    among = np.zeros(len(fleet.hosts), dtype=np.bool_)
    among[hosts] = True
    rows = np.flatnonzero(among[fleet.host_of])
    for profile in profiles:
        np.add.at(on_host, fleet.host_of[rows], fleet.states.slots(profile).of(fleet.state[rows]).sum(axis=1))
    return -on_host[hosts]


KEYS: Final[tuple[Key, ...]] = (spreads, beside_gpu, same_cluster, wastes_least, fullest)
"""The scorers of `scorers.py` in their order, without those that do not differ here: the VM's own host is looked at
before, and places in doubt are not looked at."""


def _hosts(places: Ints, ways: Ways, fleet: Fleet) -> Ints:
    hosts: Ints = fleet.host_of[ways.rows[ways.seats[0][0][places]]]
    return hosts


def _chosen(place: int, ways: Ways, wanted: Wanted, fleet: Fleet) -> Chosen:
    rows = [int(ways.rows[row[place]]) for row, _ in ways.seats]
    gpus = [int(gpu[place]) for _, gpu in ways.seats]
    seats = {
        demand.ordinal: fleet.address[row][gpu]
        for demand, row, gpu in zip(in_order_of_seating(wanted.demands), rows, gpus, strict=True)
    }
    host = fleet.hosts[int(fleet.host_of[rows[0]])]
    gpu = host.gpu(fleet.address[rows[0]][0])
    node = gpu.numa_node if gpu is not None and wanted.numa is NumaPolicy.REQUIRED else None
    return Chosen(host, node, seats)
