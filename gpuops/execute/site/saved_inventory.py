"""A saved inventory in place of a vCenter: plans can be made on it, and every change is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from gpuops.errors import Refused
from gpuops.execute.site.ports import Hosts
from gpuops.model.devices.other_device import Networks
from gpuops.model.measurements.measurement import Samples
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ObjectKind
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import Guest, PowerState
from gpuops.plan.core.steps import HostStep, HostTask, RunInGuest, Step


def _refuse() -> NoReturn:
    """Raise Refused."""
    raise Refused("a saved inventory cannot be changed", hint="use --vcenter instead of --inventory, or --dry-run")


class SavedHosts:
    """Implements `Hosts`: what the snapshot lacks stays unknown, and every change is refused."""

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return inventory

    def with_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return inventory

    def with_other_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return inventory

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        return {}

    def read_held_privileges(
        self, hosts: Collection[str], privileges: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        return {}

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> None:
        _refuse()

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        _refuse()

    def find_task(self, step: HostTask) -> TaskRef | None:
        return None

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        _refuse()


class SavedVcenter:
    """Implements `Vcenter`: reads return the snapshot, and every change is refused."""

    def __init__(self, snapshot: Inventory) -> None:
        self._snapshot = snapshot

    @property
    def uuid(self) -> str:
        return self._snapshot.vcenter

    @property
    def applied(self) -> bool | None:
        return False

    def no_way_in(self, hook: RunInGuest) -> str | None:
        return "a saved inventory knows no login for guests"

    @property
    def hosts(self) -> Hosts:
        return SavedHosts()

    def inventory(self) -> Inventory:
        return self._snapshot

    def with_config_targets(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return inventory

    def with_tags(self, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
        return inventory

    def samples(
        self,
        kind: str,
        refs: Sequence[str],
        names: Sequence[str],
        interval_s: int,
        span: tuple[datetime, datetime],
        pace: Callable[[], None],
    ) -> Iterator[Sequence[Samples]]:
        return iter(())

    def with_counters(
        self, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
    ) -> Inventory:
        return inventory

    def lacking(
        self, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
    ) -> Mapping[str, Collection[str]]:
        return {}

    def lacking_on_objects(
        self, needed: Mapping[ObjectKind, Mapping[str, Collection[str]]]
    ) -> Mapping[str, Collection[str]]:
        return {}

    def networks(self) -> Networks:
        return Networks()  # a snapshot has no networks

    def with_drs(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return inventory

    def with_creation(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return inventory

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return inventory

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        _refuse()

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        _refuse()

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        _refuse()

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        _refuse()

    def wait_for_change(self, timeout_s: float) -> bool:
        return False

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        return Guest(self._snapshot.vm(vm).tools_running, None)

    def defined_attributes(self) -> frozenset[str]:
        """Return the attributes that VMs of the snapshot carry."""
        return frozenset(name for vm in self._snapshot.vms.values() for name in vm.attributes)

    def check_attribute_names(self, names: Collection[str]) -> None:
        """Do nothing: all attributes of a snapshot are those of VMs."""

    def define_attribute(self, name: str, op_id: str) -> None:
        _refuse()

    def folder_at(self, path: str) -> str:
        _refuse()

    def find_task(self, step: Step, since: datetime, login: str = "", known: Collection[str] = ()) -> TaskRef | None:
        return None

    def started_by_this_login(self, vm: str, since: datetime, login: str = "") -> bool:
        """Return True: a snapshot has no history, so the journal's record of a start is trusted."""
        return True

    def started_by_others(self, vm: str, since: datetime) -> bool:
        return False

    def has_power_task_near(self, vm: str, moment: datetime) -> bool | None:
        return None
