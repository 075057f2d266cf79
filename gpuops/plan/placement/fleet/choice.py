"""Feasible, rank and select over all hosts of a fleet at once; `select.py` asks it first.

It answers as the exact pass does, or not at all: where no host is certain to take the VM, the exact pass decides. Where
the plan may choose the GPU, the pool says which; else each host's own choice is foreseen (`host_choices.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.plan.placement.fleet.geometry import NO_LIMIT
from gpuops.plan.placement.fleet.host_choices import HostChoices, first_choice, host_choices
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.fleet.losses import Losses
from gpuops.plan.placement.host_filters import MOVE_FILTERS
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.wanted import Demand, Wanted, WantsDirectPath, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Ints


@dataclass(frozen=True, slots=True)
class FleetChoice:
    """The best host, its NUMA node where one is required, and the GPU of each device by ordinal."""

    host: Host
    node: int | None
    seats: dict[int, PciAddress]
    bound: bool
    """The plan chose the GPUs and must pin them; else they are those that the host would choose."""
    rank: tuple[int, int, int, int, int]
    """(VMs of its spread group there, not local, other cluster, steps of loss, number of the host): less is better."""


def choose_in_fleet(wanted: Wanted, fleet: FleetIndex, losses: Losses) -> FleetChoice | None:
    """The best of the places where every check is possible and passed; None = the exact pass must decide."""
    # 1. Requests that the index cannot answer: named devices, CPU reservations, profiles beside each other.
    if not wanted.demands or not all(_is_free_choice(demand) for demand in wanted.demands):
        return None
    if wanted.vm.cpu_reservation_mhz or (wanted.mixed and wanted.numa is NumaPolicy.PREFERRED):
        return None
    # 2. Feasible: the rows of hosts that pass all host filters for certain.
    admitted = _admitted_rows(wanted, fleet)
    bound_choice = _best_bound(wanted, admitted, fleet, losses) if wanted.bindable is not None else None
    if bound_choice is not None and len(wanted.demands) == 1:
        return bound_choice  # the host's own choice was among these GPUs
    host_choice = _best_of_host_choices(wanted, admitted, fleet, losses)
    # 3. Of the best bound place and the best of the hosts' own choices the better one; of equals the unpinned one.
    return min(
        (each for each in (host_choice, bound_choice) if each is not None), key=lambda each: each.rank, default=None
    )


def hosts_with_room(wanted: Wanted, fleet: FleetIndex) -> tuple[str, ...]:
    """The hosts whose GPUs may have room for the devices, each kind of them alone; the others surely have not."""
    may = fleet.refs(wanted.hosts)
    kinds = Counter(map(_kind, filter(_is_free_choice, wanted.demands)))
    for kind, count in kinds.items():
        table = fleet.states.slots_in_turn(kind) if isinstance(kind, str) else fleet.states.whole_free(kind)
        there = np.bincount(fleet.host_of, table.of(fleet.state).sum(axis=1), len(fleet.hosts))
        may = may & (there >= count)
    return tuple(fleet.hosts[number].ref for number in np.flatnonzero(may))


def _kind(demand: Demand) -> str | WantsDynamic:
    """What is asked of each GPU for it: a slot of a profile, or to be given whole."""
    assert not isinstance(demand, WantsDirectPath), "it names its GPU"
    return demand.profile if isinstance(demand, WantsVgpu) else replace(demand, ordinal=0)


def _is_free_choice(demand: Demand) -> bool:
    """Whether the demand names no GPU. A pin or an address leaves nothing to search a fleet for."""
    return isinstance(demand, WantsDynamic) or (isinstance(demand, WantsVgpu) and demand.pin is None)


def _admitted_rows(wanted: Wanted, fleet: FleetIndex) -> Flags:
    """The rows of hosts that pass all host filters for certain."""
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
    return admitted[fleet.host_of]


def _rows_beside(wanted: Wanted, fleet: FleetIndex) -> Flags:
    """Which rows have the cores and the memory for the VM beside their GPUs."""
    vm = wanted.vm
    if vm.vcpus is None or vm.memory_mib is None:
        return np.zeros(len(fleet.host_of), dtype=np.bool_)
    enough: Flags = fleet.known_node & (fleet.cores >= vm.vcpus) & (fleet.node_mib >= vm.memory_mib)
    return enough


def _best_bound(wanted: Wanted, admitted: Flags, fleet: FleetIndex, losses: Losses) -> FleetChoice | None:
    """The best place with pinned GPUs, whatever the hosts would choose."""
    profile, count = wanted.bindable or "", len(wanted.demands)
    for among, local in _preference_tiers(wanted, admitted, fleet):
        asked = losses.ask(profile, count, beside=local)
        seat = asked[0].pool.choose(asked[1], among) if asked is not None else None
        if asked is None or seat is None:
            continue
        (part,) = seat.parts
        row, gpus = part.row, part.gpus
        if count > 1:
            gpus = asked[0].pool.in_turn(asked[1], row)
        host_gpu = _gpu_of_host_choice(row, among, wanted, fleet) if count == 1 else None
        if host_gpu is not None and asked[0].pool.steps(asked[1], *host_gpu) <= seat.steps:
            row, gpus = host_gpu[0], host_gpu[1:]
        seats = {demand.ordinal: fleet.address[row][gpu] for demand, gpu in zip(wanted.demands, gpus, strict=True)}
        bound = host_gpu is None or (row, *gpus) != host_gpu
        return _as_choice(row, seats, int(seat.steps), wanted, fleet, bound=bound, local=local)
    return None


def _gpu_of_host_choice(row: int, among: Flags, wanted: Wanted, fleet: FleetIndex) -> tuple[int, int] | None:
    """The row and the GPU that the host of this row would choose for its vGPU; None = not among these rows."""
    host = int(fleet.host_of[row])
    rows = np.arange(fleet.first_row[host], fleet.first_row[host + 1])
    first = first_choice(wanted.bindable or "", np.array([row]) if wanted.numa is NumaPolicy.REQUIRED else rows, fleet)
    return first if among[first[0]] else None


def _preference_tiers(wanted: Wanted, admitted: Flags, fleet: FleetIndex) -> Iterator[tuple[Flags, bool]]:
    """Sets of rows, the better ones first whatever their loss, each with whether the VM would be local there.

    The order is that of `SCORERS`: spread, then locality, then the cluster.
    """
    beside = _rows_beside(wanted, fleet)
    clusters = [_same_cluster(wanted, fleet), np.ones(len(admitted), dtype=np.bool_)]
    for alike in _by_spread(wanted, admitted, fleet):
        if wanted.numa is not NumaPolicy.NONE:
            yield from ((alike & beside & cluster, True) for cluster in clusters if cluster is not None)
        if wanted.numa is not NumaPolicy.REQUIRED and len(wanted.demands) == 1:
            yield from ((alike & cluster, False) for cluster in clusters if cluster is not None)


def _by_spread(wanted: Wanted, admitted: Flags, fleet: FleetIndex) -> Iterator[Flags]:
    if not wanted.spread_from:
        yield admitted
        return
    there = _of_spread_group(wanted, fleet)[fleet.host_of]
    for number in np.unique(there[admitted]):
        yield admitted & (there == number)


def _of_spread_group(wanted: Wanted, fleet: FleetIndex) -> Ints:
    """For each host how many of the VM's spread group are there."""
    return np.array([wanted.spread_from.count(host.ref) for host in fleet.hosts], dtype=np.int64)


