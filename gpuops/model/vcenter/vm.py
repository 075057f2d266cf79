"""Virtual machines and the GPU devices they carry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import Final, Literal, assert_never

from gpuops.errors import UsageError
from gpuops.model.desktops.broker import Gate
from gpuops.model.desktops.evidence import SessionCount, Source, VgpuUse
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.model.measurements.measurement import CounterWindow
from gpuops.model.stored import stored_as

_PIN: Final = re.compile(r"pciPassthru(\d+)\.cfg\.gpu-pci-id")


class VmDrs(StrEnum):
    """What DRS does with a VM (vSphere API reference, ClusterDrsVmConfigInfo and DrsBehavior)."""

    CLUSTER = "cluster"
    """It has no override: what the cluster says."""
    MANUAL = "manual"
    PARTIAL = "partiallyAutomated"
    FULL = "fullyAutomated"
    OFF = "off"
    """An override by which DRS leaves it alone."""

    @property
    def moves_nothing(self) -> bool:
        """Return whether DRS moves the VM only with an admin's consent."""
        return self in (VmDrs.MANUAL, VmDrs.OFF)


class PowerState(StrEnum):
    ON = "poweredOn"
    OFF = "poweredOff"
    SUSPENDED = "suspended"


class Awaited(StrEnum):
    """For whom a plan keeps what a VM that does not run will hold: the plan shows it as running."""

    RETURN = "suspended VMs that come back"
    REQUEST = "earlier requests"


class Firmware(StrEnum):
    BIOS = "bios"
    EFI = "efi"


@stored_as("VgpuDevice")
@dataclass(frozen=True, slots=True)
class VgpuDevice:
    """An NVIDIA vGPU of a VM (VirtualPCIPassthroughVmiopBackingInfo). `key` is the device key in vCenter."""

    key: int
    profile: str
    numa_node: int | None = None
    group: int | None = None
    kind: Literal["vgpu"] = "vgpu"


@stored_as("DirectPathDevice")
@dataclass(frozen=True, slots=True)
class DirectPathDevice:
    """A DirectPath I/O device of a VM: one given PCI device of one given host."""

    key: int
    address: PciAddress
    vendor_id: int
    device_id: int
    system_id: str
    group: int | None = None
    kind: Literal["directpath"] = "directpath"


@stored_as("DynamicDevice")
@dataclass(frozen=True, slots=True)
class DynamicDevice:
    """A Dynamic DirectPath I/O device of a VM: any device of the allowed types, with the label if one is set."""

    key: int
    allowed: tuple[tuple[int, int], ...]
    """(vendor id, device id) pairs."""
    label: str | None = None
    assigned: PciAddress | None = None
    group: int | None = None
    kind: Literal["dynamic"] = "dynamic"


@stored_as("OtherPassthrough")
@dataclass(frozen=True, slots=True)
class OtherPassthrough:
    """Any other passthrough device (SR-IOV NIC, DVX, a backing unknown to us): seen, counted, never touched."""

    key: int
    label: str
    unreadable: bool = False
    """Whether vCenter's answer does not show what it is: it may be a GPU."""
    kind: Literal["other"] = "other"


NicKind = Literal["vmxnet3vrdma", "sriov"]


@stored_as("VmNic")
@dataclass(frozen=True, slots=True)
class VmNic:
    """A network card for RDMA of a VM; an SR-IOV card is among its devices too. Other cards are not read."""

    key: int
    kind: NicKind
    """`vmxnet3vrdma`: paravirtual RDMA; `sriov`: a virtual function of its host's network card."""
    network: str | None = None
    """The key of its distributed port group (`DistributedPortGroup.key`), or the id of its network, or the name of one
    whose id vCenter does not tell; None = on none."""
    mac: str | None = None


@dataclass(frozen=True, slots=True)
class Guest:
    """Facts about the guest system of a VM, by VMware Tools; None = unknown."""

    tools_running: bool | None
    address: str | None


@stored_as("ManagedBy")
@dataclass(frozen=True, slots=True)
class ManagedBy:
    """The vCenter extension that a VM belongs to (vSphere API, VirtualMachineConfigInfo.managedBy)."""

    extension: str
    """Its key, such as `com.vmware.vcenter.wcp`."""
    kind: str = ""
    """What the extension calls the VM."""


GpuDevice = VgpuDevice | DirectPathDevice | DynamicDevice | OtherPassthrough


