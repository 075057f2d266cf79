"""The room in a part of the fleet: a NUMA node, a host, a cluster. That of a larger part follows from its parts.

A VM can have the cores and the memory of the NUMA node that its GPUs are on. A VM with a passthrough device reserves
all of its memory at power-on (VMware vSphere docs). vCenter shows the node of a running VM's memory only if
`numa.nodeAffinity` binds it, so the free amount on a node is a range.

Source for whole GPUs: vSphere API, HostPciPassthruInfo (enabled = configured, active = in force).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import TypeVar

from gpuops.advise.capacity import Slots, best_slots, total_slots
from gpuops.advise.occupancy import GpuState, Rooms, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.devices.vgpu import parse
from gpuops.model.vcenter.host import Host, NumaNode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, Vm
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import NewVgpu
from gpuops.plan.devices.rules import Case, several_vgpus
from gpuops.plan.placement.gpu_filters import holders
from gpuops.plan.placement.host_filters import (
    Bar,
    bars,
    free_cores,
    free_memory_mib,
    limit_slots,
    surely_free_memory_mib,
    unreserved_mib,
)

_NO_VM = Vm(ref="", name="")


@dataclass(frozen=True, slots=True)
class Beside:
    """The cores and the memory that one VM can have on the NUMA node of its GPUs."""

    cores: int | None
    """Physical cores: more vCPUs would not all be local. None = not known, as is the node."""
    memory_at_least_mib: int
    """The free memory for certain, on whichever nodes the memory of running VMs is."""
    memory_at_most_mib: int | None
    """None = not known."""

    @property
    def possible(self) -> bool:
        """Return whether a VM could be there at all."""
        return self.cores != 0 and self.memory_at_most_mib != 0

    @property
    def certain(self) -> bool:
        """Return whether there surely are cores and memory for a VM, if a small one."""
        return bool(self.cores) and self.memory_at_least_mib > 0


UNKNOWN = Beside(None, 0, None)


def beside(node: NumaNode, host: Host, inventory: Inventory) -> Beside:
    """Return cores and memory of a node of the host."""
    least = surely_free_memory_mib(node, _NO_VM, host, inventory)
    on_host = free_on(host, inventory)
    most = free_memory_mib(node, _NO_VM, host, inventory)
    if on_host.memory_at_most_mib is not None:
        most = min(most, on_host.memory_at_most_mib)
        least = min(least, on_host.memory_at_least_mib)
    return Beside(free_cores(node, _NO_VM, host, inventory), max(0, least), max(0, most))


def free_on(host: Host, inventory: Inventory) -> Beside:
    """Return cores and memory of the whole host, beside what running VMs reserve."""
    if host.memory_mib is None:
        return Beside(host.cpu_cores, 0, None)
    running = [vm for vm in inventory.vms_on(host) if vm.may_run]
    claims = [vm.most_reserved_mib for vm in running]
    least = 0 if None in claims else host.memory_mib - sum(claim for claim in claims if claim is not None)
    return Beside(host.cpu_cores, max(0, least), max(0, unreserved_mib(host, _NO_VM, inventory) or 0))


Key = TypeVar("Key", str, "Device")
Value = TypeVar("Value")


class Level(StrEnum):
    """How large a place is."""

    ALL = "all"
    CLUSTER = "cluster"
    HOST = "host"
    NODE = "numa-node"


@dataclass(frozen=True, slots=True)
class Fit:
    """Room for more vGPUs of one profile."""

    slots: Slots
    """Over all VMs."""
    beside_one_node: Slots
    """For one VM whose cores and memory are beside its GPUs, on one NUMA node."""
    on_one_host: Slots
    """For one VM, wherever on a host its GPUs are."""


Fits = Mapping[str, Fit]
"""By profile, in the order of their names."""


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A kind of device that is given whole."""

    name: str
    vendor_id: int
    device_id: int
    label: str = ""
    """Hardware label of Dynamic DirectPath I/O; "" = none."""
    kind: str = ""
    """What it is, where it is no GPU of NVIDIA."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest profile that fits, as many times as one VM may have it beside one NUMA node."""

    profile: str
    framebuffer_mib: int
    count: Slots
    where: str
    """The node: `esx-01.lab NUMA node 0`."""
    beside: Beside

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Larger is more: what is certain first, then frame buffer, then vGPUs, then memory."""
        certain = self.count.at_least > 0
        return (certain, self.framebuffer_mib, self.count.at_least, self.beside.memory_at_least_mib)


@dataclass(frozen=True, slots=True)
class FleetPart:
    """How many vGPUs and whole GPUs fit in one part of the fleet: a NUMA node, a host, a cluster or all of it."""

    level: Level
    name: str
    gpus: int
    fits: Fits
    devices: Mapping[Device, Slots]
    largest: Largest | None = None
    """None = no vGPU fits beside a NUMA node."""
    beside: Beside | None = None
    """The cores and memory of a NUMA node; None for larger parts."""
    parts: tuple[FleetPart, ...] = ()
    notes: tuple[str, ...] = ()
    """Why there is less room than its GPUs have, or why that is not certain."""

    @property
    def hosts(self) -> int:
        return 1 if self.level in (Level.HOST, Level.NODE) else sum(part.hosts for part in self.parts)


def fleet_part(level: Level, name: str, parts: Sequence[FleetPart]) -> FleetPart:
    """Return the part of the fleet that these parts make up."""
    return FleetPart(
        level=level,
        name=name,
        gpus=sum(part.gpus for part in parts),
        fits=fits_of(part.fits for part in parts),
        devices={device: total_slots(rooms) for device, rooms in _group_by_key(part.devices for part in parts)},
        largest=largest_of(part.largest for part in parts),
        parts=tuple(parts),
    )


def fits_of(parts: Iterable[Fits]) -> Fits:
    """Return room in all of these places together; one VM is in one of them."""
    return {
        profile: Fit(
            slots=total_slots([fit.slots for fit in fits]),
            beside_one_node=best_slots([fit.beside_one_node for fit in fits]),
            on_one_host=best_slots([fit.on_one_host for fit in fits]),
        )
        for profile, fits in _group_by_key(parts)
    }


def largest_of(candidates: Iterable[Largest | None]) -> Largest | None:
    """Return the largest of these; the first of equals."""
    fitting = [largest for largest in candidates if largest is not None]
    return max(fitting, key=lambda largest: largest.rank, default=None)


def _group_by_key(mappings: Iterable[Mapping[Key, Value]]) -> list[tuple[Key, list[Value]]]:
    """Return what each key has in all of them, in the order of the keys."""
    grouped: dict[Key, list[Value]] = {}
    for mapping in mappings:
        for key, room in mapping.items():
            grouped.setdefault(key, []).append(room)
    return sorted(grouped.items(), key=lambda pair: pair[0])


_MOST_DEVICES = 64
"""No release allows more passthrough devices in one VM (VMware configuration maximums)."""


class OneVmLimit:
    """How many vGPUs one VM may have, by the rules of `attach`; computed once per profile and ESXi release."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._limits: dict[tuple[str, str | None], tuple[int, str]] = {}

    def of(self, slots: Slots, profile: str, host: Host) -> Slots:
        """Return how many of the free slots one VM may have."""
        key = (profile, host.version)
        if key not in self._limits:
            self._limits[key] = self._limit(profile, host)
        limit, because = self._limits[key]
        allowed = slots.limited_to(limit, because)
        if host.version is None and allowed.at_least > 1:
            return Slots(1, allowed.at_most, "the ESXi release of its host is not known")
        return allowed

    def _limit(self, profile: str, host: Host) -> tuple[int, str]:
        """Return the most vGPUs of this profile that one VM may have, and the rule that forbids one more."""
        for number in count(2):
            case = Case(Vm("", "one VM"), (NewVgpu(profile),) * number, False, host, self._catalog)
            refusal = next((verdict for verdict in several_vgpus(case) if isinstance(verdict, Rejection)), None)
            if refusal is not None or number > _MOST_DEVICES:
                return number - 1, str(refusal or "")
        raise AssertionError("counts without end")


