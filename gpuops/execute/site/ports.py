"""The ports to a vCenter and its hosts: read, send one step, wait for many. `vsphere` implements both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuops.advise.desktop_sessions import MachineMatch
    from gpuops.model.desktops.broker import Gate
    from gpuops.model.desktops.evidence import SessionCount, VgpuUse
    from gpuops.model.devices.device_mode import Impacts
    from gpuops.model.devices.other_device import Networks
    from gpuops.model.measurements.measurement import Samples
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.login import ObjectKind
    from gpuops.model.vcenter.task import TaskEnd, TaskRef
    from gpuops.model.vcenter.vm import Guest, PowerState, Vm
    from gpuops.plan.core.steps import GateStep, HostStep, HostTask, RunInGuest, Step


class Hosts(Protocol):
    """The hosts of one vCenter. Every method raises only errors of the gpuops tree."""

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with the settings of these hosts. The settings name what could not be read."""
        ...

    def with_other_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with all devices of these hosts that could be passed through, and their use."""
        ...

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """Return host -> needed privileges that this login lacks; empty if vCenter does not report them."""
        ...

    def read_held_privileges(
        self, hosts: Collection[str], privileges: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        """Return host -> those of the privileges that this login has. Hosts unknown to vCenter are missing."""
        ...

    def with_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with the DirectPath devices of these hosts; a vCenter before 9.1 does not list them."""
        ...

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> Impacts | None:
        """Send one step, once; it is done when this returns.

        Returns what vCenter requires before the change is in force (a reboot, for example); None if it does not report
        that. Raises OutcomeUnknown if the reply was lost: the caller reads back and never sends it again unchecked.
        """
        ...

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        """Send one step and return its task. Raises OutcomeUnknown if the reply was lost."""
        ...

    def find_task(self, step: HostTask) -> TaskRef | None:
        """Return a task of this kind that runs on the step's host now, by any user, or None."""
        ...

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        """Wait for hosts to boot. Return those that are connected and whose boot time differs from `since`.

        Hosts that were removed from vCenter are returned too, so that the caller does not wait for them.
        """
        ...


class SessionSource(Protocol):
    """A source of VMs' sessions other than vCenter, for example an operator's command.

    Never raises: after a failure the sessions are unknown.
    """

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """Return VM (ref) -> its sessions, with the moment at which they were read."""
        ...


class VgpuUseSource(Protocol):
    """The use of VMs' vGPUs by nvidia-smi on their hosts. Never raises: a failure counts as unknown."""

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        """Return VM (ref) -> the use of its vGPUs, for these VMs on hosts of the inventory."""
        ...


class DesktopGates(SessionSource, Protocol):
    """The gates of a connection broker: it assigns no user to a desktop whose gate is closed."""

    applied: bool | None
    """Whether a gate was changed; None = not known."""

    @property
    def fails(self) -> bool:
        """Whether the broker failed a short time ago: steps that need it are better sent later."""
        ...

    @property
    def match(self) -> MachineMatch | None:
        """Which machine of the broker is which VM, by the last read of sessions; None = not read yet."""
        ...

    def gates(self, vms: Sequence[Vm], machines: Mapping[str, str], inventory: Inventory) -> Mapping[str, Gate]:
        """Return VM (ref) -> its gate, for these VMs of the inventory. `machines`: VM (ref) -> known id at the broker.

        Never raises.
        """
        ...

    def change(self, step: GateStep, vm: Vm) -> None:
        """Send one step, once; it is done when this returns. Raises OutcomeUnknown, Refused."""
        ...


