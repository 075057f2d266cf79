"""All steps that a plan can have: each is one change of a VM, a host or vCenter, as data that `execute` carries out.

`kind` is the name of a step on a VM in JSON, `noun` its name in sentences. `privileges` are those that the login needs
on the VM (the privilege of each method, and of each field of ConfigSpec, in the vSphere API reference). If you add a
class to `Step` or `HostStep`, mypy reports every match that lacks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final

from gpuops.model.devices.device_mode import DeviceMode
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.nights.ml_queue import SshDoor
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.host_settings import GraphicsSettings, VsanMode
from gpuops.model.vcenter.vm import VmDrs
from gpuops.model.workloads.cluster import LatencyLevel, RdmaKind


@stored_as("GpuDifference")
@dataclass(frozen=True, slots=True)
class GpuDifference:
    """The effect of a change of a host on one of its GPUs, in words."""

    gpu: PciAddress
    before: str
    after: str


@stored_as("ConfigureModule")
@dataclass(frozen=True, slots=True)
class ConfigureModule:
    """Replace the option string of a host's `nvidia` kernel module, in force after the next boot of the host."""

    host: str
    before: str
    """The string when the plan was made. If the host now has another one, the step is not done."""
    after: str
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ConfigureGraphics")
@dataclass(frozen=True, slots=True)
class ConfigureGraphics:
    """Replace the graphics configuration of a host. If it is no longer `before`, the step is not done."""

    host: str
    before: GraphicsSettings
    after: GraphicsSettings
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("PassthroughChange")
@dataclass(frozen=True, slots=True)
class PassthroughChange:
    """Enable or disable DirectPath I/O of one device, and set its hardware label; None = keep the label."""

    address: PciAddress
    enabled: bool
    label: str | None = None


@stored_as("ConfigurePassthrough")
@dataclass(frozen=True, slots=True)
class ConfigurePassthrough:
    """Change DirectPath I/O of devices of a host, in one call to vCenter."""

    host: str
    devices: tuple[PassthroughChange, ...]
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ModeChange")
@dataclass(frozen=True, slots=True)
class ModeChange:
    """The new mode of one device; `before` is the configured mode, as vCenter named it."""

    address: PciAddress
    before: str
    after: DeviceMode


@stored_as("ConfigureModes")
@dataclass(frozen=True, slots=True)
class ConfigureModes:
    """Change the modes of devices of a host, with one call of vSphere 9.1 for each device, and their labels."""

    host: str
    devices: tuple[ModeChange, ...]
    labels: tuple[PassthroughChange, ...] = ()
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ConfigureMig")
@dataclass(frozen=True, slots=True)
class ConfigureMig:
    """Switch MIG mode of GPUs of a host on or off with nvidia-smi on the host, because vCenter has no call for it."""

    host: str
    devices: tuple[PciAddress, ...]
    on: bool
    gpus: tuple[GpuDifference, ...] = ()


HostStep = ConfigureModule | ConfigureGraphics | ConfigurePassthrough | ConfigureModes | ConfigureMig
"""A change of the settings of one host. It is done when the call returns."""


@stored_as("EnterMaintenance")
@dataclass(frozen=True, slots=True)
class EnterMaintenance:
    """Enter maintenance mode. The host waits at most `limit_s` seconds until DRS has moved its VMs away."""

    host: str
    vsan_mode: VsanMode = VsanMode.ENSURE
    limit_s: int = 1800


@stored_as("LeaveMaintenance")
@dataclass(frozen=True, slots=True)
class LeaveMaintenance:
    """Leave maintenance mode."""

    host: str


@stored_as("RebootHost")
@dataclass(frozen=True, slots=True)
class RebootHost:
    """Reboot a host in maintenance mode. Done when it is connected and its boot time is not `booted`."""

    host: str
    booted: datetime | None


HostTask = EnterMaintenance | LeaveMaintenance | RebootHost
"""A step on a host that vCenter does as a task."""


@stored_as("EndTurn")
@dataclass(frozen=True, slots=True)
class EndTurn:
    """Note in the journal that a rolling change is finished on this host. Nothing is sent to vCenter."""

    host: str


@stored_as("DefineAttribute", name="name")
@dataclass(frozen=True, slots=True)
class DefineAttribute:
    """Define a custom attribute of this name for VMs."""

    name: str


