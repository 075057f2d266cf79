"""Operations that reconfigure a virtual machine: its settings, and each kind of its devices."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim

from tests.peers.vcsim_table.operation import Operation, Step
from tests.peers.vcsim_table.site import Site

D = vim.vm.device
METHOD: Final = "VirtualMachine.ReconfigVM_Task"


def setting(case: str, read: Step, state: str = "poweredOff", **fields: Any) -> Operation:
    """A reconfiguration of plain fields of a VM in this state."""
    return Operation(METHOD, case, lambda s: s.vm(state).ReconfigVM_Task(vim.vm.ConfigSpec(**fields)), read)


def change(case: str, read: Step, *device_changes: Any, state: str = "poweredOff", last: bool = False) -> Operation:
    """A reconfiguration that does this to devices: each an operation and what makes the device of a site."""

    def do(site: Site) -> Any:
        vm = site.vm(state)
        changes = [device_change(operation, make(site)) for operation, make in device_changes]
        return vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=changes))

    return Operation(METHOD, case, do, read, last)


def device_change(operation: str, device: Any) -> Any:
    change: Any = D.VirtualDeviceSpec(operation=operation, device=device)
    if isinstance(device, D.VirtualDisk) and operation == "add":
        change.fileOperation = "create"
    return change


def devices(kind: Any) -> Step:
    """Reads how many devices of a kind the VM has."""
    return lambda s: len([device for device in s.kept.config.hardware.device if isinstance(device, kind)])


def has(site: Site, kind: Any) -> Any:
    """The first device of a kind that the VM has."""
    return next(device for device in site.kept.config.hardware.device if isinstance(device, kind))


def disk(key: int = -1, **fields: Any) -> Any:
    """Makes a new disk on the SCSI controller."""

    def make(site: Site) -> Any:
        controller = has(site, D.VirtualSCSIController)
        backing = D.VirtualDisk.FlatVer2BackingInfo(diskMode="persistent", thinProvisioned=True, fileName="")
        defaults = {"key": key, "controllerKey": controller.key, "unitNumber": 5, "capacityInKB": 1 << 20}
        return D.VirtualDisk(backing=backing, **{**defaults, **fields})

    return make


def card(kind: Any = D.VirtualVmxnet3, **backing: Any) -> Any:
    """Makes a new network card, on the network `VM Network` unless told otherwise."""
    named = {"deviceName": "VM Network", **backing}
    return lambda s: kind(key=-1, backing=D.VirtualEthernetCard.NetworkBackingInfo(**named), addressType="generated")


def annotation(site: Site) -> Any:
    return site.kept.config.annotation


def size(site: Site) -> Any:
    hardware = site.kept.config.hardware
    return [hardware.numCPU, hardware.numCoresPerSocket, hardware.memoryMB]


def reservation(site: Site) -> Any:
    return [site.kept.config.memoryAllocation.reservation, site.kept.config.cpuAllocation.reservation]


def option(site: Site) -> Any:
    return [option.value for option in site.kept.config.extraConfig if option.key == "guestinfo.row"]


def options(*values: str) -> list[Any]:
    return [vim.option.OptionValue(key="guestinfo.row", value=value) for value in values]


def sizes(site: Site) -> Any:
    """Of its disks, in GiB."""
    disks = [
        virtual_disk for virtual_disk in site.kept.config.hardware.device if isinstance(virtual_disk, D.VirtualDisk)
    ]
    return [disk.capacityInKB >> 20 for disk in disks]


def resize_disk(kib: int) -> Any:
    def make(site: Site) -> Any:
        virtual_disk = has(site, D.VirtualDisk)
        virtual_disk.capacityInKB, virtual_disk.capacityInBytes = kib, kib << 10
        return virtual_disk

    return make


def first(kind: Any) -> Any:
    return lambda s: has(s, kind)


def with_key(kind: Any, key: int) -> Any:
    return lambda s: kind(key=key)


def twice(site: Site) -> Any:
    vm = site.vm()
    site.ended(vm.ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=options("kept"))))
    return vm.ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=options("")))


ON: Final = "poweredOn"
SCSI = D.ParaVirtualSCSIController
OPERATIONS: Final = (
    setting("a note", annotation, annotation="seen"),
    setting("a note, while on", annotation, ON, annotation="seen"),
    setting("a note, suspended", annotation, "suspended", annotation="seen"),
    setting("nothing", size),
    setting("an old changeVersion", annotation, changeVersion="long ago", annotation="seen"),
    Operation(
        METHOD,
        "the current changeVersion",
        lambda s: (vm := s.vm()).ReconfigVM_Task(
            vim.vm.ConfigSpec(changeVersion=vm.config.changeVersion, annotation="seen")
        ),
        annotation,
    ),
    setting("a name", lambda s: s.kept.name, name="reconfigured"),
    setting("an empty name", lambda s: s.kept.name != "", name=""),
    setting("a name that is taken", lambda s: s.kept.name != "DC0_C0_RP0_VM0", name="DC0_C0_RP0_VM0"),
    setting("CPUs", size, numCPUs=4, memoryMB=2048),
    setting("CPUs, while on, without hot add", size, ON, numCPUs=4),
    setting("no CPU", size, numCPUs=0),
    setting("fewer CPUs than none", size, numCPUs=-1),
    setting("memory that is no multiple of 4 MB", size, memoryMB=1023),
    setting("less memory, while on", size, ON, memoryMB=512),
    setting("cores per socket that do not divide", size, numCPUs=4, numCoresPerSocket=3),
    setting("cores per socket", size, numCPUs=4, numCoresPerSocket=2),
    setting("a memory reservation", reservation, memoryAllocation=vim.ResourceAllocationInfo(reservation=512)),
    setting(
        "a memory reservation above its memory",
        reservation,
        memoryAllocation=vim.ResourceAllocationInfo(reservation=9999),
    ),
    setting("a negative reservation", reservation, cpuAllocation=vim.ResourceAllocationInfo(reservation=-2)),
    setting("an option", option, extraConfig=options("value")),
    setting("an option twice", option, extraConfig=options("first", "second")),
    Operation(METHOD, "an option emptied", twice, option),
    setting("another guest", lambda s: s.kept.config.guestId, guestId="ubuntu64Guest"),
    setting("an unknown guest", lambda s: s.kept.config.guestId, guestId="noSuchGuest"),
    setting("EFI firmware", lambda s: s.kept.config.firmware, firmware="efi"),
    setting("an unknown firmware", lambda s: s.kept.config.firmware, firmware="uboot"),
    setting(
        "latency sensitivity",
        lambda s: s.kept.config.latencySensitivity.level,
        latencySensitivity=vim.LatencySensitivity(level="high"),
    ),
    change("a disk added", devices(D.VirtualDisk), ("add", disk())),
    change("a disk added, while on", devices(D.VirtualDisk), ("add", disk()), state=ON),
    change("a disk added without a controller", devices(D.VirtualDisk), ("add", disk(controllerKey=4711))),
    change("a disk of no size", devices(D.VirtualDisk), ("add", disk(capacityInKB=0))),
    change("two disks in one place", devices(D.VirtualDisk), ("add", disk(-1)), ("add", disk(-2))),
    change("a disk made larger", sizes, ("edit", resize_disk(1 << 25))),
    change("a disk made smaller", sizes, ("edit", resize_disk(1 << 10))),
    change("a disk removed", devices(D.VirtualDisk), ("remove", first(D.VirtualDisk))),
    change("a disk removed that is not there", devices(D.VirtualDisk), ("remove", with_key(D.VirtualDisk, 4711))),
    change("a network card added", devices(D.VirtualEthernetCard), ("add", card())),
    change("an E1000E card added", devices(D.VirtualE1000e), ("add", card(D.VirtualE1000e))),
    change("a network card added, while on", devices(D.VirtualEthernetCard), ("add", card()), state=ON),
    change(
        "a network card of no network", devices(D.VirtualEthernetCard), ("add", card(deviceName="nowhere")), last=True
    ),
    change("a network card removed", devices(D.VirtualEthernetCard), ("remove", first(D.VirtualEthernetCard))),
    change(
        "a network card removed that is not there",
        devices(D.VirtualVmxnet3),
        ("remove", with_key(D.VirtualVmxnet3, 4711)),
    ),
    change(
        "a SCSI controller added", devices(SCSI), ("add", lambda s: SCSI(key=-1, busNumber=1, sharedBus="noSharing"))
    ),
    change(
        "a SATA controller added",
        devices(D.VirtualAHCIController),
        ("add", lambda s: D.VirtualAHCIController(key=-1, busNumber=0)),
    ),
    change(
        "an NVMe controller added",
        devices(D.VirtualNVMEController),
        ("add", lambda s: D.VirtualNVMEController(key=-1, busNumber=0)),
    ),
    change(
        "a controller removed that disks are on",
        devices(D.VirtualDisk),
        (
            "remove",
            lambda s: next(
                device for device in s.kept.config.hardware.device if device.key == has(s, D.VirtualDisk).controllerKey
            ),
        ),
    ),
    change(
        "a CD-ROM drive added",
        devices(D.VirtualCdrom),
        (
            "add",
            lambda s: D.VirtualCdrom(
                key=-1,
                controllerKey=200,
                unitNumber=1,
                backing=D.VirtualCdrom.RemotePassthroughBackingInfo(deviceName="", exclusive=False),
            ),
        ),
    ),
    change("a device edited that is not there", devices(D.VirtualDisk), ("edit", with_key(D.VirtualCdrom, 4711))),
    change(
        "a vGPU of a type that no host has",
        devices(D.VirtualPCIPassthrough),
        (
            "add",
            lambda s: D.VirtualPCIPassthrough(
                key=-1, backing=D.VirtualPCIPassthrough.VmiopBackingInfo(vgpu="grid_x9-1q")
            ),
        ),
    ),
    change(
        "a passthrough device without a backing",
        devices(D.VirtualPCIPassthrough),
        ("add", with_key(D.VirtualPCIPassthrough, -1)),
    ),
)
