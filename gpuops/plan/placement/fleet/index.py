"""Keeps hosts, NUMA nodes and GPUs of a snapshot as arrays, and reads only what changed from one snapshot to the next.

`choice.py` and `losses.py` work on it. A row is the GPUs of one NUMA node of one host, in the order of their addresses.
The rows of a host are consecutive, and hosts are in the order in which equal ones are chosen.

Example: esx-01 with two nodes of two GPUs and esx-02 with one node of one GPU are three rows of width two:
`state` = [[a, b], [c, d], [e, 0]], `host_of` = [0, 0, 1], `first_row` = [0, 2, 3], `sibling` = [1, 0, -1].

`kept_hosts`: which hosts leave enough free whichever GPU a VM gets, and on which that depends on the GPU. `select.py`
calls it if the best place of all would leave too few free (`keep_free.py`). The index searches the first
kind of hosts, the exact pass the second. All other hosts leave too few on any GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from operator import is_not, or_
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host, OfferedProfile
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement.fleet.board_geometry import GpuStates
from gpuops.plan.placement.fleet.geometry import NO_LIMIT
from gpuops.plan.placement.fleet.site_demand import SiteDemand
from gpuops.plan.placement.gpu_filters import holders, used_mib
from gpuops.plan.placement.host_filters import free_cores, free_memory_mib, surely_unreserved_mib, unreserved_mib
from gpuops.plan.placement.keep_free import KeptRoom, is_reserved_in
from gpuops.plan.placement.vm_demand import WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Ints


ORDER_UNIT: Final = 1024
"""Unit of an order key: the use of the GPU counts in this unit, its rank among the host's addresses in ones."""
BY_SIZE: Final = 1
"""Marks GPUs whose order key grows by the frame buffer of each vGPU; not a multiple of the unit."""
_UNKNOWN_MIB: Final = -1
"""Stands for unknown memory: nothing of it can be promised."""
_NO_VM: Final = Vm(ref="", name="")
_MOST_USE: Final = 2**24
"""More than the use of any GPU (MiB or number of VMs): an order key sorts by the GPU's mode first."""