def is_gpu(device: GpuDevice) -> bool:
    """Return whether the device is an NVIDIA GPU or a part of one; a NIC or an FPGA in passthrough is not."""
    match device:
        case VgpuDevice():
            return True
        case DirectPathDevice(vendor_id=vendor_id):
            return vendor_id == NVIDIA_VENDOR_ID
        case DynamicDevice(allowed=allowed):
            return any(vendor_id == NVIDIA_VENDOR_ID for vendor_id, _ in allowed)
        case OtherPassthrough():
            return False
        case _:
            assert_never(device)


def is_unreadable(device: GpuDevice) -> bool:
    """Return whether vCenter's answer does not show what the device is."""
    return isinstance(device, OtherPassthrough) and device.unreadable


def is_other_device(device: GpuDevice) -> bool:
    """Return whether the device is a complete device that is known not to be an NVIDIA GPU."""
    match device:
        case DirectPathDevice(vendor_id=vendor_id):
            return vendor_id not in (0, NVIDIA_VENDOR_ID)
        case DynamicDevice(allowed=allowed):
            return bool(allowed) and not is_gpu(device)
        case _:
            return False


@stored_as("RunningTask")
@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task now queued or running on a VM (VirtualMachine.recentTask)."""

    ref: str
    name: str
    state: str


@stored_as("Vm")
@dataclass(frozen=True, slots=True)
class Vm:
    """One virtual machine. Fields below `detail` are read only for VMs on GPU hosts; None = unknown."""

    ref: str
    name: str
    path: str = ""
    """Inventory path, e.g. `/lab-dc/vm/ml/ml-07`."""
    instance_uuid: str | None = None
    host: str | None = None
    power: PowerState | None = None
    suspended_at: datetime | None = None
    """When it was last suspended, whether or not it runs again since (VirtualMachineRuntimeInfo.suspendTime)."""
    started_at: datetime | None = None
    """When it was last powered on from off; a resume is no start (VirtualMachineRuntimeInfo.bootTime)."""
    created_at: datetime | None = None
    """When it was made, a clone when it was cloned (VirtualMachineConfigInfo.createDate); None = not read, or not
    known to vCenter."""
    connected: bool | None = None
    template: bool | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    cpu_usage_mhz: int | None = None
    console_connections: int | None = None
    question: str | None = None
    tasks: tuple[RunningTask, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Custom attributes, name -> value."""
    tags: tuple[str, ...] | None = None
    """`category:tag` names; None = not asked for."""
    counters: Mapping[str, CounterWindow] | None = None
    """Performance counters by name, as far as there are samples; None = not asked for."""
    sessions: Mapping[Source, SessionCount] | None = None
    """Its sessions by the sources other than vCenter; None = no source was read."""
    vgpu_use: VgpuUse | None = None
    """The use of its vGPUs by its host's nvidia-smi; None = not read."""
    gate: Gate | None = None
    """The connection broker's gate before it; None = not read."""
    datastores: tuple[str, ...] = ()
    """Managed object ids of the datastores that hold its files."""
    folders: tuple[str, ...] = ()
    """The names in the path of its folder, with the datacenter's, if one contains a slash; empty otherwise."""
    vapp: str | None = None
    """Name of the vApp it is a member of; None = not in a vApp."""
    snapshots: int | None = None
    managed_by: ManagedBy | None = None
    """The product that manages it; None = no product does, or `unreadable` names the path."""
    # detail
    devices: tuple[GpuDevice, ...] | None = None
    nics: tuple[VmNic, ...] | None = None
    extra_config: Mapping[str, str] | None = None
    change_version: str | None = None
    firmware: Firmware | None = None
    hardware_version: int | None = None
    cores_per_socket: int | None = None
    cores_per_numa_node: int | None = None
    """vCPUs of each virtual NUMA node as somebody has set it; 0 = left to ESXi."""
    memory_reservation_mib: int | None = None
    cpu_reservation_mhz: int | None = None
    memory_locked: bool | None = None
    cpu_hot_add: bool | None = None
    nested_virtualization: bool | None = None
    """Whether its guest may run VMs of its own (VirtualMachineConfigInfo.nestedHVEnabled)."""
    tools_running: bool | None = None
    unreadable: tuple[str, ...] = ()
    """Property paths this login could not read: their fields are unknown, whatever they show."""
    awaited: Awaited | None = None
    """Why a plan shows it as running although it does not; None = the state is that of vCenter."""

    def is_called(self, text: str) -> bool:
        """Return whether a name, an inventory path or its end, `moid:vm-42` or `uuid:...` means this VM."""
        scheme, _, uuid = text.partition(":")
        if scheme == "uuid":
            return self.instance_uuid == uuid.lower()
        if text in (self.name, f"moid:{self.ref}"):
            return True
        return "/" in text and (self.path == text or self.path.endswith("/" + text.lstrip("/")))

    @property
    def folder(self) -> str:
        """Return the inventory path of its folder, e.g. `/lab-dc/vm/ml`."""
        name_part = f"/{self.name}"  # the name may contain slashes
        return self.path.removesuffix(name_part) if self.path.endswith(name_part) else self.path.rpartition("/")[0]

    @property
    def may_run(self) -> bool:
        """Return whether it is not known to be off or suspended.

        A VM that is off or suspended holds no slot, though a host may list it for some time.
        """
        return self.power not in (PowerState.OFF, PowerState.SUSPENDED)

    @property
    def most_reserved_mib(self) -> int | None:
        """Return the most memory that it can reserve if it runs; None = not even its size can be read."""
        return self.memory_mib if self.memory_reservation_mib is None else self.memory_reservation_mib

    @property
    def vgpus(self) -> tuple[VgpuDevice, ...]:
        return tuple(device for device in self.devices or () if isinstance(device, VgpuDevice))

    @property
    def profiles(self) -> tuple[str, ...]:
        """Return the profile of each vGPU, in device order."""
        # a list comprehension is faster here than a generator, and a plan calls this thousands of times
        return tuple([device.profile for device in self.devices or () if isinstance(device, VgpuDevice)])

    @property
    def has_passthrough(self) -> bool | None:
        """Return whether a device forbids suspend and vMotion (any passthrough device but a vGPU); None = unknown."""
        if self.devices is None:
            return None
        return any(not isinstance(device, VgpuDevice) for device in self.devices)


