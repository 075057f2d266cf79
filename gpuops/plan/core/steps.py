"""The closed vocabulary of changes of hosts and VMs. A step is data; `execute` does it.

`kind` is what a step on a VM is called in documents, `noun` in sentences, and `privileges` what the login needs on the
VM (the privilege of each method, and of each field of ConfigSpec, in the vSphere API reference). To add a kind of step,
add it to `Step` or `HostStep`; mypy then names every match that must learn it.
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


@stored_as("GpuDifference", gpu="gpu", before="before", after="after")
@dataclass(frozen=True, slots=True)
class GpuDifference:
    """What a change of a host means for one of its GPUs, in words."""

    gpu: PciAddress
    before: str
    after: str


@stored_as("ConfigureModule", host="host", before="before", after="after", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureModule:
    """Replace the option string of a host's `nvidia` kernel module. In force after the host's next boot."""

    host: str
    before: str
    """The string it was planned on: another one there, and the change is not made."""
    after: str
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ConfigureGraphics", host="host", before="before", after="after", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureGraphics:
    """Replace the graphics configuration of a host; what it was planned on must still be there."""

    host: str
    before: GraphicsSettings
    after: GraphicsSettings
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("PassthroughChange", address="address", enabled="enabled", label="label")
@dataclass(frozen=True, slots=True)
class PassthroughChange:
    """DirectPath I/O of one device switched on or off, and its hardware label; None leaves the label as it is."""

    address: PciAddress
    enabled: bool
    label: str | None = None


@stored_as("ConfigurePassthrough", host="host", devices="devices", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigurePassthrough:
    """Change DirectPath I/O of devices of a host, in one call."""

    host: str
    devices: tuple[PassthroughChange, ...]
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ModeChange", address="address", before="before", after="after")
@dataclass(frozen=True, slots=True)
class ModeChange:
    """Another mode of one device; `before` is the word that vCenter had for what was configured."""

    address: PciAddress
    before: str
    after: DeviceMode


@stored_as("ConfigureModes", host="host", devices="devices", labels="labels", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureModes:
    """Change the modes of devices of a host by the call of vSphere 9.1, which tells what that takes; and their labels.

    Each device is a call of its own, and so are the labels.
    """

    host: str
    devices: tuple[ModeChange, ...]
    labels: tuple[PassthroughChange, ...] = ()
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ConfigureMig", host="host", devices="devices", on="on", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureMig:
    """Switch MIG mode of GPUs of a host on or off, by the host's own nvidia-smi: vCenter has no call for it."""

    host: str
    devices: tuple[PciAddress, ...]
    on: bool
    gpus: tuple[GpuDifference, ...] = ()


HostStep = ConfigureModule | ConfigureGraphics | ConfigurePassthrough | ConfigureModes | ConfigureMig
"""A change of a host's settings, on one host: the caller waits until it is made."""


@stored_as("EnterMaintenance", host="host", vsan_mode="vsan_mode", limit_s="limit_s")
@dataclass(frozen=True, slots=True)
class EnterMaintenance:
    """Have a host enter maintenance mode; it waits for the VMs that DRS still moves away, at most `limit_s` seconds."""

    host: str
    vsan_mode: VsanMode = VsanMode.ENSURE
    limit_s: int = 1800


@stored_as("LeaveMaintenance", host="host")
@dataclass(frozen=True, slots=True)
class LeaveMaintenance:
    """Have a host serve VMs again."""

    host: str


@stored_as("RebootHost", host="host", booted="booted")
@dataclass(frozen=True, slots=True)
class RebootHost:
    """Reboot a host in maintenance mode; done when it is back, with another boot time than `booted`."""

    host: str
    booted: datetime | None


HostTask = EnterMaintenance | LeaveMaintenance | RebootHost
"""A step of a host that vCenter makes a task of."""


@stored_as("EndTurn", host="host")
@dataclass(frozen=True, slots=True)
class EndTurn:
    """A line in the journal and nothing in vCenter: all that a rolling change had to do with this host is done."""

    host: str


GUEST_PRIVILEGES: Final = ("VirtualMachine.GuestOperations.Execute", "VirtualMachine.GuestOperations.Query")
"""To start a program, and to see its end (vSphere API reference, GuestProcessManager)."""

COLD_MOVE: Final = frozenset({"Resource.ColdMigrate"})
"""The call is declared with it whatever the VM does; of a running one it asks for another besides (`privileges.py`)."""


@stored_as("NewVgpu", profile="profile", numa_node="numa_node", sequence_id="sequence_id")
@dataclass(frozen=True, slots=True)
class NewVgpu:
    """A vGPU to add; `numa_node` is the guest's virtual node, None leaves it to the host."""

    profile: str
    numa_node: int | None = None
    sequence_id: int | None = None
    """Its place in a vendor device group, when the change adds one."""


@stored_as(
    "NewDirectPath",
    address="address",
    name="name",
    system_id="system_id",
    vendor_id="vendor_id",
    device_id="device_id",
    sequence_id="sequence_id",
)
@dataclass(frozen=True, slots=True)
class NewDirectPath:
    """A DirectPath I/O device to add: all that a static backing carries (QueryConfigTarget of the VM's host)."""

    address: PciAddress
    name: str
    system_id: str
    vendor_id: int
    device_id: int
    sequence_id: int | None = None


