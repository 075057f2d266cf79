"""Builds the batch problem: kinds of equal requests, shapes of equal hosts, and every layout of vGPUs on a GPU.

`group_requests` sets aside requests that the solver cannot place (they refer to each other, name devices, or mix
profiles); they are placed one after another.

Rows of a host: for each NUMA node with GPUs its memory and, for each device, the slots beside it; then the same block
for the whole host. Memory is counted in units that divide every request's, so that hosts that differ by less are one
shape. Example: two nodes and the devices 8q and 24q give nine rows:

    0 memory node 0   1 slots 8q node 0   2 slots 24q node 0
    3 memory node 1   4 slots 8q node 1   5 slots 24q node 1
    6 memory host     7 slots 8q host     8 slots 24q host

The layouts come from the exact rules, asked step by step, so whatever mode the GPU is in, a layout is what a power-on
admits when its vGPUs are started in the order given here: largest first. For GPU instances and placement ids that is
also the order in which the fewest starts are in doubt. Where the starts are expected, layouts for smallest first are
found too. Example: an empty A40 in same-size mode and the profiles 8q and 24q give two layouts: six of 8q, or two of
24q.

Plans that hold wherever vGPUs start on their GPUs come first. If they leave requests without a place, expected starts
are tried (`expecting_starts`). The VMs are then bound to their GPUs and started in turn, so the content of a GPU at
each start is known. The start follows from the host's documented rule (`advise/occupancy.py`); for Ampere it is an
expectation. Example: a 3g instance starts at slice 4 of an H100, and four 1g fit beside it. With an unknown start only
three surely fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Final

from gpuops.advise.occupancy import GpuState, Tenant, gpu_states, may_run, room_for, with_expected
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, VgpuDevice, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.gpu_filters import holders, matches_type, refuse_vgpus
from gpuops.plan.placement.host_filters import (
    free_cores,
    free_memory_mib,
    refusals,
    surely_unreserved_mib,
    unreserved_mib,
)
from gpuops.plan.placement.vm_demand import Wanted, WantsDynamic, demands_of
from gpuops.plan.queue.batch.integer_program import Amounts, BatchProblem, GpuGroup, HostShape, PlacementOption
from gpuops.plan.queue.workload_hosts import Devices, choices_of_devices, eligible_hosts, framebuffer_mib, vm_of

Device = str | tuple[tuple[tuple[int, int], ...], str | None]
"""A vGPU profile, or the PCI types and the label of a whole device."""


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Equal requests: the devices of each, and the hosts that each may go to, whatever their room."""

    workloads: tuple[Workload, ...]
    devices: Devices
    device: Device
    gpu_mib: int
    hosts: frozenset[str]

    @property
    def first(self) -> Workload:
        return self.workloads[0]

    @property
    def count(self) -> int:
        """Devices per VM."""
        return len(self.devices)

    @property
    def numa(self) -> NumaPolicy:
        return self.first.numa

    def vm(self, workload: Workload) -> Vm:
        return vm_of(workload, self.devices)


@dataclass(frozen=True, slots=True)
class GroupedRequests:
    """The kinds, largest first, and the requests that are placed one after another."""

    kinds: tuple[RequestKind, ...]
    others: tuple[Workload, ...]


