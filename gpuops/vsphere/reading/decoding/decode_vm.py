"""Decodes VMs of a bulk read: a few properties of every VM, and the devices of those on hosts with GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    GpuDevice,
    ManagedBy,
    NicKind,
    OtherPassthrough,
    PowerState,
    RunningTask,
    VgpuDevice,
    Vm,
    VmNic,
)
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.values import (
    child,
    children,
    each_with,
    flag,
    items,
    kind,
    leaves,
    number,
    owner,
    parts_of,
    said,
    text,
    whole,
    word,
)
from gpuops.vsphere.transport.xml_values import moment, pci_address, unsigned

_KEPT_KEYS: Final = ("pcipassthru", "numa.", "sched.", "gpuops.", "guestinfo.gpuops.")
"""extraConfig keys a plan may need, in lower case; the rest stays in vCenter."""

SPELLINGS: Final[Mapping[str, str]] = {
    key.lower(): key
    for key in (
        "pciPassthru.use64bitMMIO",
        "pciPassthru.64bitMMIOSizeGB",
        "numa.nodeAffinity",
        "sched.cpu.affinity",
        "sched.mem.lpage.enable1GPage",
    )
}
"""The spelling of keys that plans look for, by the key in lower case. ESXi compares keys without regard to case."""
_OF_DEVICE: Final = re.compile(r"pcipassthru\d+\.cfg\..+", re.IGNORECASE)

_BACKING: Final = "VirtualPCIPassthrough{}BackingInfo"
_VGPU: Final = _BACKING.format("Vmiop")
_STATIC: Final = _BACKING.format("Device")
_DYNAMIC: Final = _BACKING.format("Dynamic")
_DVX: Final = _BACKING.format("Dvx")
_NICS: Final[Mapping[str, NicKind]] = {
    "VirtualVmxnet3Vrdma": "vmxnet3vrdma",
    "VirtualSriovEthernetCard": "sriov",
}
"""The kinds of VirtualEthernetCard (vSphere API) that are read: each desktop of a fleet has a card of another kind, and
nothing asks for it."""
_PASSTHROUGH_DEVICES: Final = frozenset({"VirtualPCIPassthrough", "VirtualSriovEthernetCard"})


@dataclass(frozen=True, slots=True)
class ThinVm:
    """A VM of the thin read, with what other objects of the same read must still explain.

    It becomes a `Vm` once, when all of it is known: a VM has 39 properties, and a copy with some of them replaced takes
    twice the time of making it. Two copies of each VM were a seventh of `gpuops inventory` of a fleet.
    """

    ref: str
    host: str | None
    known: partial[Vm]
    """Makes the VM, given what is not known yet."""
    parent: str | None
    """Its folder, or the vApp it is a member of."""
    attribute_values: tuple[tuple[int, str], ...]
    """(custom field key, value)."""
    recent_tasks: tuple[str, ...]

    @property
    def vm(self) -> Vm:
        """The VM as far as it is known: without path and attributes, a vApp by id."""
        return self.known()


def thin_vm(found: ReadObject) -> ThinVm:
    """A VM as the thin read shows it: no devices, no path, attributes by number, a vApp by id."""
    values = found.properties
    connection = text(values.get("runtime.connectionState"))
    host = text(values.get("runtime.host"))
    return ThinVm(
        found.ref,
        host,
        partial(
            Vm,
            ref=found.ref,
            name=found.name,
            instance_uuid=text(values.get("config.instanceUuid")),
            host=host,
            power=word(PowerState, values.get("runtime.powerState")),
            suspended_at=moment(text(values.get("runtime.suspendTime"))),
            started_at=moment(text(values.get("runtime.bootTime"))),
            connected=None if connection is None else connection == "connected",
            template=flag(values.get("config.template")),
            vcpus=number(values.get("summary.config.numCpu")),
            memory_mib=number(values.get("summary.config.memorySizeMB")),
            cpu_usage_mhz=number(values.get("summary.quickStats.overallCpuUsage")),
            console_connections=number(values.get("runtime.numMksConnections")),
            question=text(values.get("runtime.question"), "text"),
            datastores=_refs(values.get("datastore")),
            vapp=text(values.get("parentVApp")),
            snapshots=_snapshots(values, found.unreadable),
            managed_by=_managed_by(values.get("config.managedBy")),
            unreadable=found.unreadable,
        ),
        # of a member of a vApp the folder may be left out (vSphere API, ManagedEntity.parent)
        parent=text(values.get("parentVApp")) or text(values.get("parent")),
        attribute_values=_attribute_values(values.get("customValue")),
        recent_tasks=_refs(values.get("recentTask")),
    )


def running_task(found: ReadObject) -> RunningTask | None:
    """A task that has not ended, or None."""
    state = text(found.properties.get("info.state"))
    if state not in ("queued", "running"):
        return None
    return RunningTask(found.ref, text(found.properties.get("info.name")) or "task", state)


def with_detail(thin: ThinVm, found: ReadObject) -> ThinVm:
    """The VM with its devices, extraConfig and what else a change of it must know."""
    values = found.properties
    tools = text(values.get("guest.toolsRunningStatus"))
    devices, nics = _devices(values.get("config.hardware.device"))
    known = partial(
        thin.known,
        devices=devices,
        nics=nics,
        extra_config=_extra_config(values.get("config.extraConfig")),
        change_version=text(values.get("config.changeVersion")),
        firmware=word(Firmware, values.get("config.firmware")),
        hardware_version=_hardware_version(text(values.get("config.version"))),
        cores_per_socket=number(values.get("config.hardware.numCoresPerSocket")),
        cores_per_numa_node=_cores_per_numa_node(values),
        memory_reservation_mib=number(values.get("config.memoryAllocation.reservation")),
        cpu_reservation_mhz=number(values.get("config.cpuAllocation.reservation")),
        memory_locked=flag(values.get("config.memoryReservationLockedToMax")),
        cpu_hot_add=flag(values.get("config.cpuHotAddEnabled")),
        nested_virtualization=flag(values.get("config.nestedHVEnabled")),
        tools_running=None if tools is None else tools == "guestToolsRunning",
        unreadable=tuple(dict.fromkeys((*thin.known.keywords["unreadable"], *found.unreadable))),
    )
    return ThinVm(thin.ref, thin.host, known, thin.parent, thin.attribute_values, thin.recent_tasks)


def _cores_per_numa_node(values: Mapping[str, Any]) -> int | None:
    """As somebody has set it; 0 = automatic: then vCenter shows what ESXi makes of it, which is nobody's wish (vSphere
    API, VirtualMachineVirtualNumaInfo)."""
    if flag(values.get("config.numaInfo.autoCoresPerNumaNode")):
        return 0
    return number(values.get("config.numaInfo.coresPerNumaNode"))


def _devices(value: Any) -> tuple[tuple[GpuDevice, ...] | None, tuple[VmNic, ...] | None]:
    """Return passthrough devices, in the order of their keys, and RDMA network cards.

    None where the list itself is missing: every VM has some device.
    """
    if value is None:
        return None, None
    devices, nics = list[GpuDevice](), list[VmNic]()
    for each in items(value):
        name = kind(each)
        if name in _PASSTHROUGH_DEVICES:
            devices.append(_device(each))
        if name in _NICS:
            nics.append(_nic(each, _NICS[name]))
    devices.sort(key=lambda device: device.key)
    return tuple(devices), tuple(nics)


def _nic(node: Any, its_kind: NicKind) -> VmNic:
    # four fields of twenty: asked for one by one, which is cheaper here than all of them at once
    backing = child(node, "backing")
    port = child(backing, "port") if backing is not None else None
    if port is not None:
        network = text(port, "portgroupKey")
    else:
        network = None if backing is None else text(backing, "network") or text(backing, "deviceName")
    return VmNic(number(node, "key") or 0, its_kind, network, text(node, "macAddress"))


def _device(node: Any) -> GpuDevice:
    parts = parts_of(node)
    key = number(parts.get("key")) or 0
    group = number(parts.get("deviceGroupInfo"), "groupInstanceKey")
    backing = parts.get("backing")
    match kind(backing) if backing is not None else "":
        case name if name == _VGPU and (profile := text(backing, "vgpu")) is not None:
            return VgpuDevice(key, profile, numa_node=_virtual_node(number(parts.get("numaNode"))), group=group)
        case name if name == _STATIC and (address := pci_address(text(backing, "id"))) is not None:
            return DirectPathDevice(
                key,
                address,
                vendor_id=unsigned(number(backing, "vendorId")),
                device_id=_hexadecimal(text(backing, "deviceId")),
                system_id=text(backing, "systemId") or "",
                group=group,
            )
        case name if name == _DYNAMIC:
            allowed = tuple(
                (unsigned(number(each, "vendorId")), unsigned(number(each, "deviceId")))
                for each in children(backing, "allowedDevice")
            )
            assigned = pci_address(text(backing, "assignedId"))
            return DynamicDevice(key, allowed, label=text(backing, "customLabel"), assigned=assigned, group=group)
        case name:
            label = text(parts.get("deviceInfo"), "label") or kind(node)
            is_known = name == _DVX or kind(node) == "VirtualSriovEthernetCard"
            return OtherPassthrough(key, label, unreadable=not is_known)


def _virtual_node(written: int | None) -> int | None:
    """Negative means none, as unset does (vSphere API, VirtualDevice.numaNode)."""
    return None if written is None or written < 0 else written


def _extra_config(value: Any) -> Mapping[str, str] | None:
    if value is None:
        return None
    options = ((_spelled(key), node) for key, node in each_with(value, "key"))
    return {key: text(owner(node), "value") or "" for key, node in options if key is not None}


@lru_cache(maxsize=4096)
def _spelled(key: str | None) -> str | None:
    """Return this key of extraConfig in the spelling that plans look for; None = it is not decoded.

    Cached, because every VM has the same twenty keys.
    """
    lowered = (key or "").lower()
    if not lowered.startswith(_KEPT_KEYS):
        return None
    if _OF_DEVICE.fullmatch(lowered):  # pciPassthru0.cfg.gpu-pci-id
        return "pciPassthru" + lowered.removeprefix("pcipassthru")
    return SPELLINGS.get(lowered, key)


def _attribute_values(value: Any) -> tuple[tuple[int, str], ...]:
    told = map(leaves, items(value))
    return tuple((key, said(each.get("value")) or "") for each in told if (key := whole(each.get("key"))) is not None)


def _managed_by(value: Any) -> ManagedBy | None:
    """Whose the VM is; an empty key is what a product leaves that has given it up (vSphere API, ManagedByInfo)."""
    if value is None:
        return None
    told = leaves(value)
    extension = said(told.get("extensionKey"))
    return None if extension is None else ManagedBy(extension, said(told.get("type")) or "")


def _snapshots(values: Mapping[str, Any], unreadable: tuple[str, ...]) -> int | None:
    """How many snapshot trees it has; vCenter leaves the list out when there is none."""
    if "rootSnapshot" in unreadable:
        return None
    return sum(1 for _ in items(values.get("rootSnapshot")))


def _refs(value: Any) -> tuple[str, ...]:
    return tuple([ref for each in items(value) if (ref := text(each))])


def _hardware_version(written: str | None) -> int | None:
    """21 of "vmx-21"."""
    return whole((written or "").removeprefix("vmx-"))


def _hexadecimal(written: str | None) -> int:
    """A device id written as hexadecimal digits, with or without 0x; 0 when it is neither."""
    try:
        return int(written or "0", 16) & 0xFFFF
    except ValueError:
        return 0
