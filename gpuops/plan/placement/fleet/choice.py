"""Finds the best place among all hosts of a fleet at once; `select.py` tries it first.

It gives the answer of the exact pass, or no answer: if no host surely takes the VM, the exact pass decides. If the plan
may choose the GPU, the pool chooses it; if not, each host's own choice is predicted (`HostChoices`):
on which GPUs each host would put the VM's devices, with arrays as `seating.py` does it for one host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.plan.placement.fleet.geometry import NO_LIMIT
from gpuops.plan.placement.fleet.index import BY_SIZE, ORDER_UNIT, FleetIndex
from gpuops.plan.placement.fleet.losses import Losses
from gpuops.plan.placement.host_filters import MOVE_FILTERS
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.vm_demand import Demand, PinPolicy, Wanted, WantsDirectPath, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Ints


_NO_ROOM_KEY: Final = 2**62
"""Larger than every order key: a GPU without room comes after all others."""


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
    """Return the places among these rows with a certain seat for each demand, on the GPUs that the host would choose.

    All places are handled at once as arrays. Example: the rows are nodes 0 and 1 of esx-01 and node 0 of esx-02, and
    the VM has two vGPUs. The first finds a seat on both hosts, the second only on esx-01: the rows of esx-02 are
    dropped, and one place with two seats remains.
    """
    if needs.numa is NumaPolicy.REQUIRED:
        rows = rows[~_needs_forbidden_pin(rows, needs, fleet)]
    # 1. A place is one row (a NUMA node) if locality is required, else all rows of a host.
    place_of = rows if needs.numa is NumaPolicy.REQUIRED else fleet.host_of[rows]
    before = fleet.state[rows]
    after, order_keys = before.copy(), fleet.order[rows]
    taken_by_vm = np.zeros(after.shape, dtype=np.bool_)
    seats: list[tuple[Ints, Ints]] = []
    for demand in in_order_of_seating(needs.demands):
        # 2. Seat the demand in every place, and drop the places without room for it.
        row, gpu = _first_with_room(demand, after, order_keys, place_of, fleet)
        has_room = np.zeros(len(fleet.host_of), dtype=np.bool_)
        has_room[place_of[row]] = True
        keep = has_room[place_of]
        # Positions shift: if of three rows the first is dropped, position 2 becomes 1.
        new_position = np.cumsum(keep) - 1
        seats = [(new_position[row[keep[row]]], gpu[keep[row]]) for row, gpu in (*seats, (row, gpu))]
        rows, place_of, before = rows[keep], place_of[keep], before[keep]
        after, order_keys, taken_by_vm = after[keep], order_keys[keep], taken_by_vm[keep]
        # 3. What it takes there counts for the demands after it.
        _take_gpus(demand, *seats[-1], after, order_keys, taken_by_vm, fleet.order_growth[rows], fleet)
    # 4. Number the places that are left: hosts 3, 3, 7 become 0, 0, 1.
    numbers = np.cumsum(place_of[1:] != place_of[:-1])
    numbers = np.concatenate([np.zeros(min(1, len(rows)), dtype=np.int64), numbers])
    return HostChoices(rows, numbers, before, after, tuple(seats))


def _needs_forbidden_pin(rows: Ints, needs: Wanted, fleet: FleetIndex) -> Flags:
    """Return which rows need a pin to keep the vGPU on its node while pinning is switched off."""
    forbidden = np.zeros(len(rows), dtype=np.bool_)
    if needs.pin is not PinPolicy.NEVER:
        return forbidden
    for profile in {demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu)}:
        # A pin is needed if the host has such GPUs on other nodes too.
        suitable_gpus = fleet.states.made_for(profile).of(fleet.state).sum(axis=1)
        suitable_on_host = np.add.reduceat(suitable_gpus, fleet.first_row[:-1])
        forbidden |= suitable_on_host[fleet.host_of[rows]] > suitable_gpus[rows]
    return forbidden


def _first_with_room(
    demand: Demand, states: Ints, order_keys: Ints, place_of: Ints, fleet: FleetIndex
) -> tuple[Ints, Ints]:
    """Return the row and the GPU that come first in the host's order, for each place with a seat for the demand."""
    if isinstance(demand, WantsVgpu):
        key = np.where(fleet.states.vgpu_surely(demand.profile).of(states), order_keys, _NO_ROOM_KEY)
    else:
        # For a whole device the host's order is that of the addresses, whatever runs on the GPUs.
        assert isinstance(demand, WantsDynamic), "the index does not place named devices"
        key = np.where(fleet.states.whole_free(demand).of(states), order_keys % ORDER_UNIT, _NO_ROOM_KEY)
    gpu = key.argmin(axis=1)
    lowest_of_row = key[np.arange(len(key)), gpu] if len(key) else gpu
    if not len(lowest_of_row):
        return lowest_of_row, gpu
    lowest_of_place = np.full(len(fleet.host_of), _NO_ROOM_KEY)
    np.minimum.at(lowest_of_place, place_of, lowest_of_row)
    row = np.flatnonzero((lowest_of_row == lowest_of_place[place_of]) & (lowest_of_row < _NO_ROOM_KEY))
    return row, gpu[row]


