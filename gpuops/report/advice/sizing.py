"""What `gpuops size` prints: counts of sharers under each scheduler, what is recommended, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Self

from gpuops.advise.sizing.advice import GpuShare, SharersAdvice, SharersRow, SizedVm
from gpuops.advise.sizing.question import BusyHistory
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.capacity.sizing import SizingAnswer, SizingSource
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count

_MOST_VMS = 20
"""So many VMs have a row of their own."""
_A_WEEK = timedelta(days=7)


def sizing_text(found: SizingAnswer) -> Shown:
    """The counts as rows, then the VMs, the recommendation, and what it stands on."""
    parts: list[Shown] = [Text(_head(found), "bold"), _counts(found)]
    if found.sizing.vms:
        parts += [Text(), _vms(found)]
    parts += [*_recommended(found), *(Text(note, "dim") for note in _notes(found))]
    return parts


def _head(found: SizingAnswer) -> str:
    of = f" of {found.profile}" if found.profile is not None else ""
    match found.source:
        case SizingSource.NUMBERS:
            staggered = "" if found.overlap == 1.0 else f", each beside the next for {found.overlap:.0%} of its work"
            return f"VMs{of} that each keep a GPU busy {found.busy:.0%} of the time alone{staggered}"
        case SizingSource.WORKLOADS:
            return f"{count(len(found.sizing.vms), 'VM')}{of} by a file of workloads"
        case SizingSource.HISTORY:
            assert found.inventory is not None, "history is of a vCenter"
            read_at = f"read {format_zoned_minute(found.inventory.taken_at)}"
            vcenter = found.inventory.api_version
            return f"vCenter {vcenter}: {count(len(found.sizing.vms), 'VM')}{of} with a history, {read_at}"


def _counts(found: SizingAnswer) -> TextTable:
    headers = [word for policy in SchedulerPolicy for word in (policy.replace("-", " "), "done")]
    table = TextTable("on a GPU", *headers, right=range(len(headers)))
    for row in found.sizing.rows:
        cells: list[str | Text] = []
        for policy in SchedulerPolicy:
            share = row.shares[policy]
            cells += [_coloured(_slowdown(share), share, found), f"{share.throughput:.2f}"]
        table.add_row(str(row.sharers), *cells)
    return table


def _coloured(text: str, share: GpuShare, found: SizingAnswer) -> str | Text:
    allowed = found.sizing.limits.at_most
    return Text(text, "green") if allowed is not None and share.highest_slowdown <= allowed else text


def _slowdown(share: GpuShare) -> str:
    range_ = "" if share.low is None else f" ({share.low:.2f} to {share.high:.2f})"
    return f"{share.slowdown:.2f}{range_}"


def _vms(found: SizingAnswer) -> TextTable:
    """The VMs that suffer or need most, each workload once."""
    slowdowns = [f"{policy.replace('-', ' ')}, {found.sizing.vms_at} on a GPU" for policy in SchedulerPolicy]
    rows = (
        (
            vm.name,
            f"{vm.busy:.0%}",
            "-" if hours is None else f"{hours:.0f}",
            *(f"{vm.slowdown[policy]:.2f}" for policy in SchedulerPolicy),
            "yes" if vm.shares else Text("no", "yellow"),
        )
        for vm, hours in _listed(found)[:_MOST_VMS]
    )
    return TextTable("VM", "busy alone", "hours", *slowdowns, "may share", right=range(1, 6), whole=(0,), rows=rows)


def _listed(found: SizingAnswer) -> list[tuple[SizedVm, float | None]]:
    """Each VM with its hours of history, the busiest first; of equal ones of a workload one."""
    hours = found.history.hours if found.history is not None else (None,) * len(found.sizing.vms)
    each = sorted(zip(found.sizing.vms, hours, strict=True), key=lambda pair: (-pair[0].busy, pair[0].name))
    if found.source is SizingSource.HISTORY:
        return each
    return list({(vm.name, vm.shares): (vm, hours) for vm, hours in each}.values())


def _recommended(found: SizingAnswer) -> Iterator[Text]:
    allowed, advice = found.sizing.limits.at_most, found.sizing.advice
    if allowed is None:
        yield Text("say --at-most 1.2, and the most VMs are recommended by which none takes longer", "dim")
        return
    if advice is None:
        yield Text(f"recommended: none; not even one VM stays within {allowed:g}", "bold yellow")
        return
    vms = "1 VM" if advice.sharers == 1 else f"up to {advice.sharers} VMs"
    policy = advice.policy.replace("-", " ")
    said = f"recommended: {vms} on a GPU, {policy}: {_slowdown(advice.share)}, {allowed:g} is allowed"
    if found.sizing.vms:
        said += f"; {count(advice.gpus, 'GPU')} for {count(len(found.sizing.vms), 'VM')}"
    yield Text(said, "bold green")
    apart = _apart(found, advice)
    if apart:
        yield Text(f"should not share: {apart}", "yellow")


def _apart(found: SizingAnswer, advice: SharersAdvice) -> str:
    if advice.sharers == 1 and len(found.sizing.vms) > 1:
        return "any of them: two on a GPU take longer than is allowed"
    names = Counter(vm.name for vm in found.sizing.vms if not vm.shares)
    said = [name if times == 1 else f"{times} x {name}" for name, times in names.items()]
    return ", ".join(said[:5]) + (f" and {len(said) - 5} more" if len(said) > 5 else "")


def _notes(found: SizingAnswer) -> Iterator[str]:
    yield "slowdown: times as long as alone; done: the work of all on the GPU, what each does alone = 1"
    if any(share.low is not None for row in found.sizing.rows for share in row.shares.values()):
        yield "in brackets: a tenth of what VMs had is below, a tenth above; --at-most holds for that, and for each VM"
    history = found.history
    if history is not None:
        least, most = min(history.hours), max(history.hours)
        hours = f"{most:.0f} h" if f"{least:.0f}" == f"{most:.0f}" else f"{least:.0f} to {most:.0f} h"
        yield f"by {hours} of history of {count(len(history.hours), 'VM')} since {format_zoned_minute(history.since)}"
        if found.inventory is not None and found.inventory.taken_at - history.since < _A_WEEK:
            yield "that is less than a week: of other days, which may be busier, nothing is known"
        if history.full:
            yield f"GPUs that VMs share were full in {history.full:.0%} of the time: more than is known may be wanted"
    if found.pairs is not None:
        error = (
            "too few to say by how much" if found.pairs_error is None else f"by {found.pairs_error:.2f} of its speed"
        )
        yield f"corrected by {count(found.pairs_observed, 'observed pair')}; a VM beside another one is off {error}"
    if found.source is not SizingSource.HISTORY:
        yield "busy shares as they were stated, not measured; the model is within 15 % of published measurements"
    for name, reason in list((found.left_out or {}).items())[:_MOST_VMS]:
        yield f"left out: {name}: {reason}"


class SharedGpuRecord(DocumentRecord, frozen=True):
    """What VMs on one GPU come to under one scheduler."""

    slowdown: Annotated[float, "times as long as alone, in the mean of VMs"]
    low: Annotated[float | None, "a tenth of what VMs had on their days is below; null = there is nothing that differs"]
    high: Annotated[float | None, "a tenth is above"]
    worst: Annotated[float, "in the mean of its days, of the VM that suffers most"]
    throughput: Annotated[float, "the work of all of them together, what each does alone = 1"]


class SharersOnGpuRecord(DocumentRecord, frozen=True):
    """So many VMs on one GPU."""

    sharers: int
    schedulers: Annotated[dict[str, SharedGpuRecord], "best-effort, equal-share and fixed-share"]

    @classmethod
    def made_of(cls, row: SharersRow) -> Self:
        return cls(row.sharers, {policy.value: SharedGpuRecord.made_of(share) for policy, share in row.shares.items()})


class RecommendedSharersRecord(DocumentRecord, frozen=True):
    """The most VMs on a GPU that stay within what is allowed."""

    sharers: int
    scheduler: SchedulerPolicy
    gpus: Annotated[int, "that all VMs need, with those that should not share; 1 of plain numbers"]
    slowdown: Annotated[float, "times as long as alone, in the mean of VMs"]
    low: Annotated[float | None, "a tenth of what VMs had on their days is below; null = there is nothing that differs"]
    high: Annotated[float | None, "a tenth is above"]
    worst: Annotated[float, "in the mean of its days, of the VM that suffers most"]
    throughput: Annotated[float, "the work of all of them together, what each does alone = 1"]

    @classmethod
    def made_of(cls, advice: SharersAdvice) -> Self:
        return cls.from_attributes(advice, advice.share, scheduler=advice.policy)


class SizedVmRecord(DocumentRecord, frozen=True):
    """One VM, of a file of workloads each VM of each."""

    name: str
    busy: Annotated[float, "the share of the time that it keeps a GPU busy alone, in the mean"]
    hours: Annotated[float | None, "of history; null = its busy share was stated"]
    may_share: Annotated[bool, "false = it should have a GPU of its own"]
    slowdown: Annotated[dict[str, float], "by scheduler"]


class BusyHistoryRecord(DocumentRecord, frozen=True):
    """How much is known."""

    since: Moment
    hours_least: Annotated[float, "of the VM with the least"]
    hours_most: float
    full: Annotated[
        float, "in which share of the time GPUs that VMs share now were full, so that more may have been wanted"
    ]

    @classmethod
    def made_of(cls, history: BusyHistory) -> Self:
        return cls.from_attributes(history, hours_least=min(history.hours), hours_most=max(history.hours))


class LearnedPairsRecord(DocumentRecord, frozen=True):
    """What pairs of workloads that shared a GPU tell of each."""

    observed: int
    mean_error: Annotated[
        float | None, "by how much a speed is off on pairs that the fit does not know; null = too few pairs"
    ]
    sensitivity: Annotated[dict[str, float], "by workload, the share of its speed that it loses beside an average one"]
    pressure: Annotated[dict[str, float], "by workload, the share of its speed that an average one loses beside it"]


@printed("size", by="gpuops size")
class SizeDocument(PrintedDocument, frozen=True):
    """How many VMs may share a GPU, and under which vGPU scheduler."""

    source: Annotated[SizingSource, "where the busy shares are from"]
    vcenter: Annotated[str | None, "its instance uuid; null = none was asked"]
    read_at: Moment | None
    profile: Annotated[str | None, "the vGPU profile of all of them; null = none was said, or there are several"]
    most_per_gpu: Annotated[int | None, "as many vGPUs as a GPU holds of the profile, by which fixed share goes"]
    busy: Annotated[float | None, "of plain numbers the share of the time that each VM keeps a GPU busy alone"]
    overlap: Annotated[
        float, "of plain numbers the share of its work that each VM has beside the next; 1 = all together"
    ]
    at_most: Annotated[float | None, "the slowdown that is allowed; null = nothing is recommended"]
    guaranteed: Annotated[bool, "whether that must hold whatever the others do"]
    sizes: list[SharersOnGpuRecord]
    recommended: Annotated[
        RecommendedSharersRecord | None, "null = not asked for, or not even one VM stays within what is allowed"
    ]
    vms_at: Annotated[int | None, "with how many on a GPU the slowdown of each VM is told"]
    vms: Annotated[list[SizedVmRecord], "none of plain numbers"]
    history: Annotated[BusyHistoryRecord | None, "null = the busy shares were stated"]
    pairs: Annotated[LearnedPairsRecord | None, "null = no pair was observed"]
    left_out: Annotated[dict[str, str], "by name of a VM of which nothing can be said, why not"]


def sizing_document(found: SizingAnswer) -> SizeDocument:
    """The same for programs. null = not said, or not known."""
    sizing, history, pairs = found.sizing, found.history, found.pairs
    hours = history.hours if history is not None else (None,) * len(sizing.vms)
    vms = [
        SizedVmRecord.from_attributes(
            vm,
            hours=known,
            may_share=vm.shares,
            slowdown={policy.value: slowdown for policy, slowdown in vm.slowdown.items()},
        )
        for vm, known in zip(sizing.vms, hours, strict=True)
    ]
    learned = pairs and LearnedPairsRecord(
        found.pairs_observed, found.pairs_error, dict(pairs.sensitivity), dict(pairs.pressure)
    )
    return SizeDocument.from_attributes(
        found,
        sizing,
        sizing.limits,
        vcenter=found.inventory.vcenter if found.inventory is not None else None,
        read_at=found.inventory.taken_at if found.inventory is not None else None,
        most_per_gpu=sizing.limits.slots,
        sizes=sizing.rows,
        recommended=sizing.advice,
        vms_at=sizing.vms_at if sizing.vms else None,
        vms=vms,
        pairs=learned,
        left_out=dict(found.left_out or {}),
    )
