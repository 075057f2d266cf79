"""GPU-hours by owner as CSV with the columns of FOCUS, which tools for cloud costs read.

A line is one run of an ML VM in a night, or the part of it that belongs to one owner. gpuops knows hours and no prices:
costs are 0 in `XXX`, the code of ISO 4217 for "no currency", and the tool multiplies `ConsumedQuantity` by its price.
Source: FinOps Open Cost and Usage Specification 1.2: names and meaning of the columns that gpuops can fill, and moments
in UTC as `2026-11-20T20:01:00Z`. Columns of its own begin with `x_`, as the specification asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gpuops.advise.gpu_hours import OwnedRun, Showback
from gpuops.model.time_text import format_stamp
from gpuops.report.csv_text import Cell, csv_text

FOCUS_COLUMNS: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost",
    "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "SubAccountId", "SubAccountName",
    "SubAccountType", "x_GpuHoursAtLeast", "x_Night", "x_Profiles",
)  # fmt: skip


def focus_csv(showback: Showback) -> str:
    """Return a line for each run. If the hours are not certain, the quantity is empty and `x_GpuHoursAtLeast` has the
    minimum."""
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
    first = _month_start(moment)
    return first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else format_stamp(moment)
