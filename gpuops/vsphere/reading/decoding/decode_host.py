"""Decodes hosts of a bulk read: graphics, passthrough, NUMA, PCI devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from gpuops.model.devices.gpu import (
    NVIDIA_VENDOR_ID,
    AssignmentPolicy,
    GraphicsType,
    Passthrough,
    PciAddress,
    PhysicalGpu,
    VgpuMode,
)
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import (
    DeviceBinding,
    Host,
    NumaNode,
    OfferedProfile,
)
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.values import (
    child,
    children,
    count,
    each_with,
    flag,
    items,
    leaves,
    number,
    owner,
    said,
    text,
    texts,
    truth,
    whole,
    word,
)
from gpuops.vsphere.reading.decoding.decode_device import kind_of, may_be_function
from gpuops.vsphere.transport.xml_values import mebibytes, moment, pci_address, spoken, unsigned


@dataclass(frozen=True, slots=True)
class _Graphics:
    """One HostGraphicsInfo."""

    name: str
    graphics_type: GraphicsType | None
    mode: VgpuMode | None
    memory_mib: int | None
    vms: tuple[str, ...] | None
    vendor: str = ""


_UNLISTED: Final = _Graphics("", None, None, None, None)
"""What is known of a GPU that the host's graphics stack does not list."""


@dataclass(frozen=True, slots=True)
class ThinHost:
    """A host before its PCI devices are read, and what its GPUs will be made of."""

    host: Host
    parent: str | None
    graphics: Mapping[PciAddress, _Graphics]
    configured: Mapping[PciAddress, GraphicsType]
    passthrough: Mapping[PciAddress, Passthrough]

    @property
    def has_devices(self) -> bool:
        """Whether its PCI devices are worth reading: it shows a GPU, or a device for passthrough."""
        return bool(self.graphics) or bool(self.passed_through)

    @property
    def passed_through(self) -> frozenset[PciAddress]:
        return frozenset(address for address, state in self.passthrough.items() if state.enabled or state.active)


def thin_host(found: ReadObject) -> ThinHost:
    """A host as the thin read shows it, without GPUs yet."""
    values = found.properties
    config = values.get("config.graphicsConfig")
    connection = text(values.get("runtime.connectionState"))
    cpu = values.get("hardware.cpuInfo")
    host = Host(
        ref=found.ref,
        name=found.name,
        connected=None if connection is None else connection == "connected",
        in_maintenance=flag(values.get("runtime.inMaintenanceMode")),
        booted=moment(text(values.get("runtime.bootTime"))),
        uuid=text(values.get("hardware.systemInfo.uuid")) or None,
        version=text(values.get("config.product.version")),
        memory_mib=mebibytes(number(values.get("hardware.memorySize"))),
        memory_used_mib=number(values.get("summary.quickStats.overallMemoryUsage")),
        cpu_cores=number(cpu, "numCpuCores"),
        cpu_threads=number(cpu, "numCpuThreads"),
        cpu_mhz=_megahertz(number(cpu, "hz")),
        numa_nodes=_numa_nodes(values.get("hardware.numaInfo")),
        profiles=_profiles(values),
        default_graphics_type=word(GraphicsType, config, "hostDefaultGraphicsType"),
        assignment_policy=word(AssignmentPolicy, config, "sharedPassthruAssignmentPolicy"),
        bindings=_bindings(values.get("config.assignableHardwareBinding")),
        datastores=_datastores(values.get("datastore"), found.unreadable),
        unreadable=found.unreadable,
    )
    return ThinHost(
        host,
        parent=text(values.get("parent")),
        graphics=_graphics(values.get("config.graphicsInfo")),
        configured=_configured(config),
        passthrough=_passthrough(values.get("config.pciPassthruInfo")),
    )