def _take_gpus(
    demand: Demand,
    row: Ints,
    gpu: Ints,
    states: Ints,
    order_keys: Ints,
    taken_by_vm: Flags,
    order_growth: Ints,
    fleet: FleetIndex,
) -> None:
    """Put the demand on these GPUs: change their states and their order keys in place."""
    if not isinstance(demand, WantsVgpu):
        states[row, gpu] = fleet.states.given_whole().of(states[row, gpu])
        return
    states[row, gpu] = fleet.states.with_vgpu(demand.profile).of(states[row, gpu])
    profile = fleet.catalog.profile(demand.profile)
    size_key = (profile.framebuffer_mib if profile is not None else 0) * ORDER_UNIT
    growth = order_growth[row, gpu]
    # Mixed-size mode orders GPUs by used memory, same-size mode by VMs: there only the VM's first vGPU on a GPU counts.
    order_keys[row, gpu] += np.where(growth == BY_SIZE, size_key, np.where(taken_by_vm[row, gpu], 0, growth))
    taken_by_vm[row, gpu] = True


@dataclass(frozen=True, slots=True)
class FleetChoice:
    """The best host, its NUMA node where one is required, and the GPU of each device by ordinal."""

    host: Host
    node: int | None
    seats: dict[int, PciAddress]
    pinned_by_plan: bool
    """The plan chose the GPUs and must pin them; else they are those that the host would choose."""
    rank: tuple[int, int, int, int, int]
    """(VMs of the spread group on the host, not local, other cluster, steps of loss, number of the host): less is
    better."""


def choose_in_fleet(needs: Wanted, fleet: FleetIndex, losses: Losses) -> FleetChoice | None:
    """Return the best of the places that surely pass every check; None = the exact pass must decide."""
    # 1. Requests that the index cannot answer: named devices, CPU reservations, several profiles near each other.
    if not needs.demands or not all(_is_free_choice(demand) for demand in needs.demands):
        return None
    if needs.vm.cpu_reservation_mhz or (needs.mixed and needs.numa is NumaPolicy.PREFERRED):
        return None
    # 2. Feasible: the rows of hosts that pass all host filters for certain.
    admitted = _admitted_rows(needs, fleet)
    bound_choice = _best_bound(needs, admitted, fleet, losses) if needs.bindable is not None else None
    if bound_choice is not None and len(needs.demands) == 1:
        return bound_choice  # the host's own choice was among these GPUs
    host_choice = _best_of_host_choices(needs, admitted, fleet, losses)
    # 3. The better one of the best pinned place and the best of the hosts' own choices; if equal, the unpinned one.
    choices = [choice for choice in (host_choice, bound_choice) if choice is not None]
    return min(choices, key=lambda choice: choice.rank, default=None)


def hosts_with_room(needs: Wanted, fleet: FleetIndex) -> tuple[str, ...]:
    """Return the hosts whose GPUs may have room for the devices of each kind; all other hosts surely have none."""
    may_have_room = fleet.host_mask(needs.hosts)
    kinds: Counter[str | WantsDynamic] = Counter()
    for demand in filter(_is_free_choice, needs.demands):
        assert not isinstance(demand, WantsDirectPath), "a demand that names its GPU was left out above"
        # Without their ordinals, equal demands for whole GPUs count as one kind.
        kinds[demand.profile if isinstance(demand, WantsVgpu) else replace(demand, ordinal=0)] += 1
    for kind, count in kinds.items():
        table = fleet.states.slots_in_turn(kind) if isinstance(kind, str) else fleet.states.whole_free(kind)
        slots_by_host = np.bincount(fleet.host_of, table.of(fleet.state).sum(axis=1), len(fleet.hosts))
        may_have_room = may_have_room & (slots_by_host >= count)
    return tuple(fleet.hosts[number].ref for number in np.flatnonzero(may_have_room))


