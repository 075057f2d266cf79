"""What is needed of a vCenter, and of its hosts: read, send one step, wait for many. `vsphere` implements both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuops.advise.machine_match import MachineMatch
    from gpuops.model.desktops.evidence import SessionCount, VgpuUse
    from gpuops.model.desktops.gate import Gate
    from gpuops.model.devices.device_mode import Impacts
    from gpuops.model.devices.rdma import Networks
    from gpuops.model.measurements.measurement import Samples
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.login import ObjectKind
    from gpuops.model.vcenter.task import TaskEnd, TaskRef
    from gpuops.model.vcenter.vm import Guest, PowerState, Vm
    from gpuops.plan.core.steps import GateStep, HostStep, HostTask, RunInGuest, Step
    from gpuops.plan.rotation.setup import NewVm
    from gpuops.plan.vm.clone import NewClone


class Hosts(Protocol):
    """The hosts of one vCenter. Every method raises only errors of the gpuops tree."""

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with the settings of these hosts asked for; what cannot be read is said in them."""
        ...

    def with_other_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with every device of these hosts that could be passed through, and what the host itself has
        it for."""
        ...

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """By host, those of the needed privileges that this login does not have; a vCenter that does not tell: none."""
        ...

    def read_held_privileges(
        self, hosts: Collection[str], privileges: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        """By host, those of the privileges that this login has; a host that vCenter does not tell of is left out."""
        ...

    def with_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with the DirectPath devices of these hosts; a vCenter before 9.1 lists none."""
        ...

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> Impacts | None:
        """Send one step, once; it is done when this returns. What vCenter says that takes before it is in force; None =
        it does not say.

        Raises OutcomeUnknown when the reply was lost: the caller reads back, and never sends it again blind.
        """
        ...

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        """Send one step that vCenter makes a task of. Raises OutcomeUnknown when the reply was lost."""
        ...

    def find_task(self, step: HostTask) -> TaskRef | None:
        """A task of this kind that runs on the step's host now, whoever asked for it; None = there is none."""
        ...

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        """Those of these hosts that are connected and have booted at another moment than this, within the time; with
        them those that are gone from vCenter, which nobody waits for."""
        ...


class SessionSource(Protocol):
    """What tells of the sessions of VMs beside vCenter: an operator's command. It raises nothing: what it cannot tell
    is unknown."""

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """By VM (ref), what it tells of each of these VMs of the inventory, as of the moment of its look."""
        ...


class VgpuUseSource(Protocol):
    """What hosts' own nvidia-smi tell of the vGPUs of VMs. It raises nothing: what it cannot tell is unknown."""

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        """By VM (ref), what it tells of each of these VMs, which run on hosts of the inventory."""
        ...


class DesktopGates(SessionSource, Protocol):
    """The gate of a connection broker: closed, a desktop is given to nobody."""

    applied: bool | None
    """Whether a gate was changed; None = not known."""

    @property
    def fails(self) -> bool:
        """Whether the broker did not answer a moment ago: steps that need it are better sent later."""
        ...

    @property
    def match(self) -> MachineMatch | None:
        """Which machine of the broker is which VM, by the last look at sessions; None = there was none."""
        ...

    def gates(self, vms: Sequence[Vm], machines: Mapping[str, str], inventory: Inventory) -> Mapping[str, Gate]:
        """Return the gates of these VMs of the inventory, by ref. `machines`: the broker's ids that are known, by VM.

        It raises nothing.
        """
        ...

    def change(self, step: GateStep, vm: Vm) -> None:
        """Send one step, once; it is done when this returns. Raises OutcomeUnknown, Refused."""
        ...


