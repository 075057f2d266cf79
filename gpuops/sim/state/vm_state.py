"""The state of a simulated virtual machine: plain values, from which every property is rendered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain, count
from typing import Final

from gpuops.sim.state.desktop_people import Office
from gpuops.sim.state.gpu_admission import RunningVgpu
from gpuops.sim.state.hardware import NO_HARDWARE, Hardware, NetworkCard

FIRST_PCI_KEY: Final = 13000
"""Keys of vGPUs and DirectPath devices count upwards from here (recorded, with `pci_slot`, on vCenter 8.0.3 build
25197330 and ESXi 8.0.3: govmomi's research note "NIC unit numbers", experiment E14; of vGPUs inferred).
(assumption: passthrough-device-keys)"""
FIRST_SRIOV_KEY: Final = 13031
"""Keys of SR-IOV network cards count downwards from here (same record)."""
FIRST_UNIT: Final = 18
FIRST_SRIOV_UNIT: Final = 65
"""Unit numbers on the PCI controller of the devices with the first keys; they count in step with the keys."""
PVRDMA: Final = "VirtualVmxnet3Vrdma"
SRIOV: Final = "VirtualSriovEthernetCard"
"""Kinds of network cards: paravirtual RDMA, and a virtual function of a host's network card."""


class Slowdown(StrEnum):
    """What can slow a VM down, by the names that `gpuops diagnose` uses for the component at fault."""

    NOISY_NEIGHBOUR = "noisy-neighbour"
    SCHEDULER = "scheduler"
    FRAME_BUFFER = "frame-buffer"
    REMOTE_NUMA = "remote-numa"
    CPU_READY = "cpu-ready"
    MEMORY_RECLAIMED = "memory-reclaimed"
    DATASTORE = "datastore"
    NETWORK = "network"
    DRIVER = "driver"


class Power(StrEnum):
    """VirtualMachine.PowerState."""

    ON = "poweredOn"
    OFF = "poweredOff"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class VgpuBacking:
    """VirtualPCIPassthroughVmiopBackingInfo."""

    type_name: str


@dataclass(frozen=True, slots=True)
class StaticBacking:
    """VirtualPCIPassthroughDeviceBackingInfo, as the client wrote it: the device id is hexadecimal text."""

    pci_id: str
    device_id: str
    system_id: str
    vendor_id: int
    device_name: str = ""


@dataclass(frozen=True, slots=True)
class DynamicBacking:
    """VirtualPCIPassthroughDynamicBackingInfo."""

    allowed: tuple[tuple[int, int], ...]
    label: str | None = None


@dataclass(frozen=True, slots=True)
class DvxBacking:
    """VirtualPCIPassthroughDvxBackingInfo."""

    device_class: str
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SriovBacking:
    """VirtualSriovEthernetCardSriovBackingInfo, of a card that vCenter finds a virtual function for at power-on."""

    physical_function: str
    """PCI address of the port of the host's network card, or `automatic...`."""
    card: NetworkCard
    """The network card that the VM sees."""


Backing = VgpuBacking | StaticBacking | DynamicBacking | DvxBacking | SriovBacking


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device of a VM that is passed through: a VirtualPCIPassthrough, or an SR-IOV network card."""

    key: int
    unit: int
    backing: Backing
    numa_node: int | None = None
    group: tuple[int, int] | None = None
    """(group instance key, sequence id) of a vendor device group."""

    @property
    def vmx_name(self) -> str:
        """`pciPassthruN` with N = key - 13000, for devices of every kind (same record as the keys)."""
        return f"pciPassthru{self.key - FIRST_PCI_KEY}"


def pci_slot(used_keys: Iterable[int], *, sriov: bool) -> tuple[int, int]:
    """Return the key and the unit number of the next passthrough device of a VM that has `used_keys`.

    It gets the lowest free key from 13000 upwards, an SR-IOV network card the highest free one from 13031 downwards, so
    the gap of a removed device goes to the next one. Not recorded: where cards go when 13000 to 13031 are taken.
    """
    existing_keys = set(used_keys)
    # SR-IOV cards get 13031, 13030, ..., 13000, and then 13032, 13033, ...
    downwards = chain(range(FIRST_SRIOV_KEY, FIRST_PCI_KEY - 1, -1), count(FIRST_SRIOV_KEY + 1))
    key = next(key for key in (downwards if sriov else count(FIRST_PCI_KEY)) if key not in existing_keys)
    return key, (FIRST_SRIOV_UNIT - FIRST_SRIOV_KEY if sriov else FIRST_UNIT - FIRST_PCI_KEY) + key


@dataclass(frozen=True, slots=True)
class GuestAccount:
    """A user of a guest."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GuestUser:
    """A user with a session in a guest, until the guest is started again."""

    name: str
    since: datetime
    boot_time: datetime | None


@dataclass(frozen=True, slots=True)
class PastUse:
    """The use of a desktop before the world began: as in such an office, until this moment."""

    office: Office
    until: datetime


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """A declared program at a path in a guest: how long it runs, and how it ends."""

    path: str
    takes_s: float | None = 0.0
    """None = it never ends by itself."""
    exit_code: int = 0
    prints: str | None = None
    """What it writes to the file behind the last `>` of its arguments; `@EPOCH@` is the guest's time."""
    removes: bool = False
    """Whether it removes the file that its arguments end with."""


@dataclass(frozen=True, slots=True)
class Template:
    """The values that all VMs of one declaration share; thousands of VMs refer to one object."""

    guest_id: str
    guest_name: str
    datastore: str
    linux: bool
    tools: bool = True
    boot_s: float | None = 0.0
    """From the power-on until VMware Tools run in it; None = they never do."""
    login: GuestAccount | None = None
    """The user of guest operations; None = the guest refuses them."""
    programs: tuple[GuestProgram, ...] = ()
    clock_ahead_s: float = 0.0
    """How far its clock is ahead of vCenter's."""
    real_processes: bool = False
    """Whether programs that are started in it are processes of this machine, and its files files of this machine."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """One snapshot; `moid` is that of its VirtualMachineSnapshot object."""

    moid: str
    id: int
    name: str
    description: str
    created_at: datetime
    power: Power
    memory: bool
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question vCenter waits for an answer to (VirtualMachineRuntimeInfo.question)."""

    id: str
    text: str
    choices: tuple[tuple[str, str], ...]
    default: int = 0


@dataclass(frozen=True, slots=True)
class BootOptions:
    """VirtualMachineBootOptions; `order` has pairs of a kind of device and, for one device, its key."""

    delay_ms: int = 0
    enter_setup: bool = False
    secure: bool = False
    retry: bool = False
    retry_delay_ms: int = 10_000
    order: tuple[tuple[str, int | None], ...] = ()
    network_protocol: str | None = None


DEFAULT_BOOT: Final = BootOptions()


@dataclass(slots=True)
class VmState:
    """One virtual machine. References to other objects are managed object ids."""

    name: str
    uuid: str
    instance_uuid: str
    template: Template
    host: str
    pool: str | None
    folder: str
    datastore: str
    cpus: int
    memory_mib: int
    created_at: datetime
    cores_per_socket: int = 1
    hardware_version: int = 20
    firmware: str = "efi"
    power: Power = Power.OFF
    is_template: bool = False
    annotation: str = ""
    managed_by: tuple[str, str] | None = None
    """(extension key, type) of the product that it belongs to."""
    guest_id: str = ""
    cpu_reservation_mhz: int = 0
    memory_reservation_mib: int = 0
    memory_locked: bool = False
    cpu_hot_add: bool = False
    nested_virtualization: bool = False
    memory_hot_add: bool = False
    cores_per_numa_node: int | None = None
    vnuma_on_hot_add: bool = False
    passthrough_hot_plug: bool = False
    latency: str = "normal"
    boot: BootOptions = DEFAULT_BOOT
    settings: tuple[tuple[str, bool | str], ...] = ()
    """Sorted (path, value) pairs of settings that are only stored and read back, and differ from those of a new VM."""
    files: str = ""
    """The name of its files and their folder, if that is not the VM's name: after a rename, or a new registration."""
    hardware: Hardware = NO_HARDWARE
    devices: tuple[PciDevice, ...] = ()
    groups: tuple[tuple[int, str], ...] = ()
    """(group instance key, vendor device group name)."""
    extra_config: tuple[tuple[str, str], ...] = ()
    """Sorted pairs: VMs built alike share one tuple."""
    attributes: dict[int, str] = field(default_factory=dict)
    """Custom field key -> value."""
    change: int = 1
    """Number of changes of the configuration; part of changeVersion."""
    changed_at: datetime | None = None
    boot_time: datetime | None = None
    guest_boots: bool = False
    """Whether its guest is still booting: VMware Tools do not run yet."""
    suspend_time: datetime | None = None
    suspend_file_mib: int = 0
    clean_power_off: bool = True
    console_connections: int = 0
    cpu_usage_mhz: int = 0
    """The CPU use of its guest while it runs."""
    guest_users: tuple[GuestUser, ...] = ()
    """The users with a session in its guest."""
    past: PastUse | None = None
    """How it was used before the world began; None = as now."""
    guest_memory_mib: int = 0
    slowed_by: Slowdown | None = None
    """The component that slows it down, which its counters show; None = nothing does."""
    seats: tuple[RunningVgpu, ...] = ()
    """Its running vGPUs, in device order."""
    held: tuple[tuple[int, str], ...] = ()
    """(device key, PCI id) of each DirectPath device it holds now."""
    question: Question | None = None
    snapshots: tuple[SnapshotState, ...] = ()
    current_snapshot: str | None = None

    @property
    def vgpus(self) -> tuple[VgpuBacking, ...]:
        return tuple(device.backing for device in self.devices if isinstance(device.backing, VgpuBacking))

    @property
    def network_cards(self) -> tuple[NetworkCard, ...]:
        """All network cards; those of SR-IOV come last."""
        cards = (device.backing.card for device in self.devices if isinstance(device.backing, SriovBacking))
        return (*self.hardware.cards, *cards)

    def set_network_cards(self, cards: Iterable[NetworkCard]) -> None:
        """Replace each network card by the card of `cards` with the same key."""
        by_key = {card.key: card for card in cards}
        self.hardware = replace(self.hardware, cards=tuple(by_key[card.key] for card in self.hardware.cards))
        self.devices = tuple(
            replace(device, backing=replace(device.backing, card=by_key[device.key]))
            if isinstance(device.backing, SriovBacking)
            else device
            for device in self.devices
        )

    @property
    def has_fixed_devices(self) -> bool:
        """Whether a device forbids suspend, snapshots of memory and vMotion: any passthrough device but a vGPU.

        Of SR-IOV network cards: VMware vSphere 8.0 docs, "SR-IOV Support".
        """
        return any(not isinstance(device.backing, VgpuBacking) for device in self.devices)

    @property
    def tools_run(self) -> bool:
        """Whether VMware Tools run in its guest now."""
        return self.power is Power.ON and self.template.tools and not self.guest_boots

    @property
    def home(self) -> str:
        """The path of its files without their suffixes: `[store] ml-07/ml-07`."""
        name = self.files or self.name
        return f"[{self.template.datastore}] {name}/{name}"

    def rename(self, name: str) -> None:
        """Give it another name; its files keep theirs (VMware KB 1029513)."""
        if name != self.name:
            self.files = self.files or self.name
            self.name = name

    @property
    def reserved_mib(self) -> int:
        """The memory reservation in force."""
        return self.memory_mib if self.memory_locked else self.memory_reservation_mib

    @property
    def change_version(self) -> str:
        """VirtualMachineConfigInfo.changeVersion: opaque to clients, new with every change."""
        stamp = (self.changed_at or self.created_at).isoformat(timespec="seconds")
        return f"{stamp[:19]}.{self.change:06d}Z"

    def option(self, key: str) -> str | None:
        """An extraConfig value; keys are compared without case, as ESXi does."""
        lower_key = key.lower()
        return next((value for name, value in self.extra_config if name.lower() == lower_key), None)

    def free_pci_slot(self, *, sriov: bool = False, without: Iterable[int] = ()) -> tuple[int, int]:
        """Return (key, unit number) for the next passthrough device; `without` are keys that it must not get."""
        return pci_slot((*without, *(device.key for device in self.devices)), sriov=sriov)

    def without_device(self, key: int) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices if device.key != key)

    def with_device(self, changed: PciDevice) -> tuple[PciDevice, ...]:
        """Return the devices with `changed` in place of the device with its key."""
        return tuple(changed if device.key == changed.key else device for device in self.devices)


def merged_options(current: tuple[tuple[str, str], ...], changes: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """extraConfig after a reconfigure: a new value replaces, an empty one removes the key (vSphere API, ConfigSpec)."""
    names = {name.lower(): name for name, _ in current}
    merged = dict(current)
    for key, value in changes.items():
        name = names.get(key.lower(), key)
        if value == "":
            merged.pop(name, None)
        else:
            merged[name] = value
    return tuple(sorted(merged.items()))
