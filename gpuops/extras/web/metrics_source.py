"""Reads the values of `gpuops metrics` repeatedly: what did not change is neither read nor computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.api import Site, catalog_of
from gpuops.console.opening import reports_other_vcenters
from gpuops.errors import StateDamaged
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.past.history import FollowedHistory
from gpuops.execute.rotation.status import standing
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.observe.store_reads import newest_use
from gpuops.extras.web.metrics_view import MetricValues
from gpuops.plan.capacity.capacity_request import capacity

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import TypeVar

    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.measurements.measurement import NewestUse
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.capacity.capacity_request import Capacity
    from gpuops.plan.rotation.returns.return_time import Overdue

    T = TypeVar("T")

LONGEST_S: Final = 300.0
"""vCenter is read after this time even without a notice: it sends notices of power, hosts and maintenance mode only."""


class MetricSource:
    """One vCenter, and this machine's files about it. Every request to vCenter is a read."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._history = FollowedHistory(site.state_dir, site.journal_url, site.vcenter.uuid)
        self._seen: tuple[Inventory, Catalog, Capacity, datetime] | None = None
        self._seen_s = 0.0
        self._used: NewestUse | None = None
        self._overdue: tuple[tuple[Overdue, ...], float] | None = None
        """Overdue vCenters and the time of the read (`passed_s`)."""
        self.damaged: list[StateDamaged] = []
        """Errors of this machine's files at the last call."""

    def values(self, *, follow: bool = False) -> MetricValues:
        """Return the current values. `follow`: read vCenter only after a notice of a change, or after LONGEST_S.

        Raises NotConnected, and UsageError for the URL of a journal that does not exist.
        """
        return self._with_local(*self._read(follow))

    def of_read(self, inventory: Inventory, catalog: Catalog, read_at: datetime) -> MetricValues:
        """Return the values for a read of the caller; not thread-safe. Raises UsageError as `values`."""
        if self._seen is None or self._seen[0] is not inventory:
            self._seen = inventory, catalog, _room(inventory, catalog), read_at
        return self._with_local(*self._seen)

    def _with_local(self, inventory: Inventory, catalog: Catalog, room: Capacity, read_at: datetime) -> MetricValues:
        """Return these values, with those of the journal, the measurements and the diagnoses on this machine.

        Errors of these files are in `damaged`.
        """
        self.damaged, sources = [], {}

        def read_source(name: str, read: Callable[[], T]) -> T | None:
            """Return the values of a file; None if it is missing or damaged."""
            try:
                return read()
            except StateDamaged as error:
                self.damaged.append(error)
                sources[name] = False
                return None

        self._used = read_source("measurements", lambda: self._newest_use(inventory))
        history = read_source("journal", self._history.events)
        # not read again if it is damaged: the error would be reported twice
        night = read_source("journal", lambda: standing(self._site, inventory)) if "journal" not in sources else None
        overdue = read_source("journal", self._overdue_vcenters) if "journal" not in sources else None
        diagnoses = read_source("diagnoses", lambda: Diagnoses(self._site.state_dir).newest(inventory.vcenter)) or {}
        for source, content in (("measurements", self._used), ("journal", history), ("diagnoses", diagnoses or None)):
            if content is not None:
                sources.setdefault(source, True)
        return MetricValues(
            inventory, catalog, room, read_at, self._used, history, night, overdue or (), diagnoses, sources
        )

    def _overdue_vcenters(self) -> tuple[Overdue, ...]:
        now_s = self._site.passed_s()
        if self._overdue is None or now_s - self._overdue[1] >= LONGEST_S:
            site = self._site
            only = None if reports_other_vcenters() else site.vcenter.uuid
            self._overdue = (
                overdue_vcenters(site.state_dir, site.journal_url, site.clock, damaged=self.damaged.append, only=only),
                now_s,
            )
        return self._overdue[0]

    def _newest_use(self, inventory: Inventory) -> NewestUse | None:
        site = self._site
        entities = {host.ref for host in inventory.hosts.values() if host.gpus}
        entities |= {vm.ref for vm in inventory.vms.values() if vm.profiles}
        return newest_use(*site.measurements_store, inventory.vcenter, entities, inventory.taken_at, self._used)

    def _read(self, follow: bool) -> tuple[Inventory, Catalog, Capacity, datetime]:
        """Return the last read of vCenter, or a new one after a change, after LONGEST_S, or without `follow`."""
        vcenter, now_s = self._site.vcenter, self._site.passed_s()
        is_old = self._seen is None or not follow or now_s - self._seen_s >= LONGEST_S
        # ask for changes only after a successful read: while vCenter is unreachable, each such call takes long
        if self._seen is None or is_old or vcenter.wait_for_change(0.0):
            self._seen = None  # a notice comes once: after a failed read the next call must read
            read_at = clock.wall_clock()
            inventory = self._site.with_health(vcenter.inventory())
            catalog = catalog_of(inventory)
            self._seen = inventory, catalog, _room(inventory, catalog), read_at
            self._seen_s = now_s
        return self._seen


def _room(inventory: Inventory, catalog: Catalog) -> Capacity:
    """Return the capacity now, and the capacity if no VM held a vGPU."""
    holding = [vm for vm in inventory.vms.values() if vm.may_run and vm.profiles]
    return capacity(inventory, catalog, desktops=holding)