class Vcenter(Protocol):
    """The port between the executor and the wire. Every method raises only errors of the gpuops tree."""

    @property
    def uuid(self) -> str:
        """The vCenter's instance uuid, known after the login: `Inventory.vcenter` without a read."""
        ...

    @property
    def applied(self) -> bool | None:
        """Whether this connection changed something; None = not known, after a lost reply or while a task runs."""
        ...

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Return why the program cannot run in its guest, as far as known without a try; None if no reason is known."""
        ...

    @property
    def hosts(self) -> Hosts:
        """The port to its hosts."""
        ...

    def inventory(self) -> Inventory:
        """Return the whole inventory, by one bulk read."""
        ...

    def with_config_targets(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with QueryConfigTarget(host) of these hosts."""
        ...

    def networks(self) -> Networks:
        """Return the distributed switches, and the RDMA devices of hosts."""
        ...

    def with_tags(self, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
        """Return the snapshot with the tags of these VMs; None = of every VM and host (vSphere Automation API)."""
        ...

    def with_counters(
        self, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
    ) -> Inventory:
        """Return the snapshot with these performance counters of these VMs over the last `over_s` seconds."""
        ...

    def samples(
        self,
        kind: str,
        refs: Sequence[str],
        names: Sequence[str],
        interval_s: int,
        span: tuple[datetime, datetime],
        pace: Callable[[], None],
    ) -> Iterator[Sequence[Samples]]:
        """Yield, for each call, vCenter's samples of these counters of VMs or hosts that end within the span.

        `pace` is called before each call to vCenter. An entity that vCenter refuses is missing.
        """
        ...

    def lacking(
        self, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
    ) -> Mapping[str, Collection[str]]:
        """Return VM -> needed privileges that this login lacks; empty if vCenter does not report them.

        `attributes`: custom attributes that will be written. To define a missing one needs a separate privilege.
        """
        ...

    def lacking_on_objects(
        self, needed: Mapping[ObjectKind, Mapping[str, Collection[str]]]
    ) -> Mapping[str, Collection[str]]:
        """Return object -> privileges needed on it that this login lacks; empty if vCenter does not report them.

        The privilege to assign a VM to a resource pool is checked on the pool of the cluster or standalone host.
        """
        ...

    def with_drs(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """Return the snapshot with the DRS settings of these VMs' clusters read again."""
        ...

    def with_creation(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """Return the snapshot with the creation times of these VMs, if vCenter reports them."""
        ...

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """Return the snapshot with these VMs, their datastores and their hosts' GPUs read again.

        A VM that no longer exists is removed. Tags are not read again.
        """
        ...

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        """Send one step and return its task; None for a call without a task, which is done (ShutDownGuest: requested).

        Raises OutcomeUnknown if the reply was lost: the caller reads back and never submits it again unchecked.
        """
        ...

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        """Yield the end of each task as it happens, by one property filter; a task that still runs is missing."""
        ...

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        """Cancel those of these tasks that were queued when they were last waited for.

        A task that had not begun then ends like a step that was refused because another task uses its VM. A task that
        vCenter does not cancel continues.
        """
        ...

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        """Wait for this power state. Return the VMs that reached it in time, as soon as all did.

        It is for changes without a task: a shutdown by the guest, and a state that lags behind its task.
        """
        ...

    def wait_for_change(self, timeout_s: float) -> bool:
        """Wait for a change of a VM or host that matters for GPUs. Return whether there was one since the last call.

        The first call returns True.
        """
        ...

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        """Wait until VMware Tools run in the guest, with `address` until it has an IP address, and return the guest.

        After the time it returns the guest as it is then.
        """
        ...

    def defined_attributes(self) -> frozenset[str]:
        """Return the names of the custom attributes that a VM can carry."""
        ...

    def check_attribute_names(self, names: Collection[str]) -> None:
        """Raise Refused if a custom attribute of one of these names exists and VMs cannot carry it."""
        ...

    def define_attribute(self, name: str, op_id: str) -> None:
        """Define a custom attribute of this name for VMs. Raises OutcomeUnknown, NoPermission."""
        ...

    def folder_at(self, path: str) -> str:
        """Return the id of the VM folder at an inventory path. Raises UsageError if there is no such folder."""
        ...

    def find_task(self, step: Step, since: datetime, login: str = "", known: Collection[str] = ()) -> TaskRef | None:
        """Find the task of a step whose reply was lost, among the recent tasks queued after `since`.

        Returns the step's own task, another user's task of the same kind, or None. `login`: the user that gpuops used,
        if it differs from the present one. `known`: tasks of other steps, which are not returned.
        """
        ...

    def started_by_this_login(self, vm: str, since: datetime, login: str = "") -> bool:
        """Return whether this login started the running VM since then; False if the history has no start.

        `login`: the user that gpuops used, if it differs from the present one.
        """
        ...

    def started_by_others(self, vm: str, since: datetime) -> bool:
        """Return whether another user started this VM since then. A restart by vSphere HA does not count."""
        ...

    def has_power_task_near(self, vm: str, moment: datetime) -> bool | None:
        """Return whether the task history has a suspend or start of this VM at most an hour before or after the moment.

        None if this vCenter does not report it.
        """
        ...
