"""Connection: one vCenter as the doer sees it; the `Vcenter` port of `execute`, over one session."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from gpuops.model.inventory import Inventory
from gpuops.model.role import RoleState, RoleWish
from gpuops.model.target import Target
from gpuops.model.task import TaskEnd, TaskRef
from gpuops.model.vm import Guest, PowerState
from gpuops.plan.core.steps import RunInGuest, Step
from gpuops.plan.rotation.setup import NewVm
from gpuops.plan.vm.clone import NewClone
from gpuops.vsphere import collect
from gpuops.vsphere.adoption import adopt, started_by_this_login
from gpuops.vsphere.cloning import clone_vm, folder_at
from gpuops.vsphere.founding import create_vm
from gpuops.vsphere.guest_programs import GuestPrograms
from gpuops.vsphere.guest_shell import GuestShell
from gpuops.vsphere.hosts import HostConnection
from gpuops.vsphere.perform import Performer
from gpuops.vsphere.power_watch import wait_for_guest, wait_for_power
from gpuops.vsphere.privileges import lacking, lacking_on_clusters
from gpuops.vsphere.session import Session
from gpuops.vsphere.tags import with_tags
from gpuops.vsphere.targets import with_config_targets
from gpuops.vsphere.tasks import TaskWatch

SIMULATED: Final = "simulated by gpuops"
"""What the simulated vCenter has in AboutInfo.fullName."""


class Connection:
    """A logged-in vCenter; leaving its `with` block logs out. Raises NotConnected in its kinds when it is made."""

    def __init__(self, target: Target, guest_shell: GuestShell | None = None) -> None:
        """`guest_shell` runs those programs in guests that are to be run over SSH; None = nobody does."""
        self._session = Session(target)
        self._watch = TaskWatch(self._session)
        self._programs = GuestPrograms(self._session, self._watch, guest_shell)
        self._performer = Performer(self._session, self._programs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Log out."""
        self._watch.close()
        self._session.close()

    @property
    def uuid(self) -> str:
        """The vCenter's instance uuid."""
        return self._session.about.get("instanceUuid") or ""

    @property
    def simulated(self) -> bool:
        """Whether it is our own simulator, which says so."""
        return SIMULATED in (self._session.about.get("fullName") or "")

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Why that program cannot be run in its guest, as far as can be known without trying; None = it can."""
        return self._programs.no_way_in(hook)

    @property
    def hosts(self) -> HostConnection:
        """The settings of its hosts, to read and to change."""
        return HostConnection(self._session)

    def inventory(self) -> Inventory:
        """One bulk read of everything."""
        return collect.inventory(self._session)

    def with_config_targets(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with QueryConfigTarget(host) of these hosts filled in."""
        return with_config_targets(self._session, inventory, hosts)

    def with_tags(self, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
        """The same snapshot with the tags of these VMs, or of every VM and host, filled in."""
        return with_tags(self._session, inventory, vms)

    def lacking(
        self, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
    ) -> Mapping[str, Collection[str]]:
        """By VM, those of the needed privileges that this login does not have."""
        return lacking(self._session, needed, attributes)

    def lacking_on_clusters(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """The same of clusters."""
        return lacking_on_clusters(self._session, needed)

    def with_drs(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """The same snapshot with what the clusters of these VMs say of DRS read anew."""
        return collect.with_drs(self._session, inventory, vms)

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        """The same snapshot with these VMs, their datastores and their hosts' GPUs read anew; a VM that is gone is
        dropped."""
        return collect.observe(self._session, inventory, vms)

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        """Send one step, once. Raises OutcomeUnknown when the reply was lost."""
        return self._performer.submit(step, inventory, op_id)

    def wait(self, running: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        """Each end as it happens, by one property filter over all tasks; programs in guests are asked after."""
        return self._programs.wait(running, timeout_s)

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        """Those of these VMs that show this power state before the time is up."""
        return wait_for_power(self._session, vms, power, timeout_s)

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        """What the guest of this VM tells of itself once it is up, or when the time is."""
        return wait_for_guest(self._session, vm, timeout_s, address=address)

    def defined_attributes(self) -> frozenset[str]:
        """Names of the custom attributes that a VM may carry."""
        return self._performer.attributes.defined()

    def define_attribute(self, name: str, op_id: str) -> None:
        """There is a custom attribute of that name from then on."""
        self._performer.attributes.define(name, op_id)

    def roles(self, wishes: Sequence[RoleWish]) -> tuple[RoleState, ...]:
        """Each wanted role beside vCenter's of the same name."""
        from gpuops.vsphere.roles import compared

        return compared(self._session, wishes)

    def granted(self, inventory: Inventory) -> tuple[Mapping[str, frozenset[str]], str]:
        """(by object, all privileges of this login, the id of the root folder)."""
        from gpuops.vsphere.roles import granted

        return granted(self._session, inventory), self._session.service["rootFolder"][1]

    def write_role(self, wish: RoleWish, op_id: str) -> None:
        """vCenter's role of that name is the wanted one from then on. Raises OutcomeUnknown, NoPermission."""
        from gpuops.vsphere.roles import write

        write(self._session, wish, op_id)

    def create_vm(self, new: NewVm, op_id: str) -> TaskRef:
        """The task that makes a bare VM, sent once. Raises OutcomeUnknown when the reply was lost."""
        return create_vm(self._session, new, op_id)

    def folder_at(self, path: str) -> str:
        """The id of the folder for VMs at an inventory path."""
        return folder_at(self._session, path)

    def clone_vm(self, new: NewClone, op_id: str) -> TaskRef:
        """The task that makes a VM from a template, sent once. Raises OutcomeUnknown when the reply was lost."""
        return clone_vm(self._session, new, op_id)

    def adopt(self, step: Step, since: datetime) -> TaskRef | None:
        """For a lost reply: the step's own task among the recent ones queued after `since`."""
        return adopt(self._session, step, since)

    def started_by_this_login(self, vm: str, since: datetime) -> bool:
        """Whether a VM that runs does so by a start which this login asked for since then."""
        return started_by_this_login(self._session, vm, since)