@stored_as("SetRole", name="name", privileges="privileges")
@dataclass(frozen=True, slots=True)
class SetRole:
    """Give vCenter's role of this name these privileges and no others. A missing role is added."""

    name: str
    privileges: tuple[str, ...]
    """Sorted, without those that vCenter puts into every role."""


VcenterSetting = DefineAttribute | SetRole
"""A setting of vCenter as a whole. It is made when the call returns."""


@stored_as("RunClusterProgram")
@dataclass(frozen=True, slots=True)
class RunClusterProgram:
    """Run a program over the VMs of a training cluster until it ends, and remove all that it leaves in the guests."""

    vm: str
    """The VM of rank 0."""
    mark: str
    """`CLUSTER/RUN`, which each process of the program has in its environment, in every guest."""


GUEST_PRIVILEGES: Final = ("VirtualMachine.GuestOperations.Execute", "VirtualMachine.GuestOperations.Query")
"""Needed to start a program and to wait for its end (vSphere API reference, GuestProcessManager)."""

COLD_MOVE: Final = frozenset({"Resource.ColdMigrate"})
"""Needed for every move; a running VM needs another privilege as well (`HOT_MOVE` in `privileges.py`)."""


@stored_as("NewVgpu")
@dataclass(frozen=True, slots=True)
class NewVgpu:
    """A vGPU to add. `numa_node`: the virtual NUMA node of the guest; None = the host chooses."""

    profile: str
    numa_node: int | None = None
    sequence_id: int | None = None
    """Its position in the vendor device group that the change adds; None = no group."""


@stored_as("NewDirectPath")
@dataclass(frozen=True, slots=True)
class NewDirectPath:
    """A static DirectPath I/O device to add, with the fields of its backing from QueryConfigTarget of the host."""

    address: PciAddress
    name: str
    system_id: str
    vendor_id: int
    device_id: int
    sequence_id: int | None = None


@stored_as("NewDynamic")
@dataclass(frozen=True, slots=True)
class NewDynamic:
    """A Dynamic DirectPath I/O device to add: the allowed (vendor id, device id) pairs, and the requested label."""

    allowed: tuple[tuple[int, int], ...]
    label: str | None = None
    sequence_id: int | None = None


NewDevice = NewVgpu | NewDirectPath | NewDynamic


@stored_as("VmChange")
@dataclass(frozen=True, slots=True)
class VmChange:
    """The changes of one ReconfigVM_Task: vCenter makes all of them or none. None = keep the setting."""

    add: tuple[NewDevice, ...] = ()
    remove: tuple[int, ...] = ()
    """Keys of the devices to remove."""
    replace_profile: tuple[tuple[int, str], ...] = ()
    """(device key, new profile): the device keeps its key."""
    device_group: str | None = None
    """The vendor device group of all added devices."""
    extra_config: Mapping[str, str] = field(default_factory=dict)
    """An empty value removes the key."""
    memory_locked: bool | None = None
    memory_reservation_mib: int | None = None
    cpu_hot_add: bool | None = None
    cores_per_numa_node: int | None = None
    """0 = automatic."""
    devices_after: tuple[str, ...] | None = None
    """Sorted signatures of all passthrough devices after the change, by which an executed change is recognized."""

    @property
    def empty(self) -> bool:
        return self == VmChange()

    @property
    def privileges(self) -> Iterator[str]:
        """The privileges that the login needs on the VM."""
        if self.add or self.remove:
            yield "VirtualMachine.Config.AddRemoveDevice"
        if self.replace_profile:
            yield "VirtualMachine.Config.EditDevice"
        if self.extra_config:
            yield "VirtualMachine.Config.AdvancedConfig"
        if self.memory_locked is not None or self.memory_reservation_mib is not None:
            yield "VirtualMachine.Config.Resource"
        if self.cpu_hot_add is not None or self.cores_per_numa_node is not None:
            yield "VirtualMachine.Config.CPUCount"


@stored_as("ReconfigureVm")
@dataclass(frozen=True, slots=True)
class ReconfigureVm:
    """Change the GPU devices of a powered-off VM and the settings that they need."""

    kind: ClassVar[str] = "reconfigure"
    noun: ClassVar[str] = "change"

    vm: str
    change: VmChange

    @property
    def privileges(self) -> Collection[str]:
        return tuple(self.change.privileges)


@stored_as("RelocateVm")
@dataclass(frozen=True, slots=True)
class RelocateVm:
    """Move a VM to another host in its power state: a cold move if it is off or suspended, vMotion if it is running."""

    kind: ClassVar[str] = "relocate"
    noun: ClassVar[str] = "move"
    privileges: ClassVar[Collection[str]] = COLD_MOVE

    vm: str
    host: str


