"""A saved inventory in the place of a vCenter: plans are made on it, nothing can be changed through it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from gpuops.errors import Refused
from gpuops.model.inventory import Inventory
from gpuops.model.task import TaskEnd, TaskRef
from gpuops.model.vm import PowerState
from gpuops.plan.rotation.setup import NewVm
from gpuops.plan.steps import Step


class SavedVcenter:
    """Implements `Vcenter`: reads give the snapshot, every change is Refused."""

    def __init__(self, snapshot: Inventory) -> None:
        self._snapshot = snapshot

    @property
    def uuid(self) -> str:
        return self._snapshot.vcenter

    def inventory(self) -> Inventory:
        return self._snapshot

    def with_config_targets(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        return inventory

    def with_tags(self, inventory: Inventory) -> Inventory:
        return inventory

    def lacking(
        self, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
    ) -> Mapping[str, Collection[str]]:
        return {}

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return inventory

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        self._refuse()

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        self._refuse()

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        self._refuse()

    def defined_attributes(self) -> frozenset[str]:
        """As far as a snapshot tells: those that a VM carries."""
        return frozenset(name for vm in self._snapshot.vms.values() for name in vm.attributes)

    def define_attribute(self, name: str, op_id: str) -> None:
        self._refuse()

    def create_vm(self, new: NewVm, op_id: str) -> TaskRef:
        self._refuse()

    def adopt(self, step: Step, since: datetime) -> TaskRef | None:
        return None

    def _refuse(self) -> NoReturn:
        raise Refused("a saved inventory cannot be changed", hint="use --vcenter instead of --inventory, or --dry-run")