class DeviceHolders:
    """The VMs that hold the devices of one host, and those that may hold them."""

    def __init__(self, host: Host, inventory: Inventory) -> None:
        self._holder_names = {address: _name(ref, inventory) for address, ref in holders(host, inventory).items()}
        self._possible_holders: dict[PciAddress, str] = {}
        for vm in inventory.vms_on(host):
            if vm.power is None:
                for device in vm.devices or ():
                    address = _address(device)
                    if address is not None:
                        self._possible_holders[address] = vm.name

    def room(self, gpu: PhysicalGpu | OtherDevice) -> Slots | None:
        """Return whether one more VM can have the device (0, 1 or unknown); None if it is not in passthrough."""
        state = gpu.passthrough
        if state is None:
            # A GPU with a graphics type serves graphics, so it is not in passthrough.
            unknown = isinstance(gpu, PhysicalGpu) and gpu.graphics_type is None
            return Slots(0, 1, "its passthrough state cannot be read") if unknown else None
        if not state.active and not state.enabled:
            return None
        if state.reboot_pending:
            return Slots(0, 0, "its passthrough waits for a reboot of the host")
        if gpu.address in self._holder_names:
            return Slots(0, 0, f"held by {self._holder_names[gpu.address]}")
        if gpu.address in self._possible_holders:
            return Slots(0, 1, f"whether {self._possible_holders[gpu.address]} runs cannot be read")
        return Slots(1, 1)