@stored_as("PowerOnVm")
@dataclass(frozen=True, slots=True)
class PowerOnVm:
    """Power on a VM that is off. `host` None = vCenter chooses.

    `resumes`: the VM is an ML VM that a watch suspended, and continues with its memory. If it is off instead, it is not
    booted. The journal records the step as any other start.
    """

    kind: ClassVar[str] = "power_on"
    noun: ClassVar[str] = "start"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOn",)

    vm: str
    host: str | None = None
    resumes: bool = False


@stored_as("ResumeVm")
@dataclass(frozen=True, slots=True)
class ResumeVm:
    """Resume a suspended VM. A VM that is off is not booted: the step fails."""

    kind: ClassVar[str] = "resume"
    noun: ClassVar[str] = "resume"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOn",)

    vm: str
    host: str | None = None


@stored_as("SuspendVm")
@dataclass(frozen=True, slots=True)
class SuspendVm:
    """Suspend a running VM, so that its vGPU slots are free.

    `gives_way`: the VM is an ML VM that gpuops started, and is suspended even if it is in use. Other VMs must be idle.
    """

    kind: ClassVar[str] = "suspend"
    noun: ClassVar[str] = "suspend"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.Suspend",)

    vm: str
    gives_way: bool = False


@stored_as("PowerOffVm")
@dataclass(frozen=True, slots=True)
class PowerOffVm:
    """Power off a running VM without asking its guest. A suspended VM is refused: it would lose its suspended state."""

    kind: ClassVar[str] = "power_off"
    noun: ClassVar[str] = "power-off"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOff",)

    vm: str


@stored_as("ShutDownGuest")
@dataclass(frozen=True, slots=True)
class ShutDownGuest:
    """Ask a running guest to shut down. If `then_off`, power it off after `grace_s` seconds."""

    kind: ClassVar[str] = "shut_down_guest"
    noun: ClassVar[str] = "shutdown"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOff",)

    vm: str
    grace_s: int = 300
    then_off: bool = False


@stored_as("RunInGuest")
@dataclass(frozen=True, slots=True)
class RunInGuest:
    """Run a program in a running guest, for at most `limit_s` seconds, so that an ML VM saves its work.

    The program is run by VMware Tools, or over SSH if `ssh` is set. No snapshot of vCenter shows whether it was run, so
    it may be run twice.
    """

    kind: ClassVar[str] = "run_in_guest"
    noun: ClassVar[str] = "checkpoint hook"

    vm: str
    program: str
    arguments: str = ""
    limit_s: int = 300
    ssh: SshDoor | None = None

    @property
    def privileges(self) -> Collection[str]:
        return GUEST_PRIVILEGES if self.ssh is None else ()


@stored_as("SetVmDrs")
@dataclass(frozen=True, slots=True)
class SetVmDrs:
    """Set the DRS override of a VM in a cluster; `VmDrs.CLUSTER` removes it."""

    kind: ClassVar[str] = "set_vm_drs"
    noun: ClassVar[str] = "override of DRS"
    privileges: ClassVar[Collection[str]] = ()  # needed on the cluster, not on the VM: `privileges.py`

    vm: str
    drs: VmDrs


@stored_as("SetAttribute")
@dataclass(frozen=True, slots=True)
class SetAttribute:
    """Set a custom attribute of a VM; an empty value clears it."""

    kind: ClassVar[str] = "set_attribute"
    noun: ClassVar[str] = "marker"
    privileges: ClassVar[Collection[str]] = ("Global.SetCustomField",)

    vm: str
    name: str
    value: str


@stored_as("CloseGate")
@dataclass(frozen=True, slots=True)
class CloseGate:
    """Keep users off a desktop: its machine enters maintenance mode at the connection broker.

    `machine` is the id of the machine at the broker.
    """

    kind: ClassVar[str] = "close_gate"
    noun: ClassVar[str] = "gate"
    privileges: ClassVar[Collection[str]] = ()  # not done by vCenter

    vm: str
    machine: str


@stored_as("OpenGate")
@dataclass(frozen=True, slots=True)
class OpenGate:
    """Let users use a desktop again: its machine leaves maintenance mode at the connection broker.

    `machine` is the id of the machine when the night closed the gate; empty = find the machine of the VM.
    """

    kind: ClassVar[str] = "open_gate"
    noun: ClassVar[str] = "opening of the gate"
    privileges: ClassVar[Collection[str]] = ()

    vm: str
    machine: str = ""


