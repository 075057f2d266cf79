"""Request: the shape every verb has."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.plan.core.plan import Plan


class Request(Protocol):
    """A frozen dataclass whose fields are the options of a verb."""

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Refs of VMs whose devices the plan needs and the bulk read left out (those on hosts without GPUs)."""
        ...

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the plan needs (static DirectPath, device groups); often none."""
        ...

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """The change wanted on this snapshot. Raises UsageError for names that mean nothing here."""
        ...
