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
from gpuops.vsphere.reading.bulk.pages import (
    ReadObject,
    child,
    children,
    flag,
    items,
    kind,
    leaf_owner,
    leaf_text,
    leaves,
    leaves_by_name,
    number,
    parts_of,
    text,
    whole,
    word,
)
from gpuops.vsphere.transport.messages import moment, pci_address, unsigned_short

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
_DEVICE_KEY: Final = re.compile(r"pcipassthru\d+\.cfg\..+", re.IGNORECASE)

_BACKING: Final = "VirtualPCIPassthrough{}BackingInfo"
_VGPU: Final = _BACKING.format("Vmiop")
_STATIC: Final = _BACKING.format("Device")
_DYNAMIC: Final = _BACKING.format("Dynamic")
_DVX: Final = _BACKING.format("Dvx")
_NICS: Final[Mapping[str, NicKind]] = {"VirtualVmxnet3Vrdma": "vmxnet3vrdma", "VirtualSriovEthernetCard": "sriov"}
"""The types of VirtualEthernetCard (vSphere API) that are read. Each desktop of a fleet has a card of another type,
which nothing needs."""
_PASSTHROUGH_DEVICES: Final = frozenset({"VirtualPCIPassthrough", "VirtualSriovEthernetCard"})


@dataclass(frozen=True, slots=True)
class ThinVm:
    """A VM of the thin read, with the ids of the folder, custom fields and tasks that the same read returns.

    It becomes a `Vm` once, when all properties are known: a VM has 39, and a copy with some of them replaced takes
    twice the time of making it. Two copies of each VM took a seventh of the time of `gpuops inventory` of a fleet.
    """

    ref: str
    host: str | None
    make_vm: partial[Vm]
    """Makes the VM from the missing properties: path, custom attributes, vApp and tasks."""
    parent: str | None
    """Its folder, or the vApp it is a member of."""
    attribute_values: tuple[tuple[int, str], ...]
    """(custom field key, value)."""
    recent_tasks: tuple[str, ...]

    @property
    def vm(self) -> Vm:
        """Return the VM without path and attributes, with the id of its vApp."""
        return self.make_vm()


def thin_vm(read_object: ReadObject) -> ThinVm:
    """Return the VM as the first read has it: without devices and path, attributes by key, the vApp by id."""
    properties = read_object.properties
    connection = text(properties.get("runtime.connectionState"))
    host = text(properties.get("runtime.host"))
    return ThinVm(
        read_object.ref,
        host,
        partial(
            Vm,
            ref=read_object.ref,
            name=read_object.name,
            instance_uuid=text(properties.get("config.instanceUuid")),
            host=host,
            power=word(PowerState, properties.get("runtime.powerState")),
            suspended_at=moment(text(properties.get("runtime.suspendTime"))),
            started_at=moment(text(properties.get("runtime.bootTime"))),
            connected=None if connection is None else connection == "connected",
            template=flag(properties.get("config.template")),
            vcpus=number(properties.get("summary.config.numCpu")),
            memory_mib=number(properties.get("summary.config.memorySizeMB")),
            cpu_usage_mhz=number(properties.get("summary.quickStats.overallCpuUsage")),
            console_connections=number(properties.get("runtime.numMksConnections")),
            question=text(properties.get("runtime.question"), "text"),
            datastores=_refs(properties.get("datastore")),
            vapp=text(properties.get("parentVApp")),
            snapshots=_snapshots(properties, read_object.unreadable),
            managed_by=_managed_by(properties.get("config.managedBy")),
            unreadable=read_object.unreadable,
        ),
        # vCenter may leave out the folder of a VM in a vApp (vSphere API, ManagedEntity.parent)
        parent=text(properties.get("parentVApp")) or text(properties.get("parent")),
        attribute_values=_attribute_values(properties.get("customValue")),
        recent_tasks=_refs(properties.get("recentTask")),
    )


def running_task(read_object: ReadObject) -> RunningTask | None:
    """Return the task, or None if it has ended."""
    state = text(read_object.properties.get("info.state"))
    if state not in ("queued", "running"):
        return None
    return RunningTask(read_object.ref, text(read_object.properties.get("info.name")) or "task", state)


def with_detail(thin: ThinVm, read_object: ReadObject) -> ThinVm:
    """Return the VM with its devices, its extraConfig and the other properties that a change of the VM needs."""
    properties = read_object.properties
    tools = text(properties.get("guest.toolsRunningStatus"))
    devices, nics = _devices(properties.get("config.hardware.device"))
    make_vm = partial(
        thin.make_vm,
        devices=devices,
        nics=nics,
        extra_config=_extra_config(properties.get("config.extraConfig")),
        change_version=text(properties.get("config.changeVersion")),
        firmware=word(Firmware, properties.get("config.firmware")),
        hardware_version=whole((text(properties.get("config.version")) or "").removeprefix("vmx-")),
        cores_per_socket=number(properties.get("config.hardware.numCoresPerSocket")),
        cores_per_numa_node=_cores_per_numa_node(properties),
        memory_reservation_mib=number(properties.get("config.memoryAllocation.reservation")),
        cpu_reservation_mhz=number(properties.get("config.cpuAllocation.reservation")),
        memory_locked=flag(properties.get("config.memoryReservationLockedToMax")),
        cpu_hot_add=flag(properties.get("config.cpuHotAddEnabled")),
        nested_virtualization=flag(properties.get("config.nestedHVEnabled")),
        tools_running=None if tools is None else tools == "guestToolsRunning",
        unreadable=tuple(dict.fromkeys((*thin.make_vm.keywords["unreadable"], *read_object.unreadable))),
    )
    return ThinVm(thin.ref, thin.host, make_vm, thin.parent, thin.attribute_values, thin.recent_tasks)