@stored_as("PowerOffForRemoval")
@dataclass(frozen=True, slots=True)
class PowerOffForRemoval:
    """Power off a VM that gpuops created, before it is removed. A suspended state is discarded.

    `name` and `notes` are those that gpuops gave it. A VM with others is left as it is.
    """

    kind: ClassVar[str] = "power_off_for_removal"
    noun: ClassVar[str] = "power-off for removal"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOff",)

    vm: str
    name: str
    notes: str


@stored_as("RemoveVm")
@dataclass(frozen=True, slots=True)
class RemoveVm:
    """Remove a powered-off VM that gpuops created, with its disks. `name` and `notes` as in `PowerOffForRemoval`."""

    kind: ClassVar[str] = "remove"
    noun: ClassVar[str] = "removal"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Inventory.Delete",)

    vm: str
    name: str
    notes: str


NEW_VM: Final = "new:"
"""How the id of a VM that does not exist yet begins in steps and snapshots; its inventory path follows."""


@stored_as("NewCard")
@dataclass(frozen=True, slots=True)
class NewCard:
    """An RDMA network card that a new VM gets in addition to those of its template, on a distributed port group."""

    kind: RdmaKind
    """Paravirtual RDMA, or a virtual function that the host chooses among those of the port group's uplinks."""
    switch: str
    """The uuid of the switch."""
    port_group: str
    """The key of the port group."""


@stored_as("CloneVm")
@dataclass(frozen=True, slots=True)
class CloneVm:
    """Make a VM from a template, powered off. All but names and sizes are managed object ids."""

    kind: ClassVar[str] = "clone"
    noun: ClassVar[str] = "clone"
    privileges: ClassVar[Collection[str]] = ()  # those on its template: `plan/vm/clone.py`

    vm: str
    """`new:` and its inventory path."""
    name: str
    source: str
    """The template."""
    host: str
    folder: str | None
    """None = that of its template."""
    datastore: str | None
    """None = that of its template."""
    vcpus: int
    memory_mib: int
    notes: str | None = None
    """None = those of its template."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of extraConfig, in addition to those of its template."""
    card: NewCard | None = None
    memory_locked: bool = False
    """All of its memory is reserved; else as in its template."""
    cpu_reservation_mhz: int | None = None
    """None = that of the template."""
    latency: LatencyLevel = LatencyLevel.NORMAL
    """`normal` leaves that of the template."""

    @property
    def path(self) -> str:
        """Inventory path that it will have."""
        return self.vm.removeprefix(NEW_VM)


@stored_as("CreateVm")
@dataclass(frozen=True, slots=True)
class CreateVm:
    """Make an empty VM, which is never powered on: no disk, no network card. It goes to the root VM folder."""

    kind: ClassVar[str] = "create"
    noun: ClassVar[str] = "creation"
    privileges: ClassVar[Collection[str]] = ()  # those on its folder, pool and datastore: vCenter checks them

    vm: str
    """`new:` and its name: no other VM of the vCenter has it."""
    name: str
    host: str
    """Managed object id of the host that it is registered on."""
    host_name: str
    datastore: str
    """Its name, as used in paths of files."""
    notes: str

    @property
    def path(self) -> str:
        """What it is recognised by."""
        return self.vm.removeprefix(NEW_VM)


CreationStep = CloneVm | CreateVm
"""A step that makes a VM."""

RemovalStep = PowerOffForRemoval | RemoveVm
"""A step of the removal of a VM, which cannot be undone. No night has one."""

GateStep = CloseGate | OpenGate
"""A step at the connection broker; all others are done by vCenter."""

VcenterStep = (
    ReconfigureVm
    | RelocateVm
    | PowerOnVm
    | ResumeVm
    | SuspendVm
    | PowerOffVm
    | ShutDownGuest
    | RunInGuest
    | SetVmDrs
    | SetAttribute
)
Step = VcenterStep | CreationStep | RemovalStep | GateStep


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # that of Python 3.11 has no `default`

    AnyStep = TypeVar(
        "AnyStep", bound=Step | HostStep | HostTask | VcenterSetting | RunClusterProgram, default=Step, covariant=True
    )
else:
    from typing import TypeVar

    AnyStep = TypeVar("AnyStep", covariant=True)
"""The kind of steps in a plan and its report: `Plan` has steps on VMs, `Plan[HostStep]` steps on hosts."""
