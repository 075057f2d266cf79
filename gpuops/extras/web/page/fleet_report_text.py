"""The output of `gpuops report` without a page: its text, and GPU-hours by owner as CSV.

The text has the most important figures of the page, and which commands and options show more. The CSV has the columns
of FOCUS, which tools for cloud costs read: a line is one run of an ML VM in a night, or the part of it that belongs to
one owner. gpuops knows hours and no prices:
costs are 0 in `XXX`, the code of ISO 4217 for "no currency", and the tool multiplies `ConsumedQuantity` by its price.
Source: FinOps Open Cost and Usage Specification 1.2: names and meaning of the columns that gpuops can fill, and moments
in UTC as `2026-11-20T20:01:00Z`. Columns of its own begin with `x_`, as the specification asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gpuops.advise.gpu_hours import OwnedRun, Showback
from gpuops.advise.idle import Use
from gpuops.extras.web.page.fleet_map import GpuUse
from gpuops.extras.web.page.fleet_report import FleetReport, ReportDocument
from gpuops.model.time_text import format_stamp
from gpuops.plan.doctor.host_findings import Severity
from gpuops.report.json_and_csv import Cell, csv_text
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory_view import heading
from gpuops.report.nights.history_view import history_summary
from gpuops.report.text import count

_SHOWN_OWNERS = 10


def fleet_report_text(report: FleetReport, document: ReportDocument) -> Iterator[Shown]:
    """Yield a heading, and a line or a short table for each part. `document` is the document of the same report."""
    use = document.use
    yield heading(report.fleet.inventory, use.hosts, use.gpus)
    yield "GPUs: " + ", ".join(
        f"{getattr(use, f'gpus_{use_of_gpu.value}')} {_GPU_USE_WORDS[use_of_gpu]}" for use_of_gpu in GpuUse
    )
    yield _free_text(document)
    yield ""
    yield Text(history_summary(report.nights), "bold") if report.nights.nights else "no nights in the journal"
    yield from _idle_desktops(report)
    yield from _findings(report)
    if document.diagnoses:
        yield f"{count(len(document.diagnoses), 'VM')} diagnosed; --html FILE shows the probable causes"
    yield from _owners(report.showback, document)


_GPU_USE_WORDS = {
    GpuUse.FREE: "free",
    GpuUse.PARTLY: "partly used",
    GpuUse.FULL: "full",
    GpuUse.UNKNOWN: "not known",
}


def _free_text(document: ReportDocument) -> str:
    use = document.use
    parts = f"free for vGPUs: {count(use.free_whole_gpus, 'whole GPU')}, {use.free_in_parts:.1f} in parts"
    fragmented = use.fragmented
    share = f" ({fragmented:.0%} of what is free)" if fragmented is not None else ""
    unknown = use.free_not_known_gpus
    return parts + share + (f"; unknown for {count(unknown, 'GPU')}" if unknown else "")


def _idle_desktops(report: FleetReport) -> Iterator[Shown]:
    if report.idle is None:
        yield "idle desktops: not checked; --policy FILE defines the desktops and when they are idle"
        return
    numbers = Counter(judged.verdict.use for judged in report.idle)
    yield "desktops: " + ", ".join(f"{numbers[use]} {use}" for use in Use)


def _findings(report: FleetReport) -> Iterator[Shown]:
    numbers = Counter(finding.severity for finding in report.examination.findings)
    if not numbers:
        yield "nothing stands in the way"
        return
    yield (
        ", ".join(count(numbers[severity], severity.value) for severity in Severity if numbers[severity])
        + ": gpuops doctor"
    )


def _owners(showback: Showback, document: ReportDocument) -> Iterator[Shown]:
    """Yield the owners with the most GPU-hours; `+` = at least, as some hours are not certain."""
    if not showback.owners:
        return
    table = TextTable(f"owner ({document.showback.by})", "ML VMs", "GPU-hours", "share", right=(1, 2, 3))
    for owner in showback.owners[:_SHOWN_OWNERS]:
        exact = owner.hours.exact
        hours = f"{owner.hours.at_least:.1f}" + ("" if exact is not None else "+")
        share = "-" if owner.percent is None else f"{owner.percent:.2f}%"
        table.add_row(owner.owner or "no owner", str(owner.vms), hours, share)
    yield ["", table]
    if len(showback.owners) > _SHOWN_OWNERS:
        yield Text(f"and {count(len(showback.owners) - _SHOWN_OWNERS, 'more owner')}: --csv FILE", "dim")


FOCUS_COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost",
    "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "SubAccountId", "SubAccountName",
    "SubAccountType", "x_GpuHoursAtLeast", "x_Night", "x_Profiles",
)  # fmt: skip


def focus_csv(showback: Showback) -> str:
    """Return the CSV, with a line for each run.

    If the hours are not certain, the quantity is empty and `x_GpuHoursAtLeast` has the minimum.
    """
    return csv_text(FOCUS_COLUMNS, (row for run in showback.runs for row in _rows(run)))


def _rows(run: OwnedRun) -> Iterator[tuple[Cell, ...]]:
    """Yield the line of a run, in the order of `FOCUS_COLUMNS`. Costs are 0 in `XXX`, the code for no currency."""
    hours = run.held.hours(run.vm.gpus)
    exact = None if hours.exact is None else round(hours.exact, 4)
    begins, ends = run.held.begins, run.held.ends
    # FOCUS requires a billing period, also for a run whose begin is unknown
    month = (begins or run.night.begins).astimezone(UTC)
    name = run.owner or None
    yield (
        0, run.night.vcenter, run.night.vcenter, "vCenter", "XXX",
        _utc(_month_end(month)), _utc(_month_start(month)), "Usage", None, "GPU of an ML VM in a night", "Usage-Based",
        _utc(ends), _utc(begins), exact, "GPU-Hours", 0, 0,
        "gpuops", 0, exact, "GPU-Hours", "gpuops", "gpuops", run.vm.uuid or run.vm.ref,
        run.vm.name, "Virtual Machine", "AI and Machine Learning", "vGPU", name, name,
        None if name is None else "Owner", round(hours.at_least, 4), run.night.id, " ".join(run.vm.profiles),
    )  # fmt: skip


def _month_start(moment: datetime) -> datetime:
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _month_end(moment: datetime) -> datetime:
    """Return the first moment of the next month, because the ends in FOCUS are exclusive."""
    begin = _month_start(moment)
    return begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else format_stamp(moment)