def _cores_per_numa_node(properties: Mapping[str, Any]) -> int | None:
    """Return the configured number, or 0 if it is automatic: vCenter then lists the number that ESXi selected, which
    is not a setting (vSphere API, VirtualMachineVirtualNumaInfo)."""
    if flag(properties.get("config.numaInfo.autoCoresPerNumaNode")):
        return 0
    return number(properties.get("config.numaInfo.coresPerNumaNode"))


def _devices(device_list: Any) -> tuple[tuple[GpuDevice, ...] | None, tuple[VmNic, ...] | None]:
    """Return passthrough devices, in the order of their keys, and RDMA network cards.

    Both are None if the list is missing, that is, not readable: every VM has some device.
    """
    if device_list is None:
        return None, None
    devices, nics = list[GpuDevice](), list[VmNic]()
    for device_node in items(device_list):
        name = kind(device_node)
        if name in _PASSTHROUGH_DEVICES:
            devices.append(_device(device_node))
        if name in _NICS:
            nics.append(_nic(device_node, _NICS[name]))
    devices.sort(key=lambda device: device.key)
    return tuple(devices), tuple(nics)


def _nic(node: Any, nic_kind: NicKind) -> VmNic:
    """Return the network card, with the key of its distributed port group or the name of its standard network."""
    # four fields of twenty: single reads are cheaper here than one of all fields
    backing = child(node, "backing")
    port = child(backing, "port")
    if port is not None:
        network = text(port, "portgroupKey")
    else:
        network = text(backing, "network") or text(backing, "deviceName")
    return VmNic(number(node, "key") or 0, nic_kind, network, text(node, "macAddress"))


def _device(node: Any) -> GpuDevice:
    """Return the passthrough device: a vGPU, a fixed or assigned GPU, or another one that gpuops does not attach.

    A vGPU without a profile, or a fixed device without an address, is an unreadable `OtherPassthrough`.
    """
    parts = parts_of(node)
    key = number(parts.get("key")) or 0
    group = number(parts.get("deviceGroupInfo"), "groupInstanceKey")
    backing = parts.get("backing")
    match kind(backing) if backing is not None else "":
        case name if name == _VGPU and (profile := text(backing, "vgpu")) is not None:
            node_number = number(parts.get("numaNode"))  # negative: not set (vSphere API, VirtualDevice.numaNode)
            numa_node = node_number if node_number is not None and node_number >= 0 else None
            return VgpuDevice(key, profile, numa_node=numa_node, group=group)
        case name if name == _STATIC and (address := pci_address(text(backing, "id"))) is not None:
            return DirectPathDevice(
                key,
                address,
                vendor_id=unsigned_short(number(backing, "vendorId")),
                device_id=_hexadecimal(text(backing, "deviceId")),
                system_id=text(backing, "systemId") or "",
                group=group,
            )
        case name if name == _DYNAMIC:
            allowed = tuple(
                (unsigned_short(number(allowed_device, "vendorId")), unsigned_short(number(allowed_device, "deviceId")))
                for allowed_device in children(backing, "allowedDevice")
            )
            assigned = pci_address(text(backing, "assignedId"))
            return DynamicDevice(key, allowed, label=text(backing, "customLabel"), assigned=assigned, group=group)
        case name:
            label = text(parts.get("deviceInfo"), "label") or kind(node)
            is_known = name == _DVX or kind(node) == "VirtualSriovEthernetCard"
            return OtherPassthrough(key, label, unreadable=not is_known)


def _extra_config(option_list: Any) -> Mapping[str, str] | None:
    if option_list is None:
        return None
    options = ((_normalize_key(key), node) for key, node in leaves_by_name(option_list, "key"))
    return {key: text(leaf_owner(node), "value") or "" for key, node in options if key is not None}


@lru_cache(maxsize=4096)
def _normalize_key(key: str | None) -> str | None:
    """Return this key of extraConfig in the spelling that plans look for; None = it is not decoded.

    Cached, because every VM has the same twenty keys.
    """
    lower_key = (key or "").lower()
    if not lower_key.startswith(_KEPT_KEYS) and "stun" not in lower_key:  # see `own_stun_settings`
        return None
    if _DEVICE_KEY.fullmatch(lower_key):  # pciPassthru0.cfg.gpu-pci-id
        return "pciPassthru" + lower_key.removeprefix("pcipassthru")
    return SPELLINGS.get(lower_key, key)


def _attribute_values(field_list: Any) -> tuple[tuple[int, str], ...]:
    fields = map(leaves, items(field_list))
    return tuple(
        (key, leaf_text(field.get("value")) or "") for field in fields if (key := whole(field.get("key"))) is not None
    )


def _managed_by(managed_by: Any) -> ManagedBy | None:
    """Return the product that manages the VM. A product that no longer does leaves an empty key (vSphere API,
    ManagedByInfo)."""
    if managed_by is None:
        return None
    fields = leaves(managed_by)
    extension = leaf_text(fields.get("extensionKey"))
    return None if extension is None else ManagedBy(extension, leaf_text(fields.get("type")) or "")


def _snapshots(properties: Mapping[str, Any], unreadable: tuple[str, ...]) -> int | None:
    """Return the number of snapshot trees; vCenter leaves the list out if it is empty."""
    if "rootSnapshot" in unreadable:
        return None
    return sum(1 for _ in items(properties.get("rootSnapshot")))


def _refs(reference_list: Any) -> tuple[str, ...]:
    return tuple([ref for reference in items(reference_list) if (ref := text(reference))])


def _hexadecimal(digits: str | None) -> int:
    """Return a device id from hexadecimal digits, with or without 0x; 0 for other text."""
    try:
        return int(digits or "0", 16) & 0xFFFF
    except ValueError:
        return 0
