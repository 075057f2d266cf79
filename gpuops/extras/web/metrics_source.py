"""The values of `gpuops metrics`, read again only after a change, and the page that requests get.

The threads that answer requests only wait for the page; one other thread reads vCenter and makes it. So the session of
vCenter and the journal stay in one thread, and many requests at once cost one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final, Protocol

from gpuops import clock
from gpuops.api import Site, catalog_of
from gpuops.console.opening import reports_other_vcenters
from gpuops.errors import StateDamaged
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.past.past_runs import FollowedHistory
from gpuops.execute.rotation.status import standing
from gpuops.execute.state.http_listener import GetHandler, ListenOption
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.observe.store_reads import newest_use
from gpuops.extras.web.metrics_view import CONTENT_TYPE, MetricsWriter, MetricValues, merged_families
from gpuops.plan.capacity.capacity_request import capacity

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import TypeVar

    from gpuops.extras.fleet.sites.site_services import SiteProcess
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
        self._last_read: tuple[Inventory, Catalog, Capacity, datetime] | None = None
        self._last_read_s = 0.0
        self._measured: NewestUse | None = None
        self._overdue: tuple[tuple[Overdue, ...], float] | None = None
        """Overdue vCenters and the time of the read (`passed_s`)."""
        self.damaged: list[StateDamaged] = []
        """Errors of this machine's files at the last call."""

    def values(self, *, follow: bool = False) -> MetricValues:
        """Return the current values. `follow`: read vCenter only after a notice of a change, or after LONGEST_S.

        Raises NotConnected, and UsageError for the URL of a journal that does not exist.
        """
        return self._with_local_files(*self._read(follow))

    def values_of_read(self, inventory: Inventory, catalog: Catalog, read_at: datetime) -> MetricValues:
        """Return the values for an inventory that the caller has read; not thread-safe. Raises as `values`."""
        if self._last_read is None or self._last_read[0] is not inventory:
            self._last_read = inventory, catalog, _capacity_now_and_empty(inventory, catalog), read_at
        return self._with_local_files(*self._last_read)

    def _with_local_files(
        self, inventory: Inventory, catalog: Catalog, room: Capacity, read_at: datetime
    ) -> MetricValues:
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

        self._measured = read_source("measurements", lambda: self._newest_use(inventory))
        history = read_source("journal", self._history.events)
        # not read again if it is damaged: the error would be reported twice
        night = read_source("journal", lambda: standing(self._site, inventory)) if "journal" not in sources else None
        overdue = read_source("journal", self._overdue_vcenters) if "journal" not in sources else None
        diagnoses = read_source("diagnoses", lambda: Diagnoses(self._site.state_dir).newest(inventory.vcenter)) or {}
        for source, content in (
            ("measurements", self._measured),
            ("journal", history),
            ("diagnoses", diagnoses or None),
        ):
            if content is not None:
                sources.setdefault(source, True)
        return MetricValues(
            inventory, catalog, room, read_at, self._measured, history, night, overdue or (), diagnoses, sources
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
        return newest_use(*site.measurements_store, inventory.vcenter, entities, inventory.taken_at, self._measured)

    def _read(self, follow: bool) -> tuple[Inventory, Catalog, Capacity, datetime]:
        """Return the last read of vCenter, or a new one after a change, after LONGEST_S, or without `follow`."""
        vcenter, now_s = self._site.vcenter, self._site.passed_s()
        is_old = self._last_read is None or not follow or now_s - self._last_read_s >= LONGEST_S
        # ask for changes only after a successful read: while vCenter is unreachable, each such call takes long
        if self._last_read is None or is_old or vcenter.wait_for_change(0.0):
            self._last_read = None  # a notice comes once: after a failed read the next call must read
            read_at = clock.wall_clock()
            inventory = self._site.with_health(vcenter.inventory())
            catalog = catalog_of(inventory)
            self._last_read = inventory, catalog, _capacity_now_and_empty(inventory, catalog), read_at
            self._last_read_s = now_s
        return self._last_read


def _capacity_now_and_empty(inventory: Inventory, catalog: Catalog) -> Capacity:
    """Return the capacity now, and the capacity if no VM held a vGPU."""
    holding = [vm for vm in inventory.vms.values() if vm.may_run and vm.profiles]
    return capacity(inventory, catalog, desktops=holding)


OPTION: Final = ListenOption("--listen", 9188)
BEGINS_S: Final = 1.0
"""How long a page without values is kept while the process of a site is being started."""
PATIENCE_S: Final = 8.0
"""How long a request waits for a new page: by default Prometheus gives up after 10 s."""
LATE_S: Final = 60.0
"""How long an expired page is still returned to a request that waited in vain for a new one."""
LONGEST_KEPT_S: Final = 300.0
"""The longest time that a page is kept, unless `--every` is longer."""
BUSY_PART: Final = 50
"""A page is kept at least this many times as long as its read took: a large vCenter is read less often."""
_PLAIN: Final = "text/plain; charset=utf-8"


class RequestedPage:
    """The newest page. A request after it has expired waits for a new one, which another thread publishes."""

    def __init__(self) -> None:
        self._lifetime_s = 0.0
        self._changed = Condition()
        self._page = b""
        self._made_s = 0.0
        self._number = 0
        self._asked = False

    def request_if_expired(self) -> None:
        """Request a new page if the last one has expired, without waiting for it."""
        with self._changed:
            if self._age_s() >= self._lifetime_s:
                self._asked = True
                self._changed.notify_all()

    def ask(self, patience_s: float | None = None) -> bytes | None:
        """Return the page; None if a new one takes too long (`patience_s`) and the last one is too old."""
        with self._changed:
            if self._age_s() < self._lifetime_s:
                return self._page
            self._asked, number = True, self._number
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._number > number, PATIENCE_S if patience_s is None else patience_s)
            return self._page if self._number > number or self._age_s() < self._lifetime_s + LATE_S else None

    def wait_until_asked(self) -> None:
        """Wait until a new page is requested."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked)

    def publish(self, page: bytes, lifetime_s: float) -> None:
        """Set the new page, which expires after this time."""
        with self._changed:
            self._page, self._made_s, self._asked = page, clock.passed_s(), False
            self._lifetime_s = lifetime_s
            self._number += 1
            self._changed.notify_all()

    def _age_s(self) -> float:
        return clock.passed_s() - self._made_s


def page_lifetime_s(every_s: float, took_s: float) -> float:
    """Return how long a page is kept that took `took_s` to make.

    >>> page_lifetime_s(30.0, 0.1), page_lifetime_s(30.0, 2.0), page_lifetime_s(30.0, 60.0)
    (30.0, 100.0, 300.0)
    """
    return max(every_s, min(BUSY_PART * took_s, LONGEST_KEPT_S))


class SitePages:
    """The pages of several vCenters, made in parallel and merged.

    No request waits for a vCenter that did not answer the last time; it is asked again in the background.
    """

    def __init__(self, processes: Sequence[SiteProcess], every_s: float, timeout_s: float) -> None:
        self._every_s, self._timeout_s = every_s, timeout_s
        self._pages = [
            (site_process, RequestedPage(), MetricsWriter(site_process.site).text(None)) for site_process in processes
        ]
        self._away: set[str] = set()
        for process, page, unread_text in self._pages:
            Thread(target=self._make_pages, args=(process, page, unread_text), name=process.site, daemon=True).start()

    def ask(self) -> bytes:
        """Return the merged pages; a vCenter without a new page in time has `gpuops_up 0`."""
        for _, page, _ in self._pages:
            page.request_if_expired()
        deadline_s = clock.passed_s() + PATIENCE_S  # for all pages together
        texts = []
        for process, page, unread_text in self._pages:
            patience_s = 0.0 if process.site in self._away else max(0.0, deadline_s - clock.passed_s())
            texts.append((page.ask(patience_s) or unread_text).decode())
        return merged_families(texts).encode()

    def _make_pages(self, process: SiteProcess, page: RequestedPage, unread_text: bytes) -> None:
        """Make the page of one site each time that it is requested. `unread_text`: its page while
        vCenter is unreachable.
        """
        from gpuops.extras.fleet.sites.site_services import SiteAway

        while True:
            page.wait_until_asked()
            try:
                text, took_s = process.ask(None, self._timeout_s)
            except SiteAway:
                self._away.add(process.site)
                page.publish(unread_text, BEGINS_S)
                continue
            if text is None:
                self._away.add(process.site)
            else:
                self._away.discard(process.site)
            page.publish(text or unread_text, page_lifetime_s(self._every_s, took_s))


class Page(Protocol):
    """The content of an answer."""

    def ask(self) -> bytes | None: ...


def handler(page: Page, unread_text: bytes) -> type[GetHandler]:
    """Return the handler of requests: it answers with the page, or with `unread_text` if that takes too long."""

    class MetricsRequest(GetHandler):
        def page(self, path: str) -> tuple[int, str, bytes]:
            if path != "/metrics":
                return 404, _PLAIN, b"not found: the metrics are at /metrics\n"
            newest = page.ask()
            return 200, CONTENT_TYPE, unread_text if newest is None else newest

    return MetricsRequest