def _is_free_choice(demand: Demand) -> bool:
    """Return whether the demand names no GPU. With a pin or an address there is nothing to search for in a fleet."""
    return isinstance(demand, WantsDynamic) or (isinstance(demand, WantsVgpu) and demand.pin is None)


def _admitted_rows(needs: Wanted, fleet: FleetIndex) -> Flags:
    """Return the rows of hosts that pass all host filters for certain."""
    admitted = fleet.host_mask(needs.hosts) & fleet.startable
    admitted &= fleet.threads >= (needs.vm.vcpus or 0)
    admitted &= fleet.sure_mib >= (NO_LIMIT if needs.vm.memory_mib is None else needs.vm.memory_mib)
    for profile in {demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu)}:
        admitted &= fleet.offering_hosts(profile)
    if needs.vm.datastores or needs.vm.vapp or needs.vm.unreadable:
        for number in np.flatnonzero(admitted):
            admitted[number] = not any(refuses(needs, fleet.hosts[number], fleet.inventory) for refuses in MOVE_FILTERS)
    return admitted[fleet.host_of]


def _local_rows(needs: Wanted, fleet: FleetIndex) -> Flags:
    """Return the rows with enough cores and memory for the VM on the NUMA node of their GPUs."""
    vm = needs.vm
    if vm.vcpus is None or vm.memory_mib is None:
        return np.zeros(len(fleet.host_of), dtype=np.bool_)
    enough: Flags = fleet.known_node & (fleet.cores >= vm.vcpus) & (fleet.node_mib >= vm.memory_mib)
    return enough


def _best_bound(needs: Wanted, admitted: Flags, fleet: FleetIndex, losses: Losses) -> FleetChoice | None:
    """Return the best place on GPUs that the plan chooses; they are pinned unless the host would choose as well."""
    assert needs.bindable is not None, "only called for vGPUs of one profile"
    profile, count = needs.bindable, len(needs.demands)
    for rows_of_tier, local in _preference_tiers(needs, admitted, fleet):
        priced_request = losses.request_to_pool(profile, count, beside=local)
        if priced_request is None:
            continue
        priced_pool, request = priced_request
        pool = priced_pool.pool
        best = pool.best(request, rows_of_tier)
        if best is None:
            continue
        # One more vGPU leads to exactly one state of a GPU here, so the number of the way is that of the GPU.
        row, gpu, steps = best
        gpus: tuple[int, ...] = (gpu,)
        pinned_by_plan = True
        if count > 1:
            gpus = pool.in_turn(request, row)
        else:
            # Do not pin the vGPU if the host itself would choose a GPU that is as good.
            host = int(fleet.host_of[row])
            host_rows = np.arange(fleet.first_row[host], fleet.first_row[host + 1])
            if needs.numa is NumaPolicy.REQUIRED:
                host_rows = np.array([row])
            # All rows count as one place: that of this host.
            states, order = fleet.state[host_rows], fleet.order[host_rows]
            (position,), (host_gpu,) = _first_with_room(needs.demands[0], states, order, 0 * host_rows, fleet)
            host_row = host_rows[position]
            # If the host's own choice is not in this tier, only a pin brings the VM to a place of the tier.
            if rows_of_tier[host_row]:
                if pool.steps(request, host_row, host_gpu) <= steps:
                    row, gpus = host_row, (host_gpu,)
                pinned_by_plan = (row, *gpus) != (host_row, host_gpu)
        seats = {demand.ordinal: fleet.address[row][gpu] for demand, gpu in zip(needs.demands, gpus, strict=True)}
        return _as_choice(row, seats, int(steps), needs, fleet, pinned_by_plan=pinned_by_plan, local=local)
    return None


def _preference_tiers(needs: Wanted, admitted: Flags, fleet: FleetIndex) -> Iterator[tuple[Flags, bool]]:
    """Yield sets of rows from the most to the least preferred, and whether the VM would be local there. A place in an
    earlier set is better whatever its loss. The order is that of `SCORERS`: spread, then locality, then the cluster."""
    local_rows = _local_rows(needs, fleet)
    # The VM's own cluster first (None if it is in no cluster), then all clusters.
    clusters = [_same_cluster(needs, fleet), np.ones(len(admitted), dtype=np.bool_)]
    by_spread = [admitted]
    if needs.spread_from:
        # Hosts with no VM of the spread group first, then those with one, and so on.
        group_vms_by_row = _of_spread_group(needs, fleet)[fleet.host_of]
        by_spread = [admitted & (group_vms_by_row == number) for number in np.unique(group_vms_by_row[admitted])]
    for equally_spread in by_spread:
        if needs.numa is not NumaPolicy.NONE:
            yield from ((equally_spread & local_rows & cluster, True) for cluster in clusters if cluster is not None)
        if needs.numa is not NumaPolicy.REQUIRED and len(needs.demands) == 1:
            yield from ((equally_spread & cluster, False) for cluster in clusters if cluster is not None)


