"""The text of `gpuops report`: the most important figures of the page, and which commands and options show more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuops.advise.gpu_hours import Showback
from gpuops.advise.idle import Use
from gpuops.extras.web.page.fleet_map import GpuUse
from gpuops.extras.web.page.fleet_report import FleetReport, ReportDocument
from gpuops.plan.doctor.finding import Severity
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory import heading
from gpuops.report.nights.history import history_summary
from gpuops.report.text import count

_MOST_OWNERS = 10


def fleet_report_text(report: FleetReport, document: ReportDocument) -> Iterator[Shown]:
    """Yield a heading, and a line or a short table for each part. `document` is the document of the same report."""
    use = document.use
    yield heading(report.fleet.inventory, use.hosts, use.gpus)
    yield "GPUs: " + ", ".join(
        f"{getattr(use, f'gpus_{use_of_gpu.value}')} {_USES[use_of_gpu]}" for use_of_gpu in GpuUse
    )
    yield _room(document)
    yield ""
    yield Text(history_summary(report.nights), "bold") if report.nights.nights else "no nights in the journal"
    yield from _idle(report)
    yield from _attention(report)
    if document.diagnoses:
        yield f"{count(len(document.diagnoses), 'VM')} diagnosed; --html shows what may be at fault"
    yield from _owners(report.showback, document)


_USES = {
    GpuUse.FREE: "free",
    GpuUse.PARTLY: "partly used",
    GpuUse.FULL: "full",
    GpuUse.UNKNOWN: "not known",
}


def _room(document: ReportDocument) -> str:
    use = document.use
    parts = f"free for vGPUs: {count(use.free_whole_gpus, 'whole GPU')}, {use.free_in_parts:.1f} in parts"
    fragmented = use.fragmented
    share = f" ({fragmented:.0%} of what is free)" if fragmented is not None else ""
    unknown = use.free_not_known_gpus
    return parts + share + (f"; of {count(unknown, 'GPU')} that is not known" if unknown else "")


def _idle(report: FleetReport) -> Iterator[Shown]:
    if report.idle is None:
        yield "idle desktops: not asked; --policy FILE says which desktops and what is idle"
        return
    numbers = Counter(judged.verdict.use for judged in report.idle)
    yield "desktops: " + ", ".join(f"{numbers[use]} {use}" for use in Use)


def _attention(report: FleetReport) -> Iterator[Shown]:
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
    for owner in showback.owners[:_MOST_OWNERS]:
        exact = owner.hours.exact
        hours = f"{owner.hours.at_least:.1f}" + ("" if exact is not None else "+")
        share = "-" if owner.percent is None else f"{owner.percent:.2f}%"
        table.add_row(owner.owner or "no owner", str(owner.vms), hours, share)
    yield ["", table]
    if len(showback.owners) > _MOST_OWNERS:
        yield Text(f"and {count(len(showback.owners) - _MOST_OWNERS, 'more owner')}: --csv FILE", "dim")