def rooms(
    gpus: Iterable[PhysicalGpu | OtherDevice], holding: DeviceHolders, bars: Iterable[Bar]
) -> Mapping[Device, Slots]:
    """Return the number of free devices by kind. The host's bars reduce them."""
    general = [bar for bar in bars if not bar.vgpus_alone]  # the others concern only vGPUs
    rooms_by_kind: dict[Device, list[Slots]] = {}
    for gpu in gpus:
        room = holding.room(gpu)
        if room is not None:
            label = (gpu.passthrough.label if gpu.passthrough else None) or ""
            kind = str(gpu.kind) if isinstance(gpu, OtherDevice) else ""
            rooms_by_kind.setdefault(Device(gpu.name, gpu.vendor_id, gpu.device_id, label, kind), []).append(room)
    return {device: limit_slots(general, total_slots(rooms_by_kind[device])) for device in sorted(rooms_by_kind)}


def _address(device: object) -> PciAddress | None:
    match device:
        case DirectPathDevice(address=address):
            return address
        case DynamicDevice(assigned=assigned):
            return assigned
        case _:
            return None


def _name(ref: str, inventory: Inventory) -> str:
    return inventory.vms[ref].name if ref in inventory.vms else ref


@dataclass(frozen=True, slots=True)
class _HostContext:
    """What the nodes of one host share."""

    host: Host
    bars: tuple[Bar, ...]
    holding: DeviceHolders