@stored_as("NewDynamic", allowed="allowed", label="label", sequence_id="sequence_id")
@dataclass(frozen=True, slots=True)
class NewDynamic:
    """A Dynamic DirectPath I/O device to add: allowed (vendor id, device id) pairs, and the label if one is wanted."""

    allowed: tuple[tuple[int, int], ...]
    label: str | None = None
    sequence_id: int | None = None


NewDevice = NewVgpu | NewDirectPath | NewDynamic


@stored_as(
    "VmChange",
    add="add",
    remove="remove",
    replace_profile="replace_profile",
    device_group="device_group",
    extra_config="extra_config",
    memory_locked="memory_locked",
    memory_reservation_mib="memory_reservation_mib",
    cpu_hot_add="cpu_hot_add",
    cores_per_numa_node="cores_per_numa_node",
    devices_after="devices_after",
)
@dataclass(frozen=True, slots=True)
class VmChange:
    """One ReconfigVM_Task: everything below happens, or nothing does. None leaves a setting as it is."""

    add: tuple[NewDevice, ...] = ()
    remove: tuple[int, ...] = ()
    """Device keys."""
    replace_profile: tuple[tuple[int, str], ...] = ()
    """(device key, new profile): edited in place."""
    device_group: str | None = None
    """Vendor device group that every added device belongs to."""
    extra_config: Mapping[str, str] = field(default_factory=dict)
    """An empty value removes the key."""
    memory_locked: bool | None = None
    memory_reservation_mib: int | None = None
    cpu_hot_add: bool | None = None
    cores_per_numa_node: int | None = None
    """0 = automatic."""
    devices_after: tuple[str, ...] | None = None
    """Signatures of all passthrough devices the VM then has, sorted: an addition found done is not done twice."""

    @property
    def empty(self) -> bool:
        return self == VmChange()

    @property
    def privileges(self) -> Iterator[str]:
        """Yield what the login needs for it on the VM."""
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


@stored_as("ReconfigureVm", vm="vm", change="change")
@dataclass(frozen=True, slots=True)
class ReconfigureVm:
    """Change a powered-off VM's GPU devices and what must go with them."""

    kind: ClassVar[str] = "reconfigure"
    noun: ClassVar[str] = "change"

    vm: str
    change: VmChange

    @property
    def privileges(self) -> Collection[str]:
        """Return those of each setting that is changed."""
        return tuple(self.change.privileges)


@stored_as("RelocateVm", vm="vm", host="host")
@dataclass(frozen=True, slots=True)
class RelocateVm:
    """Move a VM to another host, as it is: cold when it is powered off or suspended, by vMotion when it runs."""

    kind: ClassVar[str] = "relocate"
    noun: ClassVar[str] = "move"
    privileges: ClassVar[Collection[str]] = COLD_MOVE

    vm: str
    host: str


@stored_as("PowerOnVm", vm="vm", host="host", resumes="resumes")
@dataclass(frozen=True, slots=True)
class PowerOnVm:
    """Power on a VM that is off. `host` None leaves the choice to vCenter.

    `resumes`: an ML VM that a watch has suspended goes on with its memory: never a cold boot, and a start like any
    other to the journal.
    """

    kind: ClassVar[str] = "power_on"
    noun: ClassVar[str] = "start"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOn",)

    vm: str
    host: str | None = None
    resumes: bool = False


@stored_as("ResumeVm", vm="vm", host="host")
@dataclass(frozen=True, slots=True)
class ResumeVm:
    """Power on a suspended VM. Never a cold boot: on a VM that is off it is an error, not a power-on."""

    kind: ClassVar[str] = "resume"
    noun: ClassVar[str] = "resume"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOn",)

    vm: str
    host: str | None = None


@stored_as("SuspendVm", vm="vm", gives_way="gives_way")
@dataclass(frozen=True, slots=True)
class SuspendVm:
    """Suspend a running VM; its vGPU slots are free afterwards.

    `gives_way`: an ML VM that a run started is suspended even if it is in use; any other VM must be idle.
    """

    kind: ClassVar[str] = "suspend"
    noun: ClassVar[str] = "suspend"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.Suspend",)

    vm: str
    gives_way: bool = False


@stored_as("PowerOffVm", vm="vm")
@dataclass(frozen=True, slots=True)
class PowerOffVm:
    """Power a running VM off, hard. Never applied to a suspended one: that would discard the guest's state."""

    kind: ClassVar[str] = "power_off"
    noun: ClassVar[str] = "power-off"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOff",)

    vm: str


@stored_as("ShutDownGuest", vm="vm", grace_s="grace_s", then_off="then_off")
@dataclass(frozen=True, slots=True)
class ShutDownGuest:
    """Ask a running guest to shut down; after `grace_s` seconds it is powered off if `then_off`."""

    kind: ClassVar[str] = "shut_down_guest"
    noun: ClassVar[str] = "shutdown"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOff",)

    vm: str
    grace_s: int = 300
    then_off: bool = False