def _of_spread_group(needs: Wanted, fleet: FleetIndex) -> Ints:
    """Return for each host how many VMs of the spread group it has."""
    return np.array([needs.spread_from.count(host.ref) for host in fleet.hosts], dtype=np.int64)


def _same_cluster(needs: Wanted, fleet: FleetIndex) -> Flags | None:
    """Return the rows in the VM's cluster; None if the VM is in no cluster."""
    current_host = fleet.inventory.host_of(needs.vm)
    if current_host is None or current_host.cluster is None:
        return None
    return fleet.hosts_in_cluster(current_host.cluster)[fleet.host_of]


def _best_of_host_choices(needs: Wanted, admitted: Flags, fleet: FleetIndex, losses: Losses) -> FleetChoice | None:
    """Return the best of the places that the hosts would choose themselves."""
    local_rows = _local_rows(needs, fleet)
    rows = np.flatnonzero(admitted & local_rows if needs.numa is NumaPolicy.REQUIRED else admitted)
    choices = host_choices(needs, rows, fleet)
    if not len(choices.seats[0][0]):
        return None
    # for each place, the row of the GPU of the first demand
    first_row = choices.rows[choices.seats[0][0]]
    on_one_node = np.all([choices.rows[row] == first_row for row, _ in choices.seats], axis=0)
    local = on_one_node & local_rows[first_row]
    # lexsort sorts by the last key first: spread, then locality, then the cluster, then the loss, as in `SCORERS`.
    keys: list[Ints | Flags] = [_loss_steps(choices, needs, losses)]
    same_cluster = _same_cluster(needs, fleet)
    if same_cluster is not None:
        keys.append(~same_cluster[first_row])
    if needs.numa is NumaPolicy.PREFERRED:
        keys.append(~local)
    if needs.spread_from:
        keys.append(_of_spread_group(needs, fleet)[fleet.host_of[first_row]])
    place = int(np.lexsort(keys)[0])
    seats = {
        demand.ordinal: fleet.address[int(choices.rows[row[place]])][int(gpu[place])]
        for demand, (row, gpu) in zip(in_order_of_seating(needs.demands), choices.seats, strict=True)
    }
    steps = int(keys[0][place])
    return _as_choice(int(first_row[place]), seats, steps, needs, fleet, pinned_by_plan=False, local=bool(local[place]))


def _loss_steps(choices: HostChoices, needs: Wanted, losses: Losses) -> Ints:
    """Return the loss of each place in steps. The VM's memory is shared out by its devices on each node."""
    devices_on_row = np.zeros(len(choices.rows), dtype=np.int64)
    for row, _ in choices.seats:
        devices_on_row[row] += 1
    used = np.flatnonzero(devices_on_row)
    memory = (needs.vm.memory_mib or 0) * devices_on_row[used] // len(choices.seats)
    place_count = len(choices.seats[0][0])
    steps, _, _ = losses.at(choices.rows[used], choices.after[used], memory, choices.place_of[used], place_count)
    return steps


def _as_choice(
    row: int,
    seats: dict[int, PciAddress],
    steps: int,
    needs: Wanted,
    fleet: FleetIndex,
    *,
    pinned_by_plan: bool,
    local: bool,
) -> FleetChoice:
    """Return the choice with its rank; the lowest rank is best, in the order of `SCORERS`."""
    number = int(fleet.host_of[row])
    host = fleet.hosts[number]
    gpu = host.gpu(fleet.address[row][0])
    node = gpu.numa_node if gpu is not None and needs.numa is NumaPolicy.REQUIRED else None
    same = _same_cluster(needs, fleet)
    rank = (
        needs.spread_from.count(host.ref),
        int(needs.numa is NumaPolicy.PREFERRED and not local),
        int(same is not None and not same[row]),
        steps,
        row if needs.numa is NumaPolicy.REQUIRED else number,
    )
    return FleetChoice(host, node, seats, pinned_by_plan, rank)
