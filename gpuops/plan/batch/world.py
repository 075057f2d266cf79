"""World: a snapshot and kinds of requests as a problem, and what its numbers stand for.

Rows of a host: for each NUMA node with GPUs its memory and, per device, the slots beside it; then the same of the whole
host. Memory is counted in units that divide every request's, so that hosts that differ by less are one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import Vm
from gpuops.plan.batch.fillings import Filling, Fillings, in_order_of_filling
from gpuops.plan.batch.kinds import Device, Kind
from gpuops.plan.batch.problem import Amounts, GpuGroup, Problem, Shape, Way
from gpuops.plan.placement.directpath import holders, is_of
from gpuops.plan.placement.filters import refusals
from gpuops.plan.placement.nodes import free_cores, free_memory_mib, surely_unreserved, unreserved
from gpuops.plan.placement.wanted import Wanted, WantsDynamic, demands_of

_NOBODY = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class HostGpus:
    """One host of a shape: its NUMA nodes with GPUs, and the GPUs of each group."""

    ref: str
    nodes: tuple[int, ...]
    groups: tuple[tuple[PciAddress, ...], ...]


@dataclass(frozen=True, slots=True)
class World:
    """The problem, the kinds by number, the hosts of each shape, and the devices by number."""

    problem: Problem
    kinds: tuple[Kind, ...]
    hosts: tuple[tuple[HostGpus, ...], ...]
    devices: tuple[Device, ...]

    def node(self, amounts: Amounts, host: HostGpus) -> int | None:
        """The NUMA node that a way or a filling is on; None = the host as a whole."""
        block = amounts[0][0] // (1 + len(self.devices))
        return host.nodes[block] if block < len(host.nodes) else None

    def slots(self, filling: Amounts, host: HostGpus) -> dict[Device, int]:
        """How many of each device a GPU is filled with."""
        width, block = 1 + len(self.devices), len(host.nodes)
        return {self.devices[row % width - 1]: count for row, count in filling if row // width == block}


def world_of(kinds: Sequence[Kind], inventory: Inventory, catalog: Catalog, *, certain: bool = True) -> World:
    """What surely can be; without `certain` all that might be, for a bound."""
    return _Reader(tuple(kinds), inventory, catalog, certain).world()


class _Reader:
    def __init__(self, kinds: tuple[Kind, ...], inventory: Inventory, catalog: Catalog, certain: bool) -> None:
        self.kinds, self.inventory, self.catalog, self.certain = kinds, inventory, catalog, certain
        profiles = in_order_of_filling([k.device for k in kinds if isinstance(k.device, str)], catalog)
        whole = dict.fromkeys(kind.device for kind in kinds if not isinstance(kind.device, str))
        self.devices: tuple[Device, ...] = (*whole, *profiles)
        self._column = {device: 1 + at for at, device in enumerate(self.devices)}
        self._width = 1 + len(self.devices)
        self._fillings = Fillings(profiles, catalog, certain)
        self._wanted = [Wanted(kind.vm(kind.first), demands_of(kind.devices, {}), ()) for kind in kinds]
        self._unit_mib = gcd(*(kind.first.memory_mib for kind in kinds))
        self._asked_mib = sum(kind.first.memory_mib * len(kind.workloads) for kind in kinds)

    def world(self) -> World:
        found: dict[tuple[object, ...], tuple[Shape, list[HostGpus]]] = {}
        refs = frozenset().union(*(kind.hosts for kind in self.kinds))
        hosts = sorted((self.inventory.hosts[ref] for ref in refs), key=lambda host: (host.name, host.ref))
        for host in hosts:
            shape, gpus = self._shape(host)
            if not shape.ways:
                continue
            key = (shape.capacity, shape.groups, tuple(shape.ways.items()))
            found.setdefault(key, (shape, []))[1].append(gpus)
        problem = Problem(
            demand=tuple(len(kind.workloads) for kind in self.kinds),
            worth=tuple(kind.gpu_mib for kind in self.kinds),
            shapes=tuple(replace(shape, count=len(there)) for shape, there in found.values()),
        )
        return World(problem, self.kinds, tuple(tuple(there) for _, there in found.values()), self.devices)

    def _shape(self, host: Host) -> tuple[Shape, HostGpus]:
        states = gpu_states(host, self.inventory, self.catalog)
        beside = {state.gpu.numa_node for state in states}
        nodes = [node.id for node in sorted(host.numa_nodes, key=lambda node: node.id) if node.id in beside]
        free_mib = (surely_unreserved if self.certain else unreserved)(host, _NOBODY, self.inventory)
        capacity: list[int] = []
        known = {node.id: node for node in host.numa_nodes}
        for number in nodes:
            capacity += self._row_block(free_memory_mib(known[number], _NOBODY, host, self.inventory))
        capacity += self._row_block(free_mib or 0)
        groups: dict[tuple[Amounts, ...], list[PciAddress]] = {}
        held = holders(host, self.inventory)
        for state in states:
            amounts = self._amounts(state, nodes, held)
            if amounts:
                groups.setdefault(amounts, []).append(state.gpu.address)
        ways = {
            number: ways
            for number, kind in enumerate(self.kinds)
            if host.ref in kind.hosts and (ways := self._ways(number, kind, host, nodes))
        }
        ordered = sorted(groups.items())
        shape = Shape(1, tuple(capacity), tuple(GpuGroup(len(gpus), each) for each, gpus in ordered), ways)
        return shape, HostGpus(host.ref, tuple(nodes), tuple(tuple(gpus) for _, gpus in ordered))

    def _row_block(self, memory_mib: int) -> list[int]:
        return [max(0, min(memory_mib, self._asked_mib)) // self._unit_mib, *([0] * len(self.devices))]

    def _amounts(self, state: GpuState, nodes: Sequence[int], held: Mapping[PciAddress, str]) -> tuple[Amounts, ...]:
        """Every filling of the GPU, in rows."""
        fillings: list[tuple[tuple[Device, int], ...]] = [*map(_as_devices, self._fillings.of(state))]
        if state.gpu.address not in held and state.gpu.passthrough is not None and state.gpu.passthrough.active:
            whole = (device for device in self.devices if not isinstance(device, str))
            fillings += [((device, 1),) for device in whole if is_of(state.gpu, WantsDynamic(0, *device))]
        blocks = [len(nodes)]
        if state.gpu.numa_node in nodes:
            blocks.insert(0, nodes.index(state.gpu.numa_node))
        return tuple(
            tuple((block * self._width + self._column[device], n) for block in blocks for device, n in filling)
            for filling in fillings
        )

    def _ways(self, number: int, kind: Kind, host: Host, nodes: Sequence[int]) -> tuple[Way, ...]:
        """On each node that has the cores, then anywhere on the host where locality is not required."""
        if refusals(self._wanted[number], host, self.inventory):
            return ()
        memory, column = kind.first.memory_mib // self._unit_mib, self._column[kind.device]
        anywhere: Amounts = ((len(nodes) * self._width, memory), (len(nodes) * self._width + column, kind.count))
        if kind.numa is NumaPolicy.NONE:
            return (Way(anywhere),)
        cores = {node.id: free_cores(node, _NOBODY, host, self.inventory) for node in host.numa_nodes}
        here = tuple(
            Way(((at * self._width, memory), (at * self._width + column, kind.count), *anywhere))
            for at, number in enumerate(nodes)
            if kind.first.vcpus <= cores[number]
        )
        return here if kind.numa is NumaPolicy.REQUIRED else (*here, Way(anywhere, remote=True))


def _as_devices(filling: Filling) -> tuple[tuple[Device, int], ...]:
    return tuple((profile, count) for profile, count in filling)