def group_requests(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> GroupedRequests:
    """Return the requests as kinds of equal ones, and those that refer to each other, name devices or mix profiles."""
    limits = sorted({*_core_limits(inventory)})
    groups: dict[Workload, list[Workload]] = {}
    for workload in workloads:
        # vCPUs are not used up, they only fit or not: numbers between the same two limits are equal.
        key = replace(workload, name="", priority=0, until=None, vcpus=bisect_left(limits, workload.vcpus))
        groups.setdefault(key, []).append(workload)
    kinds: list[RequestKind] = []
    other_requests: list[Workload] = []
    for group in groups.values():
        kind = _kind(group, inventory, catalog)
        if kind is None:
            other_requests += group
        else:
            kinds.append(kind)
    kinds.sort(key=lambda kind: (-kind.gpu_mib, -kind.first.memory_mib, kind.first.name))
    return GroupedRequests(tuple(kinds), tuple(other_requests))


def _core_limits(inventory: Inventory) -> Iterator[int]:
    """Yield every number of cores and threads that a rule compares vCPUs with."""
    for host in inventory.hosts.values():
        if host.gpus:
            yield host.cpu_threads or 0
            yield from (free_cores(node, _NO_VM, host, inventory) for node in host.numa_nodes)


def _kind(group: Sequence[Workload], inventory: Inventory, catalog: Catalog) -> RequestKind | None:
    """Return the kind of these equal requests; None if the solver cannot place them."""
    first = group[0]
    refers_to_others = first.affinity or first.anti_affinity or first.spread
    if refers_to_others or first.device or first.device_group or first.more:
        return None
    choices = choices_of_devices(first, inventory, catalog)
    devices = choices[0]
    if len(choices) > 1 or isinstance(devices, Rejection):
        return None
    match devices[0]:
        case VgpuDevice(profile=profile):
            device: Device = profile
        case DynamicDevice(allowed=allowed, label=label):
            device = (allowed, label)
        case _:
            return None
    gpu_mib = framebuffer_mib(devices, catalog)
    if not gpu_mib:
        return None
    eligible = eligible_hosts(first, vm_of(first, devices), (), inventory, catalog)
    ordered = tuple(sorted(group, key=lambda workload: workload.name))
    return RequestKind(ordered, devices, device, gpu_mib, frozenset(eligible.hosts))


_MODES_WITH_STARTS = (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)
"""The modes in which it matters where on the GPU a vGPU starts."""


def expecting_starts(inventory: Inventory, claimed: Inventory) -> Inventory:
    """Return the snapshot with the content of empty GPUs set to known (no vGPUs), so that starts can be expected.
    `claimed` is the same snapshot with the claims of suspended VMs; a GPU with a claim is not empty."""
    hosts = []
    for host in inventory.hosts.values():
        pairs = zip(host.gpus, claimed.hosts[host.ref].gpus, strict=True)
        empty = {gpu.address for gpu, claimed_gpu in pairs if _is_empty(gpu) and _is_empty(claimed_gpu)}
        if empty:
            gpus = (replace(gpu, vgpus=()) if gpu.address in empty else gpu for gpu in host.gpus)
            hosts.append(replace(host, gpus=tuple(gpus)))
    return inventory.with_hosts(hosts) if hosts else inventory


def _is_empty(gpu: PhysicalGpu) -> bool:
    """Return whether nothing runs on the GPU and vCenter does not report the starts of its vGPUs, if starts matter."""
    return gpu.vms == () and gpu.vgpus is None and gpu.vgpu_mode in _MODES_WITH_STARTS


def order_of_starting(
    kinds: Sequence[RequestKind],
    gpus: Sequence[tuple[PciAddress, ...]],
    host: Host,
    inventory: Inventory,
    catalog: Catalog,
) -> list[int]:
    """Return the numbers of these VMs, planned for these GPUs, in an order of starting in which they all fit. The
    largest come first. VMs on GPUs where that fails come last, and smallest first."""
    states = {state.gpu.address: state for state in gpu_states(host, inventory, catalog)}
    profiles_by_gpu: dict[PciAddress, list[str]] = {}
    for kind, planned_gpus in zip(kinds, gpus, strict=True):
        if isinstance(kind.device, str):
            for gpu_address in planned_gpus:
                profiles_by_gpu.setdefault(gpu_address, []).append(kind.device)
    smallest_first: set[PciAddress] = set()
    for address, profiles in profiles_by_gpu.items():
        state = states[address]
        if state.gpu.vgpus is None:
            continue  # the start offsets are unknown, and no order is better
        if not _fit_in_order(state, profiles, catalog) and _fit_in_order(state, profiles[::-1], catalog):
            smallest_first.add(address)
    last_vms = [
        number for number, planned_gpus in enumerate(gpus) if planned_gpus and smallest_first.issuperset(planned_gpus)
    ]
    first_vms = [number for number in range(len(gpus)) if number not in set(last_vms)]
    return [*first_vms, *reversed(last_vms)]


def _fit_in_order(state: GpuState, profiles: Sequence[str], catalog: Catalog) -> bool:
    """Return whether vGPUs of these profiles all fit if they start in this order."""
    for profile in profiles:
        if not room_for(state, profile, catalog).at_least:
            return False
        state = with_expected(state, Tenant("", "", profile), catalog)
    return True


VgpuLayout = tuple[tuple[str, int], ...]
"""(profile, number of further vGPUs of it), in the order of starting."""

_MOST_STATES: Final = 600
"""Limit of the search: ten sizes mixed on one GPU have thousands of layouts, and the first hundreds are enough."""


def hardest_first(profiles: Sequence[str], catalog: Catalog) -> tuple[str, ...]:
    """Return the profiles, each once, the hardest to place first: by memory, then by slices of a GPU instance."""

    def rank(name: str) -> tuple[int, int, str]:
        facts = catalog.profile(name)
        return (0, 0, name) if facts is None else (-facts.framebuffer_mib, -(facts.compute_slices or 0), name)

    return tuple(sorted(set(profiles), key=rank))


@dataclass(frozen=True, slots=True)
class VgpuLayouts:
    """The layouts of GPUs for these profiles, hardest first. `certain`: only what surely starts; else all that
    might."""

    profiles: tuple[str, ...]
    catalog: Catalog
    certain: bool = True
    _cached_layouts: dict[tuple[object, ...], tuple[VgpuLayout, ...]] = field(default_factory=dict)

    def of(self, state: GpuState) -> tuple[VgpuLayout, ...]:
        """Return the maximal layouts of the GPU, each once; empty = it takes no vGPU of these profiles."""
        if refuse_vgpus(state.gpu, "") is not None or (self.certain and state.unclear):
            return ()
        if state.unclear:
            # for a bound, a GPU with unknown content counts as empty
            state = GpuState(state.gpu)
        tenant_starts = tuple(sorted((tenant.profile, str(tenant.start)) for tenant in state.tenants))
        cache_key = (state.gpu.admission_traits, state.gpu.vgpus is None, tenant_starts, state.fewest)
        if cache_key not in self._cached_layouts:
            self._cached_layouts[cache_key] = self._find_layouts(state)
        return self._cached_layouts[cache_key]

    def _find_layouts(self, state: GpuState) -> tuple[VgpuLayout, ...]:
        """Return the fullest layouts of the GPU: how many vGPUs of each profile fit on it together."""
        # 1. All numbers of each profile that fit together, found depth first: (2, 0) is two of the first profile.
        profiles = tuple(name for name in self.profiles if may_run(state.gpu, name, self.catalog) is True)
        found_counts: dict[tuple[int, ...], None] = {}
        # a list, so that the recursive calls add to one number
        states_tried = [0]
        self._extend(state, profiles, (), found_counts, states_tried)
        if self.certain and state.gpu.vgpus is not None:
            # If the host reports where vGPUs start, placing the smallest first can reach other mixtures: on Ampere
            # 1g, 1g, 2g and then 3g.
            smallest_first: dict[tuple[int, ...], None] = {}
            self._extend(state, profiles[::-1], (), smallest_first, states_tried)
            found_counts |= {counts[::-1]: None for counts in smallest_first}
        if states_tried[0] >= _MOST_STATES:
            # 2. The limit was reached: add the layouts of one profile alone; for a bound, use one that exceeds all.
            most_alone = [len(self._states_by_count(state, profile)) - 1 for profile in profiles]
            if not self.certain:
                found_counts = {tuple(most_alone): None}
            for position, most in enumerate(most_alone if self.certain else ()):
                found_counts[(*[0] * position, most, *[0] * (len(profiles) - position - 1))] = None
        # 3. Only maximal layouts: a smaller one needs no variable of its own, since slots need not be used.
        layouts = []
        for counts in _maximal(list(found_counts)):
            layout = tuple((name, count) for name, count in zip(profiles, counts, strict=True) if count)
            if layout:
                layouts.append(layout)
        return tuple(layouts)

    def _extend(
        self,
        state: GpuState,
        profiles: Sequence[str],
        counts: tuple[int, ...],
        counts_found: dict[tuple[int, ...], None],
        states_tried: list[int],
    ) -> None:
        """Try each number of the next profile that there is room for, most first, and go on with the other profiles."""
        states_tried[0] += 1
        if len(counts) == len(profiles):
            counts_found[counts] = None
            return
        states = self._states_by_count(state, profiles[len(counts)])
        for number in range(len(states) - 1, -1, -1):
            # past the limit only none of this profile, so that the counts that were begun are completed
            if states_tried[0] < _MOST_STATES or number == 0:
                self._extend(states[number], profiles, (*counts, number), counts_found, states_tried)

    def _states_by_count(self, state: GpuState, profile: str) -> list[GpuState]:
        """Return the GPU with no, one, two and more further vGPUs of the profile, until there is no room."""
        states = [state]
        while self._has_room(states[-1], profile):
            state, tenant = states[-1], Tenant("", "", profile)
            states.append(with_expected(state, tenant, self.catalog) if self.certain else state.with_tenants(tenant))
        return states

    def _has_room(self, state: GpuState, profile: str) -> bool:
        """Return whether one more surely starts; for a bound, whether it might, up to the most a GPU can ever hold."""
        slots = room_for(state, profile, self.catalog)
        if self.certain:
            return slots.at_least > 0
        facts = self.catalog.profile(profile)
        most = facts.max_per_gpu if facts is not None else 0
        return slots.possible and len(state.tenants) < max(most, slots.at_most or 0) + len(state.gpu.vms or ())


def _maximal(counts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the counts that no other contains.

    >>> _maximal([(2, 0), (1, 0), (0, 1)])
    [(2, 0), (0, 1)]
    """
    maximal: list[tuple[int, ...]] = []
    for candidate in sorted(counts, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(candidate, larger, strict=True)) for larger in maximal):
            maximal.append(candidate)
    return maximal


_NO_VM = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class HostGpus:
    """One host of a shape: its NUMA nodes with GPUs, and the addresses of the GPUs in each group."""

    ref: str
    nodes: tuple[int, ...]
    groups: tuple[tuple[PciAddress, ...], ...]


@dataclass(frozen=True, slots=True)
class BatchModel:
    """The problem, and what its numbers stand for: the kinds, the hosts of each shape, and the devices."""

    problem: BatchProblem
    kinds: tuple[RequestKind, ...]
    hosts: tuple[tuple[HostGpus, ...], ...]
    devices: tuple[Device, ...]

    def node(self, amounts: Amounts, host: HostGpus) -> int | None:
        """Return the NUMA node that an option or a layout is on; None = the complete host."""
        block = amounts[0][0] // (1 + len(self.devices))
        return host.nodes[block] if block < len(host.nodes) else None

    def slots(self, layout: Amounts, host: HostGpus) -> dict[Device, int]:
        """Return how many of each device the layout of a GPU holds, read from the rows of the complete host."""
        width, block = 1 + len(self.devices), len(host.nodes)
        return {self.devices[row % width - 1]: count for row, count in layout if row // width == block}


def build_model(
    kinds: Sequence[RequestKind], inventory: Inventory, catalog: Catalog, *, certain: bool = True
) -> BatchModel:
    """Return the problem with only what certainly works or, if `certain` is off, all that might work (for a bound)."""
    return _ModelBuilder(tuple(kinds), inventory, catalog, certain).model()


class _ModelBuilder:
    def __init__(self, kinds: tuple[RequestKind, ...], inventory: Inventory, catalog: Catalog, certain: bool) -> None:
        self.kinds, self.inventory, self.catalog, self.certain = kinds, inventory, catalog, certain
        profiles = hardest_first([k.device for k in kinds if isinstance(k.device, str)], catalog)
        whole = dict.fromkeys(kind.device for kind in kinds if not isinstance(kind.device, str))
        self.devices: tuple[Device, ...] = (*whole, *profiles)
        self._column = {device: 1 + at for at, device in enumerate(self.devices)}
        self._width = 1 + len(self.devices)
        self._layouts = VgpuLayouts(profiles, catalog, certain)
        self._needs = [Wanted(kind.vm(kind.first), demands_of(kind.devices, {}), ()) for kind in kinds]
        self._unit_mib = gcd(*(kind.first.memory_mib for kind in kinds))
        self._asked_mib = sum(kind.first.memory_mib * len(kind.workloads) for kind in kinds)

    def model(self) -> BatchModel:
        """Return the batch problem: the kinds of requests, and the hosts grouped by shape."""
        # Hosts that have the same of everything and take the same VMs are one shape.
        shapes: dict[tuple[object, ...], tuple[HostShape, list[HostGpus]]] = {}
        refs = frozenset().union(*(kind.hosts for kind in self.kinds))
        hosts = (self.inventory.hosts[ref] for ref in refs)
        for host in sorted(hosts, key=lambda host: (host.name, host.ref)):
            shape, gpus = self._shape(host)
            if shape.options:
                key = (shape.capacity, shape.groups, tuple(shape.options.items()))
                shapes.setdefault(key, (shape, []))[1].append(gpus)
        problem = BatchProblem(
            demand=tuple(len(kind.workloads) for kind in self.kinds),
            worth=tuple(kind.gpu_mib for kind in self.kinds),
            shapes=tuple(replace(shape, count=len(hosts_alike)) for shape, hosts_alike in shapes.values()),
        )
        hosts_by_shape = tuple(tuple(hosts_alike) for _, hosts_alike in shapes.values())
        return BatchModel(problem, self.kinds, hosts_by_shape, self.devices)

    def _shape(self, host: Host) -> tuple[HostShape, HostGpus]:
        """Return the host as numbers of a shape of its own, and what these numbers stand for."""
        states = gpu_states(host, self.inventory, self.catalog)
        nodes_with_gpus = {state.gpu.numa_node for state in states}
        nodes = [node for node in sorted(host.numa_nodes, key=lambda node: node.id) if node.id in nodes_with_gpus]
        node_ids = [node.id for node in nodes]
        # 1. The rows: a block for each node, then one for the complete host.
        free_mib = (surely_unreserved_mib if self.certain else unreserved_mib)(host, _NO_VM, self.inventory)
        capacity: list[int] = []
        for node in nodes:
            capacity += self._row_block(free_memory_mib(node, _NO_VM, host, self.inventory))
        capacity += self._row_block(free_mib or 0)
        # 2. The GPUs: those with the same layouts beside the same node are one group.
        groups: dict[tuple[Amounts, ...], list[PciAddress]] = {}
        holder_of = holders(host, self.inventory)
        for state in states:
            layouts = self._layouts_in_rows(state, node_ids, holder_of)
            if layouts:
                groups.setdefault(layouts, []).append(state.gpu.address)
        ordered_groups = sorted(groups.items())
        # 3. What each kind of VM uses here.
        options: dict[int, tuple[PlacementOption, ...]] = {}
        for number, kind in enumerate(self.kinds):
            options_of_kind = self._options(number, kind, host, node_ids) if host.ref in kind.hosts else ()
            if options_of_kind:
                options[number] = options_of_kind
        gpu_groups = tuple(GpuGroup(len(gpus), layouts) for layouts, gpus in ordered_groups)
        addresses = tuple(tuple(gpus) for _, gpus in ordered_groups)
        # 1 host of this shape: `model` counts the equal ones
        return HostShape(1, tuple(capacity), gpu_groups, options), HostGpus(host.ref, tuple(node_ids), addresses)

    def _row_block(self, memory_mib: int) -> list[int]:
        return [max(0, min(memory_mib, self._asked_mib)) // self._unit_mib, *([0] * len(self.devices))]

    def _layouts_in_rows(
        self, state: GpuState, nodes: Sequence[int], holder_of: Mapping[PciAddress, str]
    ) -> tuple[Amounts, ...]:
        """Return every layout of the GPU, in rows: in the block of its NUMA node and in that of the complete host."""
        layouts: list[tuple[tuple[Device, int], ...]] = [*self._layouts.of(state)]
        if state.gpu.address not in holder_of and state.gpu.is_active_in_passthrough:
            whole = (device for device in self.devices if not isinstance(device, str))
            layouts += [((device, 1),) for device in whole if matches_type(state.gpu, WantsDynamic(0, *device))]
        blocks = [len(nodes)]
        if state.gpu.numa_node in nodes:
            blocks.insert(0, nodes.index(state.gpu.numa_node))
        return tuple(
            tuple((block * self._width + self._column[device], count) for block in blocks for device, count in layout)
            for layout in layouts
        )

    def _options(self, number: int, kind: RequestKind, host: Host, nodes: Sequence[int]) -> tuple[PlacementOption, ...]:
        """Return an option on each node with enough cores, then one for the whole host unless locality is required."""
        if refusals(self._needs[number], host, self.inventory):
            return ()
        memory, column = kind.first.memory_mib // self._unit_mib, self._column[kind.device]
        anywhere: Amounts = ((len(nodes) * self._width, memory), (len(nodes) * self._width + column, kind.count))
        if kind.numa is NumaPolicy.NONE:
            return (PlacementOption(anywhere),)
        cores = {node.id: free_cores(node, _NO_VM, host, self.inventory) for node in host.numa_nodes}
        local_options = tuple(
            PlacementOption(((index * self._width, memory), (index * self._width + column, kind.count), *anywhere))
            for index, node_id in enumerate(nodes)
            if kind.first.vcpus <= cores[node_id]
        )
        if kind.numa is NumaPolicy.REQUIRED:
            return local_options
        return (*local_options, PlacementOption(anywhere, remote=True))