class HostRoom:
    """Counts the room on hosts. `offered`: the profiles to count on hosts that do not report their own.

    Most nodes of a fleet are like another one, so the figures of equal nodes are computed once. The caches use the
    identity of their inputs as the key, and keep the inputs alive.
    """

    def __init__(self, catalog: Catalog, offered: tuple[str, ...], profile: str | None = None) -> None:
        self._catalog = catalog
        self._offered = offered
        self._profile = profile
        self._rooms = Rooms(catalog)
        self._in_one_vm = OneVmLimit(catalog)
        self._fits: dict[tuple[object, ...], Fits] = {}
        self._largest: dict[int, Largest | None] = {}

    def of(self, host: Host, inventory: Inventory) -> FleetPart:
        """Return the room on one host as this snapshot shows it."""
        context = _HostContext(host, tuple(bars(host, inventory)), DeviceHolders(host, inventory))
        states = gpu_states(host, inventory, self._catalog)
        nodes = tuple(
            self._node(context, "NUMA node unknown", node_states, UNKNOWN, node_devices)
            if node is None
            else self._node(context, f"NUMA node {node.id}", node_states, beside(node, host, inventory), node_devices)
            for node, node_states, node_devices in _by_node(host, states)
        )
        return FleetPart(
            level=Level.HOST,
            name=host.name,
            gpus=len(states),
            fits=self._host_fits([node.fits for node in nodes], host),
            devices=rooms([*(state.gpu for state in states), *host.others], context.holding, context.bars),
            largest=largest_of(node.largest for node in nodes),
            parts=nodes,
            notes=tuple(bar.because for bar in context.bars),
        )

    def _node(
        self,
        context: _HostContext,
        name: str,
        states: Sequence[GpuState],
        local: Beside,
        other_devices: Sequence[OtherDevice],
    ) -> FleetPart:
        """Return the room on one NUMA node: on these GPUs and on the other devices for VMs."""
        profiles = self._profiles(context.host)
        fits = self._node_fits([self._rooms.on(state, profiles) for state in states], context, local)
        return FleetPart(
            level=Level.NODE,
            name=name,
            gpus=len(states),
            fits=fits,
            devices=rooms([*(state.gpu for state in states), *other_devices], context.holding, context.bars),
            largest=self._largest_in(fits, f"{context.host.name} {name}", local),
            beside=local,
        )

    def _profiles(self, host: Host) -> tuple[str, ...]:
        names = self._offered if host.profiles is None else tuple(offer.name for offer in host.profiles)
        return names if self._profile is None else tuple(name for name in names if name == self._profile)

    def _node_fits(self, free: Sequence[Mapping[str, Slots]], context: _HostContext, local: Beside) -> Fits:
        """Return the room by profile on the GPUs of a node. `free`: the slots of each GPU, by profile."""
        # Equal GPUs have the same mapping of slots, so that equal nodes have the same key.
        key = (*map(id, free), context.host.version, context.bars, local.possible, local.certain)
        if key not in self._fits:
            slots_by_profile: dict[str, list[Slots]] = {}
            for gpu in free:
                for profile, slots in gpu.items():
                    slots_by_profile.setdefault(profile, []).append(slots)
            fits = {}
            for profile in sorted(slots_by_profile):
                slots = limit_slots(context.bars, total_slots(slots_by_profile[profile]))
                in_one_vm = self._in_one_vm.of(slots, profile, context.host)
                fits[profile] = Fit(slots, _limit_to_node(in_one_vm, local), in_one_vm)
            self._fits[key] = fits
        return self._fits[key]

    def _host_fits(self, nodes: Sequence[Fits], host: Host) -> Fits:
        """Return the room on the host by profile, from the room on its nodes."""
        key = (*map(id, nodes), host.version)
        if key not in self._fits:
            self._fits[key] = {
                profile: replace(fit, on_one_host=self._in_one_vm.of(fit.slots, profile, host))
                for profile, fit in fits_of(nodes).items()
            }
        return self._fits[key]

    def _largest_in(self, fits: Fits, where: str, local: Beside) -> Largest | None:
        """Return the largest profile that fits on the node `where`."""
        if id(fits) not in self._largest:
            self._largest[id(fits)] = largest_of(_candidate(profile, fit) for profile, fit in fits.items())
        largest = self._largest[id(fits)]
        return None if largest is None else replace(largest, where=where, beside=local)


def _candidate(profile: str, fit: Fit) -> Largest | None:
    parts = parse(profile)
    if parts is None or not fit.beside_one_node.possible:
        return None
    return Largest(profile, parts.framebuffer_mib, fit.beside_one_node, "", UNKNOWN)


def _limit_to_node(slots: Slots, local: Beside) -> Slots:
    """Return the slots for which the node has cores and memory."""
    if not local.possible:
        return Slots(0, 0, "no cores or no memory left beside the GPUs")
    if not local.certain:
        return slots.as_doubtful("whether cores and memory are left beside the GPUs is not known")
    return slots


def _by_node(
    host: Host, states: Sequence[GpuState]
) -> Iterator[tuple[NumaNode | None, list[GpuState], list[OtherDevice]]]:
    """Yield each node with its GPUs and other passthrough devices; last, under None, those without a known node."""
    nodes_by_id = {node.id: node for node in sorted(host.numa_nodes, key=lambda node: node.id)}
    devices = [device for device in host.others if device.passed_through]
    for number in (*nodes_by_id, None):
        node_states = [state for state in states if _known_node(state.gpu.numa_node, nodes_by_id) == number]
        node_devices = [device for device in devices if _known_node(device.numa_node, nodes_by_id) == number]
        if node_states or node_devices:
            yield None if number is None else nodes_by_id[number], node_states, node_devices


def _known_node(number: int | None, nodes: Collection[int]) -> int | None:
    return number if number in nodes else None