class FleetIndex:
    """The GPU hosts of one snapshot, and later of every snapshot derived from it."""

    def __init__(self, inventory: Inventory, catalog: Catalog) -> None:
        self.catalog = catalog
        self.states = GpuStates(catalog)
        self.mix = SiteDemand(catalog)
        self._last_mask: tuple[Sequence[str], Flags] = ((), np.zeros(0, dtype=np.bool_))
        """The last answer of `host_mask`: most VMs of a queue may go to the same hosts."""
        self._build(inventory)

    @classmethod
    def of(cls, inventory: Inventory, catalog: Catalog) -> FleetIndex:
        """Return the index of this snapshot. If it derives from a snapshot with an index, that index is updated."""
        index = inventory.worked_out.get(cls)
        if not isinstance(index, FleetIndex) or index.catalog is not catalog:
            index = inventory.worked_out[cls] = FleetIndex(inventory, catalog)
        index._sync(inventory)
        return index

    def host_mask(self, hosts: Sequence[str]) -> Flags:
        """Return which of the index's hosts are among these refs."""
        if hosts != self._last_mask[0]:
            among = np.zeros(len(self.hosts), dtype=np.bool_)
            among[[self._number[ref] for ref in hosts if ref in self._number]] = True
            self._last_mask = (hosts, among)
        return self._last_mask[1]

    def offering_hosts(self, profile: str) -> Flags:
        """Return which hosts offer the profile."""
        offers_it: Flags = np.array([profile in names for names in self._offers], dtype=np.bool_)
        return offers_it[self.offered]

    def hosts_in_cluster(self, cluster: str | None) -> Flags:
        """Return which hosts are in this cluster."""
        in_cluster: Flags = self.cluster == self._clusters.get(cluster, -1)
        return in_cluster

    def offered_names(self) -> tuple[str, ...]:
        """Return every profile that a host offers, sorted."""
        offers = (self._offers[number] for number in set(self.offered.tolist()))
        return tuple(sorted(frozenset().union(*offers)))

    def gpu_positions(self, host: Host) -> dict[PciAddress, tuple[int, int]]:
        """Return the row and the column of each GPU of the host; empty if the index does not have the host."""
        number = self._number.get(host.ref)
        rows = () if number is None else range(self.first_row[number], self.first_row[number + 1])
        return {address: (row, column) for row in rows for column, address in enumerate(self.address[row])}

    def free_mib(self, rows: Ints) -> Ints:
        """Return the memory in MiB that a VM can have on the NUMA nodes of these rows."""
        free_mib: Ints = np.maximum(0, np.minimum(self.unreserved_mib[self.host_of[rows]], self.node_mib[rows]))
        return free_mib

    def _build(self, inventory: Inventory) -> None:
        """Read the complete snapshot into new arrays: a row for each NUMA node with GPUs of each host."""
        self.hosts = sorted((host for host in inventory.hosts.values() if host.gpus), key=lambda h: (h.name, h.ref))
        self._number = {host.ref: number for number, host in enumerate(self.hosts)}
        self._layouts = [_gpu_layout(host) for host in self.hosts]
        self._seen_hosts: list[Host | None] = [None] * len(self.hosts)
        self._seen_vms: list[tuple[Vm, ...] | None] = [None] * len(self.hosts)
        hosts, rows = len(self.hosts), sum(map(len, self._layouts))
        width = max((count for layout in self._layouts for _, count in layout), default=1)
        self.first_row = np.cumsum([0, *map(len, self._layouts)])
        self.host_of = np.repeat(np.arange(hosts), [len(layout) for layout in self._layouts])
        self.sibling = _sibling_rows(self.first_row)
        self.startable = np.zeros(hosts, dtype=np.bool_)
        self.threads = np.zeros(hosts, dtype=np.int64)
        self.unreserved_mib = np.zeros(hosts, dtype=np.int64)
        self.sure_mib = np.zeros(hosts, dtype=np.int64)
        self.offered = np.zeros(hosts, dtype=np.int64)
        self.cluster = np.zeros(hosts, dtype=np.int64)
        self.known_node = np.zeros(rows, dtype=np.bool_)
        self.cores = np.zeros(rows, dtype=np.int64)
        self.node_mib = np.zeros(rows, dtype=np.int64)
        self.state = np.zeros((rows, width), dtype=np.int64)
        self.order = np.zeros((rows, width), dtype=np.int64)
        self.order_growth = np.zeros((rows, width), dtype=np.int64)
        """What one more VM adds to the order key, or BY_SIZE."""
        self.address: list[list[PciAddress]] = [[] for _ in range(rows)]
        self._offers: list[frozenset[str]] = []
        self._offer_sets: dict[tuple[OfferedProfile, ...] | None, int] = {}
        self._clusters: dict[str | None, int] = {}
        self._last_mask = ((), np.zeros(hosts, dtype=np.bool_))  # refs of the last call of `host_mask`, and its answer
        self.rows_read: list[int] = []
        """Every row that was read, in the order of reading; a row that was read twice occurs twice."""
        self.worked_out: dict[object, object] = {}
        """Results that other modules keep, each under its own key, until the GPU setup of a host changes."""
        self.inventory = replace(inventory)  # not yet the one that is read below
        self._sync(inventory)

    def _sync(self, inventory: Inventory) -> None:
        """Read the hosts that changed since the last snapshot. If the rows no longer fit, build all anew."""
        if inventory is self.inventory:
            return
        self.inventory = inventory
        self.mix.sync(inventory)
        # Compared as objects and not by value, without a line of Python for each host: there are thousands.
        hosts = [*map(inventory.hosts.get, self._number)]
        vms = [*map(inventory.vms_by_host.get, self._number)]
        changed = map(or_, map(is_not, hosts, self._seen_hosts), map(is_not, vms, self._seen_vms))
        for number in [*compress(range(len(hosts)), changed)]:
            now = hosts[number]
            # The rows hold as long as the host has its name and its numbers of GPUs on each node.
            if now is None or now.name != self.hosts[number].name or _gpu_layout(now) != self._layouts[number]:
                self._build(inventory)
                return
            self._read(number, now, inventory)
        self._seen_hosts, self._seen_vms = hosts, vms
        if any(inventory.hosts[ref].gpus for ref in inventory.hosts.keys() - self._number.keys()):
            self._build(inventory)

    def _read(self, number: int, host: Host, inventory: Inventory) -> None:
        """Read one host into its rows."""
        if host is not self.hosts[number] and _gpu_setup(host) != _gpu_setup(self.hosts[number]):
            self.worked_out.clear()
        self.hosts[number] = host
        free_mib = unreserved_mib(host, _NO_VM, inventory)
        sure_mib = surely_unreserved_mib(host, _NO_VM, inventory)
        self.unreserved_mib[number] = _UNKNOWN_MIB if free_mib is None else free_mib
        self.sure_mib[number] = _UNKNOWN_MIB if sure_mib is None else sure_mib
        self.startable[number] = host.connected is True and host.in_maintenance is False
        self.threads[number] = NO_LIMIT if host.cpu_threads is None else host.cpu_threads
        self.offered[number] = self._offer_set(host)
        self.cluster[number] = self._clusters.setdefault(host.cluster, len(self._clusters))
        nodes = {node.id: node for node in host.numa_nodes}
        states = gpu_states(host, inventory, self.catalog)
        holder_of = holders(host, inventory)
        for row, (number_of_node, _) in enumerate(self._layouts[number], self.first_row[number]):
            gpus_of_row = [(rank, state) for rank, state in enumerate(states) if state.gpu.numa_node == number_of_node]
            node = nodes.get(number_of_node) if number_of_node is not None else None
            self.known_node[row] = node is not None
            self.cores[row] = 0 if node is None else free_cores(node, _NO_VM, host, inventory)
            self.node_mib[row] = NO_LIMIT if node is None else free_memory_mib(node, _NO_VM, host, inventory)
            self.address[row] = [state.gpu.address for _, state in gpus_of_row]
            for column, (rank, state) in enumerate(gpus_of_row):
                self.state[row, column] = self.states.number(state, state.gpu.address in holder_of)
                self.order[row, column], self.order_growth[row, column] = self._order(state, rank, host)
        self.rows_read += range(self.first_row[number], self.first_row[number + 1])

    def _order(self, state: GpuState, rank: int, host: Host) -> tuple[int, int]:
        """Return the order key of a GPU, which sorts as `gpu_filters.host_order` does, and what one more VM adds."""
        match state.gpu.vgpu_mode:
            case VgpuMode.MULTI_INSTANCE:
                mode_rank, use, growth = 2, 0, 0
            case VgpuMode.MIXED_SIZE:
                mode_rank, use, growth = 1, used_mib(state, self.catalog), BY_SIZE
            case _:
                # consolidation takes the GPU with the most VMs first
                sign = -1 if host.assignment_policy is AssignmentPolicy.CONSOLIDATION else 1
                mode_rank, use, growth = 0, sign * len(state.vm_names), sign * ORDER_UNIT
        return (mode_rank * _MOST_USE + use) * ORDER_UNIT + rank, growth

    def _offer_set(self, host: Host) -> int:
        """Return the number of the host's set of profiles. Hosts with equal offers have the same number."""
        set_number = self._offer_sets.get(host.profiles)
        if set_number is None:
            set_number = self._offer_sets[host.profiles] = len(self._offers)
            self._offers.append(frozenset(offered.name for offered in host.profiles or ()))
        return set_number


