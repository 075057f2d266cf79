"""What `gpuops report` prints for people: the figures of the page in a screenful, and where the rest is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpuops.advise.evidence import Use
from gpuops.advise.showback import Showback
from gpuops.plan.doctor.finding import Severity
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory import heading
from gpuops.report.nights.history import history_summary
from gpuops.report.page.fleet_map import GpuUse
from gpuops.report.page.fleet_report import FleetReport, ReportDocument
from gpuops.report.text import count

_MOST_OWNERS = 10


def fleet_report_text(found: FleetReport, document: ReportDocument) -> Iterator[Shown]:
    """A heading and a line, or a short table, for each part. `document`: what the same report is for programs."""
    use = document.use
    yield heading(found.fleet.inventory, use.hosts, use.gpus)
    yield "GPUs: " + ", ".join(f"{getattr(use, f'gpus_{each.value}')} {_USES[each]}" for each in GpuUse)
    yield _room(document)
    yield ""
    yield Text(history_summary(found.nights), "bold") if found.nights.nights else "no nights in the journal"
    yield from _idle(found)
    yield from _attention(found)
    if document.diagnoses:
        yield f"{count(len(document.diagnoses), 'VM')} diagnosed; --html shows what may be at fault"
    yield from _owners(found.showback, document)


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
    told = f" ({fragmented:.0%} of what is free)" if fragmented is not None else ""
    unknown = use.free_not_known_gpus
    return parts + told + (f"; of {count(unknown, 'GPU')} that is not known" if unknown else "")


def _idle(found: FleetReport) -> Iterator[Shown]:
    if found.idle is None:
        yield "idle desktops: not asked; --policy FILE says which desktops and what is idle"
        return
    numbers = Counter(each.verdict.use for each in found.idle)
    yield "desktops: " + ", ".join(f"{numbers[use]} {use}" for use in Use)


def _attention(found: FleetReport) -> Iterator[Shown]:
    numbers = Counter(finding.severity for finding in found.examination.findings)
    if not numbers:
        yield "nothing stands in the way"
        return
    yield ", ".join(count(numbers[each], each.value) for each in Severity if numbers[each]) + ": gpuops doctor"


def _owners(found: Showback, document: ReportDocument) -> Iterator[Shown]:
    if not found.owners:
        return
    table = TextTable(f"owner ({document.showback.by})", "ML VMs", "GPU-hours", "share", right=(1, 2, 3))
    for each in found.owners[:_MOST_OWNERS]:
        exact = each.hours.exact
        hours = f"{each.hours.at_least:.1f}" + ("" if exact is not None else "+")
        share = "-" if each.percent is None else f"{each.percent:.2f}%"
        table.add_row(each.owner or "nobody", str(each.vms), hours, share)
    yield ["", table]
    if len(found.owners) > _MOST_OWNERS:
        yield Text(f"and {count(len(found.owners) - _MOST_OWNERS, 'more owner')}: --csv FILE", "dim")