@stored_as("RunInGuest", vm="vm", program="program", arguments="arguments", limit_s="limit_s", ssh="ssh")
@dataclass(frozen=True, slots=True)
class RunInGuest:
    """Run a program in a running guest and give it `limit_s` seconds: an ML VM keeps its work.

    By VMware Tools, or where `ssh` says how over SSH.

    What it brings about is the guest's own: a snapshot never shows that it is done. Run twice, it does no harm.
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
        """None in vCenter where the program is run over SSH."""
        return GUEST_PRIVILEGES if self.ssh is None else ()


@stored_as("SetVmDrs", vm="vm", drs="drs")
@dataclass(frozen=True, slots=True)
class SetVmDrs:
    """Say what DRS does with a VM of a cluster, by an override of its own; CLUSTER takes the override away."""

    kind: ClassVar[str] = "set_vm_drs"
    noun: ClassVar[str] = "override of DRS"
    privileges: ClassVar[Collection[str]] = ()  # those on the cluster: `privileges.py`

    vm: str
    drs: VmDrs


@stored_as("SetAttribute", vm="vm", name="name", value="value")
@dataclass(frozen=True, slots=True)
class SetAttribute:
    """Set a custom attribute of a VM; an empty value clears it."""

    kind: ClassVar[str] = "set_attribute"
    noun: ClassVar[str] = "marker"
    privileges: ClassVar[Collection[str]] = ("Global.SetCustomField",)

    vm: str
    name: str
    value: str


@stored_as("CloseGate", vm="vm", machine="machine")
@dataclass(frozen=True, slots=True)
class CloseGate:
    """Have the connection broker assign a desktop to no user: its machine enters maintenance mode there.

    `machine` is the broker's id of it.
    """

    kind: ClassVar[str] = "close_gate"
    noun: ClassVar[str] = "gate"
    privileges: ClassVar[Collection[str]] = ()  # it is no call to vCenter

    vm: str
    machine: str


@stored_as("OpenGate", vm="vm", machine="machine")
@dataclass(frozen=True, slots=True)
class OpenGate:
    """Have the connection broker give a desktop to its users again: its machine leaves maintenance mode there.

    `machine` is the broker's id of it, as the night has kept it; empty = it is found by the VM.
    """

    kind: ClassVar[str] = "open_gate"
    noun: ClassVar[str] = "opening of the gate"
    privileges: ClassVar[Collection[str]] = ()

    vm: str
    machine: str = ""


@stored_as("PowerOffForRemoval", vm="vm", name="name", notes="notes")
@dataclass(frozen=True, slots=True)
class PowerOffForRemoval:
    """Power off a VM that gpuops made, so that it can be removed; a suspended state is discarded with the VM.

    `name` and `notes` are those that gpuops gave it: a VM without them is left as it is.
    """

    kind: ClassVar[str] = "power_off_for_removal"
    noun: ClassVar[str] = "power-off for removal"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Interact.PowerOff",)

    vm: str
    name: str
    notes: str


@stored_as("RemoveVm", vm="vm", name="name", notes="notes")
@dataclass(frozen=True, slots=True)
class RemoveVm:
    """Remove a powered-off VM that gpuops made, with its disks.

    `name` and `notes` are those that gpuops gave it: a VM without them is left as it is.
    """

    kind: ClassVar[str] = "remove"
    noun: ClassVar[str] = "removal"
    privileges: ClassVar[Collection[str]] = ("VirtualMachine.Inventory.Delete",)

    vm: str
    name: str
    notes: str


NEW_VM: Final = "new:"
"""How the id of a VM that does not exist yet begins in steps and snapshots; its inventory path follows."""


@stored_as("NewCard", kind="kind", switch="switch", port_group="port_group")
@dataclass(frozen=True, slots=True)
class NewCard:
    """An RDMA network card that a new VM gets in addition to those of its template, on a distributed port group."""

    kind: RdmaKind
    """Paravirtual RDMA, or a virtual function that the host chooses among those of the port group's uplinks."""
    switch: str
    """The uuid of the switch."""
    port_group: str
    """The key of the port group."""


@stored_as(
    "CloneVm",
    vm="vm",
    name="name",
    source="source",
    host="host",
    folder="folder",
    datastore="datastore",
    vcpus="vcpus",
    memory_mib="memory_mib",
    notes="notes",
    settings="settings",
    card="card",
    memory_locked="memory_locked",
    cpu_reservation_mhz="cpu_reservation_mhz",
    latency="latency",
)
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


@stored_as("CreateVm", vm="vm", name="name", host="host", host_name="host_name", datastore="datastore", notes="notes")
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
"""A step that removes a VM, which nothing brings back: no night has one."""

GateStep = CloseGate | OpenGate
"""A step that the connection broker does; every other one is vCenter's."""

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

    AnyStep = TypeVar("AnyStep", bound=Step | HostStep | HostTask, default=Step, covariant=True)
else:
    from typing import TypeVar

    AnyStep = TypeVar("AnyStep", covariant=True)
"""What a plan, its outcomes and its report are of: `Plan` alone is of VMs, `Plan[HostStep]` of hosts."""