def host_with_gpus(
    thin: ThinHost,
    devices: tuple[PhysicalGpu | OtherDevice, ...],
    carried: Mapping[PciAddress, tuple[str, ...]] | None = None,
) -> Host:
    """The host with its GPUs: `devices` from its PCI list, or the graphics list alone where that was not readable.

    Of what is no NVIDIA GPU it has whatever is passed through, or could be and is made for that. `carried`: what the
    host has devices for; where that was asked, it has all that could be passed through.
    """
    nodes = {address: node.id for node in thin.host.numa_nodes for address in node.devices}
    known = {device.address for device in devices}
    listed = [
        PhysicalGpu(address, graphics.name, vendor_id=0, device_id=0)
        for address, graphics in thin.graphics.items()
        if address not in known and graphics.graphics_type is not GraphicsType.BASIC and _may_be_nvidia(graphics)
    ]
    own = [device for device in devices if isinstance(device, PhysicalGpu)]
    gpus = [_gpu(thin, device, nodes.get(device.address)) for device in (*own, *listed)]
    others = [
        _other(thin, device, nodes.get(device.address), carried)
        for device in devices
        if isinstance(device, OtherDevice) and _may_be_given(thin, device, in_any_use=carried is not None)
    ]
    return replace(
        thin.host,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.address)),
        others=tuple(sorted(others, key=lambda device: device.address)),
    )


def pci_devices(
    found: ReadObject, passed_through: Collection[PciAddress] = (), *, every: bool = False
) -> tuple[PhysicalGpu | OtherDevice, ...]:
    """The GPUs and accelerators in a host's `hardware.pciDevice`, and what of it is passed through, or with `every`
    whatever is no bridge; their graphics and passthrough state come from the thin read."""
    devices = each_with(found.properties.get("hardware.pciDevice"), "classId")
    wanted = (each for code, each in devices if may_be_function(code, given=every or bool(passed_through)))
    made = (_pci_device(owner(each), passed_through, every=every) for each in wanted)
    return tuple(device for device in made if device is not None)


def _pci_device(
    device: Any, passed_through: Collection[PciAddress], *, every: bool
) -> PhysicalGpu | OtherDevice | None:
    told = leaves(device)
    address = pci_address(said(told.get("id")))
    if address is None:
        return None
    pci_class = unsigned(whole(told.get("classId")))
    vendor = unsigned(whole(told.get("vendorId")))
    subsystem = unsigned(whole(told.get("subDeviceId")))
    name = said(told.get("deviceName")) or ""
    kind = kind_of(pci_class, vendor, name, said(told.get("deviceClassName")) or "")
    if kind is None or not (every or address in passed_through or may_be_function(pci_class, given=False)):
        return None
    device_id = unsigned(whole(told.get("deviceId")))
    if vendor == NVIDIA_VENDOR_ID and may_be_function(pci_class, given=False):
        if subsystem == 0:
            return None  # a virtual function of a GPU, not a GPU (as govc's gpu commands tell them apart)
        return PhysicalGpu(address, name or "GPU", vendor, device_id, subsystem)
    name = name or " ".join(filter(None, [said(told.get("vendorName")), kind]))
    return OtherDevice(address, name, kind, vendor, device_id, subsystem or None)


def _may_be_nvidia(graphics: _Graphics) -> bool:
    """Whether a GPU whose PCI ids nobody may read can be one of NVIDIA's: its vendor is not told, or is NVIDIA."""
    return not graphics.vendor or "nvidia" in graphics.vendor.lower()


def _may_be_given(thin: ThinHost, device: OtherDevice, *, in_any_use: bool) -> bool:
    state = thin.passthrough.get(device.address)
    if state is None:
        return False
    return state.enabled or state.active or (state.capable and (in_any_use or device.kind.made_for_vms))


def _other(
    thin: ThinHost, device: OtherDevice, numa_node: int | None, carried: Mapping[PciAddress, tuple[str, ...]] | None
) -> OtherDevice:
    graphics = thin.graphics.get(device.address, _UNLISTED)
    return replace(
        device,
        memory_mib=graphics.memory_mib,
        numa_node=numa_node,
        passthrough=thin.passthrough.get(device.address),
        carries=None if carried is None else carried.get(device.address, ()),
    )


def _gpu(thin: ThinHost, gpu: PhysicalGpu, numa_node: int | None) -> PhysicalGpu:
    graphics = thin.graphics.get(gpu.address, _UNLISTED)
    # In full and not by replace(), which costs three times as much: a fleet has thousands.
    return PhysicalGpu(
        gpu.address,
        graphics.name or gpu.name,
        gpu.vendor_id,
        gpu.device_id,
        gpu.subsystem_id,
        memory_mib=graphics.memory_mib,
        graphics_type=graphics.graphics_type,
        vgpu_mode=graphics.mode,
        configured_graphics_type=thin.configured.get(gpu.address),
        numa_node=numa_node,
        passthrough=thin.passthrough.get(gpu.address),
        vms=graphics.vms,
    )