class Vcenter(Protocol):
    """The one seam between the executor and the wire. Every method raises only errors of the gpuops tree."""

    @property
    def uuid(self) -> str:
        """The vCenter's instance uuid, known from the login on: `Inventory.vcenter` without a read."""
        ...

    @property
    def applied(self) -> bool | None:
        """Whether something was changed through it; None = not known, of a lost reply or a task still under way."""
        ...

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Why that program cannot be run in its guest, as far as can be known without trying; None = it can."""
        ...

    @property
    def hosts(self) -> Hosts:
        """The settings of its hosts, to read and to change."""
        ...

    def inventory(self) -> Inventory:
        """One bulk read of everything."""
        ...

    def with_config_targets(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with QueryConfigTarget(host) of these hosts filled in."""
        ...

    def networks(self) -> Networks:
        """The distributed switches, and what the hosts have for RDMA."""
        ...

    def with_tags(self, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
        """The same snapshot with the tags of these VMs, or of every VM and host, filled in (vSphere Automation API)."""
        ...

    def with_counters(
        self, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
    ) -> Inventory:
        """The same snapshot with these performance counters of these VMs over the last `over_s` seconds filled in."""
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
        """What vCenter has of these counters of VMs or hosts, of the samples that end within the span, call by call.

        `pace` is called before each call to vCenter. Of an entity that is refused there is nothing.
        """
        ...

    def lacking(
        self, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
    ) -> Mapping[str, Collection[str]]:
        """By VM, those of the needed privileges that this login does not have; a vCenter that does not tell: none.

        `attributes` are to be written: where one is not defined yet, defining it is a privilege of its own.
        """
        ...

    def lacking_on_objects(
        self, needed: Mapping[ObjectKind, Mapping[str, Collection[str]]]
    ) -> Mapping[str, Collection[str]]:
        """By object, those of the privileges needed on it that this login lacks; a vCenter that does not tell: none.

        That to bring a VM into a resource pool is asked of the pool of the cluster or standalone host.
        """
        ...

    def with_drs(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """The same snapshot with what the clusters of these VMs say of DRS read anew."""
        ...

    def with_creation(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """The same snapshot with the moments at which these VMs were made, where vCenter tells them."""
        ...

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """The same snapshot with these VMs, their datastores and their hosts' GPUs read anew; a VM that is gone is
        dropped. Tags are left as they were."""
        ...

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        """Send one step. None = the call has no task and is done (or asked for, ShutDownGuest).

        Raises OutcomeUnknown when the reply was lost: the caller reads back, and never resubmits blind.
        """
        ...

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        """Each end as it happens, by one property filter over all tasks; one still running at the end is left out."""
        ...

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        """Cancel those of these tasks that were queued when they were last waited for.

        One that had not begun then ends as a step that was refused because somebody else is at its VM. One that
        vCenter does not cancel goes on.
        """
        ...

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        """Those of these VMs that show this power state before the time is up; returns as soon as all do.

        For what has no task: a guest's own shutdown, and a state that lags behind a task that succeeded.
        """
        ...

    def wait_for_change(self, timeout_s: float) -> bool:
        """Whether a VM or host has changed in a way that moves GPUs since the last call, as soon as one has, or when
        the time is up; the first call says yes."""
        ...

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        """What the guest of this VM tells of itself once VMware Tools run in it, with `address` once it has one.

        When the time is up before that, what it tells then.
        """
        ...

    def defined_attributes(self) -> frozenset[str]:
        """Names of the custom attributes that a VM may carry."""
        ...

    def check_attribute_names(self, names: Collection[str]) -> None:
        """Raises Refused where a custom attribute of one of these names exists and VMs cannot carry it."""
        ...

    def define_attribute(self, name: str, op_id: str) -> None:
        """There is a custom attribute of that name for VMs from then on. Raises OutcomeUnknown, NoPermission."""
        ...

    def create_vm(self, new: NewVm, op_id: str) -> TaskRef:
        """The task that makes a bare VM. Raises OutcomeUnknown when the reply was lost."""
        ...

    def folder_at(self, path: str) -> str:
        """The id of the folder for VMs at an inventory path. Raises UsageError where there is none."""
        ...

    def clone_vm(self, new: NewClone, op_id: str) -> TaskRef:
        """The task that makes a VM from a template. Raises OutcomeUnknown when the reply was lost."""
        ...

    def find_task(self, step: Step, since: datetime, login: str = "") -> TaskRef | None:
        """For a lost reply: the step's own task among the recent ones queued after `since`, or somebody else's of its
        kind; None = none found. `login`: the user as whom gpuops asked, where that is another than now."""
        ...

    def started_by_this_login(self, vm: str, since: datetime, login: str = "") -> bool:
        """Whether a VM that runs does so by a start which this login asked for since then, or `login` did, as which
        gpuops asked where that is another than now; one that nothing tells of is not its own."""
        ...

    def started_by_others(self, vm: str, since: datetime) -> bool:
        """Whether somebody else has started this VM since then; a restart that nobody asked for, as of vSphere HA, is
        nobody's."""
        ...

    def has_power_task_near(self, vm: str, moment: datetime) -> bool | None:
        """Whether the task history has a suspend or start of this VM within an hour of the moment, before or after;
        None = this vCenter does not tell."""
        ...