def _same_cluster(wanted: Wanted, fleet: FleetIndex) -> Flags | None:
    """Rows in the cluster that the VM is in; None = it is in none."""
    own = fleet.inventory.host_of(wanted.vm)
    return None if own is None or own.cluster is None else fleet.clusters(own.cluster)[fleet.host_of]


def _best_of_host_choices(wanted: Wanted, admitted: Flags, fleet: FleetIndex, losses: Losses) -> FleetChoice | None:
    """The best of the places that the hosts themselves would choose."""
    beside = _rows_beside(wanted, fleet)
    rows = np.flatnonzero(admitted & beside if wanted.numa is NumaPolicy.REQUIRED else admitted)
    ways = host_choices(wanted, rows, fleet)
    if not len(ways.seats[0][0]):
        return None
    first = ways.rows[ways.seats[0][0]]
    one_node = np.all([ways.rows[row] == first for row, _ in ways.seats], axis=0)
    local = one_node & beside[first]
    keys: list[Ints | Flags] = [_steps(ways, wanted, losses)]
    same = _same_cluster(wanted, fleet)
    keys += [~same[first]] if same is not None else []
    keys += [~local] if wanted.numa is NumaPolicy.PREFERRED else []
    keys += [_of_spread_group(wanted, fleet)[fleet.host_of[first]]] if wanted.spread_from else []
    place = int(np.lexsort(keys)[0])
    seats = {
        demand.ordinal: fleet.address[int(ways.rows[row[place]])][int(gpu[place])]
        for demand, (row, gpu) in zip(in_order_of_seating(wanted.demands), ways.seats, strict=True)
    }
    steps = int(keys[0][place])
    return _as_choice(int(first[place]), seats, steps, wanted, fleet, bound=False, local=bool(local[place]))


def _steps(ways: HostChoices, wanted: Wanted, losses: Losses) -> Ints:
    """The loss of each place."""
    touched = np.zeros(len(ways.rows), dtype=np.int64)
    for row, _ in ways.seats:
        touched[row] += 1
    near = np.flatnonzero(touched)
    memory = (wanted.vm.memory_mib or 0) * touched[near] // len(ways.seats)
    steps, _, _ = losses.at(ways.rows[near], ways.after[near], memory, ways.place_of[near], len(ways.seats[0][0]))
    return steps


def _as_choice(
    row: int, seats: dict[int, PciAddress], steps: int, wanted: Wanted, fleet: FleetIndex, *, bound: bool, local: bool
) -> FleetChoice:
    number = int(fleet.host_of[row])
    host = fleet.hosts[number]
    gpu = host.gpu(fleet.address[row][0])
    node = gpu.numa_node if gpu is not None and wanted.numa is NumaPolicy.REQUIRED else None
    same = _same_cluster(wanted, fleet)
    rank = (
        wanted.spread_from.count(host.ref),
        int(wanted.numa is NumaPolicy.PREFERRED and not local),
        int(same is not None and not same[row]),
        steps,
        row if wanted.numa is NumaPolicy.REQUIRED else number,
    )
    return FleetChoice(host, node, seats, bound, rank)