def _graphics(value: Any) -> dict[PciAddress, _Graphics]:
    found = {}
    for each in items(value):
        told = leaves(each)
        address = pci_address(said(told.get("pciId")))
        kib = whole(told.get("memorySizeInKB"))
        if address is not None:
            found[address] = _Graphics(
                name=said(told.get("deviceName")) or "",
                graphics_type=spoken(GraphicsType, said(told.get("graphicsType"))),
                mode=spoken(VgpuMode, said(told.get("vgpuMode"))),
                memory_mib=kib // 1024 if kib else None,
                vms=texts(each, "vm") if "vm" in told else (),
                vendor=said(told.get("vendorName")) or "",
            )
    return found


def _configured(config: Any) -> dict[PciAddress, GraphicsType]:
    return {
        address: graphics_type
        for each in children(config, "deviceType")
        if (address := pci_address(text(each, "deviceId"))) is not None
        and (graphics_type := word(GraphicsType, each, "graphicsType")) is not None
    }


def _passthrough(value: Any) -> dict[PciAddress, Passthrough]:
    return {
        address: Passthrough(
            capable=bool(truth(told.get("passthruCapable"))),
            enabled=bool(truth(told.get("passthruEnabled"))),
            active=bool(truth(told.get("passthruActive"))),
            label=said(told.get("hardwareLabel")),
        )
        for told in map(leaves, items(value))
        if (address := pci_address(said(told.get("id")))) is not None
    }


def _numa_nodes(value: Any) -> tuple[NumaNode, ...]:
    nodes = []
    for each in children(value, "numaNode"):
        identity = number(each, "typeId")
        # memorySize is 8.0's name for what memoryRangeLength was before (vSphere API, HostNumaNode)
        memory = number(each, "memorySize") or number(each, "memoryRangeLength")
        if identity is not None:
            nodes.append(
                NumaNode(
                    id=identity,
                    logical_cpus=count(each, "cpuID"),
                    memory_mib=mebibytes(memory) or 0,
                    devices=tuple(
                        address for pci in children(each, "pciId") if (address := pci_address(text(pci))) is not None
                    ),
                )
            )
    return tuple(nodes)


def _profiles(values: Mapping[str, Any]) -> tuple[OfferedProfile, ...] | None:
    """Every profile the host can run: those it offers now, and those it says it is capable of (vSphere API 6.7).

    A same-size GPU takes all other sizes off the list of types while a vGPU runs on it. A plan that first frees the
    GPU must still know them; whether there is room now is told by the GPUs, not by this list.
    """
    offered = values.get("config.sharedPassthruGpuTypes")
    capabilities = values.get("config.sharedGpuCapabilities")
    flags = {
        name: _offered(
            name,
            truth(told.get("suspendSupported")),
            truth(told.get("migrateSupported")),
            truth(told.get("diskSnapshotSupported")),
            truth(told.get("memorySnapshotSupported")),
        )
        for told in map(leaves, items(capabilities))
        if (name := said(told.get("vgpu")))
    }
    if offered is None:
        # an empty list is absent too: with capabilities told the host speaks of vGPU, and has no room at all now
        return tuple(flags.values()) if flags else None
    now = [flags.pop(name) if name in flags else OfferedProfile(name) for name in dict.fromkeys(_names(offered))]
    return (*now, *flags.values())


def _names(offered: Any) -> Iterator[str]:
    return (name for each in items(offered) if (name := text(each)))


@lru_cache(maxsize=4096)
def _offered(
    name: str, suspend: bool | None, migrate: bool | None, disk_snapshot: bool | None, memory_snapshot: bool | None
) -> OfferedProfile:
    """One value for all hosts that say the same of a profile: a fleet has thousands of them."""
    return OfferedProfile(name, suspend, migrate, disk_snapshot, memory_snapshot)


def _bindings(value: Any) -> tuple[DeviceBinding, ...]:
    return tuple(
        DeviceBinding(address, vm)
        for each in items(value)
        if (address := pci_address(text(each, "pciId") or text(each, "instanceId"))) is not None
        and (vm := text(child(each, "vm")))
    )


def _datastores(value: Any, unreadable: tuple[str, ...]) -> tuple[str, ...] | None:
    """vCenter leaves an empty list out; what it may not tell is not an empty list."""
    return None if "datastore" in unreadable else tuple([ref for each in items(value) if (ref := text(each))])


def _megahertz(hertz: int | None) -> int | None:
    return None if hertz is None else hertz // 1_000_000
