"""The reads of `gpuops serve`: a report of the fleet, past nights and changes, and metrics of them for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuops import clock
from gpuops.api import Site, history
from gpuops.config.date_text import parse_since
from gpuops.extras.web.http.current import FleetRead
from gpuops.extras.web.metrics_source import MetricSource
from gpuops.extras.web.metrics_view import MetricsWriter
from gpuops.extras.web.page.fleet_report import FleetReport, fleet_report_document
from gpuops.extras.web.page.html import site_figures
from gpuops.extras.web.reporting import fleet_report
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.report.advice.capacity_view import capacity_document
from gpuops.report.document import as_values
from gpuops.report.monitoring.doctor_view import doctor_document
from gpuops.report.monitoring.inventory_view import fleet_document
from gpuops.report.nights.desktop_use_view import idle_document
from gpuops.report.nights.history_view import HistoryDocument

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuops.extras.web.http.current import Current
    from gpuops.report.document import AnyDocument, Document


@dataclass(slots=True)
class ServedFleet:
    """The reads of one vCenter for its page; each reads as `gpuops report` does."""

    site: Site
    since: str | None
    policy: Policy | None
    owners: OwnerKey
    only_own: bool = False
    """Whether `history` has only this vCenter, because other sites share its journal."""
    newest: FleetReport | None = None
    figures: Document | None = None
    """The row of the newest report in the table of several sites."""

    def wait_for_change(self, timeout_s: float) -> bool:
        return self.site.vcenter.wait_for_change(timeout_s)

    def read(self) -> FleetRead:
        """Read vCenter, and return the report and the other documents. Raises NotConnected, StateDamaged."""
        site = self.site
        since = parse_since("--since", self.since, clock.wall_clock()) if self.since is not None else None
        measured = self.newest.measured if self.newest is not None else None
        report = fleet_report(site, since=since, policy=self.policy, owners=self.owners, measured=measured)
        past = history(site.state_dir, site.journal_url, vcenter=site.vcenter.uuid if self.only_own else None)
        policy_name = self.policy.name if self.policy is not None else None
        inventory = report.fleet.inventory
        documents: dict[str, Callable[[], AnyDocument]] = {
            "inventory": partial(fleet_document, report.fleet),
            "capacity": partial(capacity_document, report.capacity, policy_name),
            "doctor": partial(doctor_document, report.examination),
            "history": partial(HistoryDocument.made_of, past),
        }
        if report.idle is not None:
            documents["idle"] = partial(idle_document, report.idle, inventory, policy_name)
        report_values = as_values(fleet_report_document(report))
        self.newest, self.figures = report, site_figures(report_values)
        return FleetRead(report_values, documents)


class ServedMetrics:
    """Metrics for Prometheus, from the reads for the page: no further request to vCenter."""

    def __init__(self, vcenter: str) -> None:
        self._writer = MetricsWriter(vcenter)
        self._fleet: ServedFleet | None = None
        self._source: MetricSource | None = None

    def use_reads_of(self, fleet: ServedFleet) -> ServedFleet:
        """Take the values from the reads of this fleet from now on; return it."""
        self._source, self._fleet = MetricSource(fleet.site), fleet
        return fleet

    def text(self, now: Current) -> bytes:
        """Return the metrics; `gpuops_up` is 0 if vCenter does not answer. Not thread-safe."""
        newest = self._fleet.newest if self._fleet is not None else None
        if now.edition is None or now.trouble is not None or self._source is None or newest is None:
            return self._writer.text(None)
        fleet = newest.fleet
        return self._writer.text(self._source.values_of_read(fleet.inventory, fleet.catalog, now.edition.read_at))
