"""The outcome of one measurement, and the content of a store of measurements, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Self

from msgspec import field

from gpuops.model.measurements.measurement import Cycle, Span, Stored, StoredTier, StoredVcenter
from gpuops.model.time_text import format_minute
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, VcenterDocument, printed
from gpuops.report.layout import Shown, Text

_GAPS_SHOWN = 10


def cycle_text(cycle: Cycle) -> Shown:
    """Return what one observation measured, which use is unknown, and which gap was filled, a line for each."""
    if cycle.until is None or cycle.begin is None:
        return Text("nothing to do: the last look was less than five minutes ago", "bold")
    lines = [
        Text(
            f"measured {_span(Span(cycle.begin, cycle.until))}: {cycle.vms_measured} of {cycle.vms} VMs, "
            f"{cycle.hosts_measured} of {cycle.hosts} hosts, {cycle.calls} calls"
        )
    ]
    if cycle.vms_gpu_unknown:
        lines.append(Text(f"use of the GPU is unknown, not zero: {cycle.vms_gpu_unknown} VMs with vGPUs", "yellow"))
    if cycle.hosts_entered is not None:
        lines.append(Text(f"the hosts' own nvidia-smi: {cycle.hosts_entered} of {cycle.hosts} hosts"))
    if cycle.filled is not None:
        lines.append(Text(f"asked of vCenter's own five-minute averages: {_span(cycle.filled)}"))
    return tuple(lines)


class ObservedSpanRecord(DocumentRecord, frozen=True):
    """A while."""

    from_: Moment = field(name="from")
    until: Moment

    @classmethod
    def made_of(cls, span: Span) -> Self:
        return cls(Moment(span.begin.isoformat()), Moment(span.until.isoformat()))


@printed("observe", by="gpuops observe --once")
class ObserveDocument(VcenterDocument, frozen=True):
    """One look at the performance counters of a vCenter."""

    from_: Annotated[
        Moment | None, "from when on it is measured; null = the last look was less than five minutes ago"
    ] = field(name="from")
    until: Moment | None
    filled: Annotated[ObservedSpanRecord | None, "what was asked of vCenter's own five-minute averages"]
    vms: Annotated[int, "how many there are, templates left out"]
    vms_measured: Annotated[int, "of how many there was a sample"]
    vms_gpu_unknown: Annotated[int, "VMs with vGPUs whose use of the GPU is unknown, which is not zero"]
    hosts: int
    hosts_measured: int
    calls: Annotated[int, "of QueryPerf"]
    hosts_entered: Annotated[int | None, "of how many the own nvidia-smi told something; null = none was asked"]

    @classmethod
    def made_of(cls, cycle: Cycle) -> Self:
        return cls.from_attributes(cycle, from_=cycle.begin)


def stored_text(stored: Stored) -> Shown:
    """Return what is stored, by vCenter."""
    if not stored.vcenters:
        return (
            Text(f"nothing was measured yet in {stored.store}", "bold"),
            Text("next: gpuops observe --once --vcenter NAME"),
        )
    lines = [Text(stored.store, "bold")]
    for vcenter in stored.vcenters:
        lines += _vcenter_lines(vcenter)
    return tuple(lines)


class StoredTierRecord(DocumentRecord, frozen=True):
    """What is stored in steps of one length."""

    step_s: int
    entities: Annotated[int, "VMs and hosts"]
    blocks: int
    bytes: Annotated[int, "of the packed blocks, without what the database adds"]
    since: Annotated[Moment | None, "where the oldest block begins"]

    @classmethod
    def made_of(cls, tier: StoredTier) -> Self:
        return cls.from_attributes(tier, step_s=int(tier.step.total_seconds()), bytes=tier.stored_bytes)


class StoredVcenterRecord(DocumentRecord, frozen=True):
    """What is stored of one vCenter."""

    vcenter: Annotated[str, "its instance uuid"]
    since: Annotated[Moment | None, "since when it was observed"]
    until: Moment | None
    gaps: Annotated[list[ObservedSpanRecord], "when it was not, in between"]
    tiers: Annotated[list[StoredTierRecord], "steps of five minutes, and hours"]

    @classmethod
    def made_of(cls, vcenter: StoredVcenter) -> Self:
        since, until = (vcenter.observed[0].begin, vcenter.observed[-1].until) if vcenter.observed else (None, None)
        return cls.from_attributes(vcenter, since=since, until=until, gaps=list(_gaps(vcenter)))


@printed("observe-status", by="gpuops observe status")
class ObserveStatusDocument(PrintedDocument, frozen=True):
    """What the store of measurements holds."""

    store: Annotated[str, "the file, or the database without its password"]
    vcenters: list[StoredVcenterRecord]


def _vcenter_lines(vcenter: StoredVcenter) -> Iterator[Text]:
    yield Text("")
    yield Text(f"vCenter {vcenter.vcenter}", "bold")
    if vcenter.observed:
        yield Text(f"  observed        {_span(Span(vcenter.observed[0].begin, vcenter.observed[-1].until))}")
    for tier in vcenter.tiers:
        size = f"{tier.stored_bytes / 1_000_000:.1f} MB"
        since = f", since {format_minute(tier.since)}" if tier.since is not None else ""
        yield Text(f"  steps of {_step(tier.step):<6} {tier.entities} VMs and hosts, {size}{since}")
    gaps = list(_gaps(vcenter))
    for gap in gaps[-_GAPS_SHOWN:]:
        yield Text(f"  not observed    {_span(gap)}", "yellow")
    if len(gaps) > _GAPS_SHOWN:
        yield Text(f"  and {len(gaps) - _GAPS_SHOWN} older gaps", "yellow")


def _gaps(vcenter: StoredVcenter) -> Iterator[Span]:
    return (Span(earlier.until, later.begin) for earlier, later in pairwise(vcenter.observed))


def _step(step: timedelta) -> str:
    return "1 h" if step >= timedelta(hours=1) else f"{step // timedelta(minutes=1)} min"


def _span(span: Span) -> str:
    return f"{format_minute(span.begin)} to {format_minute(span.until)} UTC"