def pin_key(ordinal: int) -> str:
    """Return the extraConfig key that binds the vGPU `pciPassthruN` with N = `ordinal` to a physical GPU.

    (assumption: vgpu-pin)
    """
    return f"pciPassthru{ordinal}.cfg.gpu-pci-id"


def is_pin(key: str) -> bool:
    """Return whether an extraConfig key binds a vGPU to a physical GPU."""
    return _PIN.fullmatch(key) is not None


def pins_of(vm: Vm) -> dict[int, PciAddress]:
    """Return the GPUs that the VM's vGPUs are bound to, by N of `pciPassthruN` (see `passthru_number`).

    A value that is not a PCI address binds nothing.
    """
    pins = {}
    for key, address_text in (vm.extra_config or {}).items():
        match = _PIN.fullmatch(key)
        if match is None or not address_text:
            continue
        try:
            pins[int(match[1])] = PciAddress.parse(address_text)
        except UsageError:
            continue
    return pins


FIRST_DEVICE_KEY: Final = 13000
"""The key of a VM's first vGPU or DirectPath device.

Recorded on vCenter 8.0.3 (build 25197330) and ESXi 8.0.3 with hardware version 21 (govmomi's research note "NIC unit
numbers", experiment E14): DirectPath devices have the keys 13000, 13001, ..., SR-IOV network cards 13031, 13030, ...;
a device keeps its key when another one is removed, and the next device gets the key that became free. That vGPUs are
numbered like DirectPath devices is inferred. (assumption: passthrough-device-keys, assumption: vgpu-device-keys)
"""


def passthru_number(key: int) -> int:
    """Return N of `pciPassthruN`, the VMX name of the device with this key: key - 13000 (see `FIRST_DEVICE_KEY`).

    N is not the position of the device: the only vGPU of a VM is `pciPassthru0`, whether the VM's SR-IOV network card
    (`pciPassthru31`) is listed before it or not.
    """
    return key - FIRST_DEVICE_KEY


def next_device_keys(used_keys: Iterable[int]) -> Iterator[int]:
    """Yield the keys that vCenter gives to the next vGPUs and DirectPath devices of a VM that has the keys `used_keys`.

    They count upwards from 13000, and gaps are filled first: after 13000 and 13002 come 13001, 13003, ...
    """
    existing_keys = set(used_keys)
    return (key for key in count(FIRST_DEVICE_KEY) if key not in existing_keys)
