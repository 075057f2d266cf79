"""What is needed of a vCenter to read and change the settings of hosts. `vsphere` implements it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Protocol

from gpuops.model.inventory import Inventory
from gpuops.model.task import TaskRef
from gpuops.plan.core.steps import HostStep, HostTask


class Hosts(Protocol):
    """The hosts of one vCenter. Every method raises only errors of the gpuops tree."""

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with the settings of these hosts asked for; what cannot be read is said in them."""
        ...

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """By host, those of the needed privileges that this login does not have; a vCenter that does not tell: none."""
        ...

    def held(self, hosts: Collection[str], asked: Collection[str]) -> Mapping[str, Collection[str]]:
        """By host, those of the privileges that this login has; a host that vCenter does not tell of is left out."""
        ...

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> None:
        """Send one step, once; it is done when this returns.

        Raises OutcomeUnknown when the reply was lost: the caller reads back, and never sends it again blind.
        """
        ...

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        """Send one step that vCenter makes a task of. Raises OutcomeUnknown when the reply was lost."""
        ...

    def adopt(self, step: HostTask) -> TaskRef | None:
        """A task of this kind that runs on the step's host now, whoever asked for it; None = there is none."""
        ...

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        """Those of these hosts that are connected and have booted at another moment than this, within the time; with
        them those that are gone from vCenter, which nobody waits for."""
        ...