def _gpu_setup(host: Host) -> tuple[object, ...]:
    """Return the setup of the host's GPUs regardless of what runs on them. If it changes, prices change."""
    return (host.profiles, *((gpu.admission_traits, gpu.passthrough) for gpu in host.gpus))


def _sibling_rows(first_row: Ints) -> Ints:
    """Return for each row the other row of its host if the host has two rows, else -1."""
    siblings = np.full(first_row[-1], -1)
    first_of_two = first_row[:-1][np.diff(first_row) == 2]
    siblings[first_of_two], siblings[first_of_two + 1] = first_of_two + 1, first_of_two
    return siblings


def _gpu_layout(host: Host) -> tuple[tuple[int | None, int], ...]:
    """Return the NUMA nodes with GPUs, each with its number of GPUs."""
    counts: dict[int | None, int] = {}
    for gpu in host.gpus:
        counts[gpu.numa_node] = counts.get(gpu.numa_node, 0) + 1
    return tuple(sorted(counts.items(), key=lambda node_count: str(node_count[0])))


_NO_ROOM: Final = 2**30
"""More slots than any GPU has: a GPU without room does not count for the least."""


def kept_hosts(kept_room: KeptRoom, fleet: FleetIndex) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the refs of the hosts that surely leave enough free once the VM runs there, and of those where it depends
    on the GPU, each in requested order."""
    needs, keep = kept_room.needs, kept_room.needs.keep_free.profiles
    taken_by_profile = [_taken_by_one(kept_profile.profile, kept_room, fleet) for kept_profile in keep]
    sure: list[str] = []
    unsure: list[str] = []
    for ref in needs.hosts:
        host = fleet.inventory.hosts[ref]
        spare = [kept_room.spare(host, kept_profile) for kept_profile in keep]
        free = [kept_room.free_on(host, kept_profile.profile) for kept_profile in keep]
        # (least, most) slots taken: a host without free slots loses none, and an unknown loss is at most all of them.
        taken = [
            taken_by_host.get(ref, (0, free_here)) if free_here else (0, 0)
            for taken_by_host, free_here in zip(taken_by_profile, free, strict=True)
        ]
        # Only the exact rules know what vCenter reserves there for other VMs, so such a host is never sure.
        reserved = is_reserved_in(host, kept_room.inventory)
        if not reserved and all(most <= spare_here for (_, most), spare_here in zip(taken, spare, strict=True)):
            sure.append(ref)
        elif all(least <= spare_here for (least, _), spare_here in zip(taken, spare, strict=True)):
            unsure.append(ref)
    return tuple(sure), tuple(unsure)


def _taken_by_one(profile: str, kept_room: KeptRoom, fleet: FleetIndex) -> dict[str, tuple[int, int]]:
    """Return how many vGPUs of the profile a new VM with one vGPU takes away on each host: (at least, at most). Empty
    for VMs that are on a host already or have other devices than one vGPU, and if claims of suspended VMs count. Hosts
    whose last free memory the VM would reserve are left out."""
    needs = kept_room.needs
    if len(needs.demands) != 1 or needs.vm.host is not None or needs.keep_free.claims:
        return {}
    (demand,) = needs.demands
    if not isinstance(demand, WantsVgpu):
        return {}
    states, now = fleet.states, fleet.state
    free = states.surely_free(profile)
    slots_lost = free.of(now) - free.of(states.with_vgpu(demand.profile).of(now))
    has_room = states.vgpu_surely(demand.profile).of(now).astype(np.bool_)
    # `reduceat` goes from the GPUs of a row to those of a host
    first_rows = fleet.first_row[:-1]
    least: Ints = np.minimum.reduceat(np.where(has_room, slots_lost, _NO_ROOM).min(axis=1), first_rows)
    most: Ints = np.maximum.reduceat(np.where(has_room, slots_lost, 0).max(axis=1), first_rows)
    # Without free memory a host loses all its slots, which the caller assumes for hosts that are left out.
    has_memory = fleet.unreserved_mib > (needs.vm.memory_mib or 0)
    return {fleet.hosts[number].ref: (int(least[number]), int(most[number])) for number in np.flatnonzero(has_memory)}
