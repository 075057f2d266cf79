"""Text and document of `gpuops size`: numbers of VMs on a GPU under each scheduler, and a recommendation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Self

from gpuops.extras.sizing.advice import GpuShare, SharersAdvice, SharersRow, SizedVm
from gpuops.extras.sizing.busy_shares import BusyHistory
from gpuops.extras.sizing.size_request import SizingAnswer, SizingSource
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.core.rejection import some_names
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, optional_figure

_MOST_VMS = 20
"""Number of VMs that have a row."""
_A_WEEK = timedelta(days=7)


def sizing_text(answer: SizingAnswer) -> Shown:
    """Return the rows for each number of VMs, then the VMs, the recommendation, and its basis."""
    parts: list[Shown] = [Text(_head(answer), "bold"), _counts(answer)]
    if answer.sizing.vms:
        parts += [Text(), _vms(answer)]
    parts += [*_recommendation(answer), *(Text(note, "dim") for note in _notes(answer))]
    return parts


def _head(answer: SizingAnswer) -> str:
    of_profile = f" of {answer.profile}" if answer.profile is not None else ""
    match answer.source:
        case SizingSource.NUMBERS:
            staggered = "" if answer.overlap == 1.0 else f", each beside the next for {answer.overlap:.0%} of its work"
            return f"VMs{of_profile} that each keep a GPU busy {answer.busy:.0%} of the time alone{staggered}"
        case SizingSource.WORKLOADS:
            return f"{count(len(answer.sizing.vms), 'VM')}{of_profile} by a file of workloads"
        case SizingSource.HISTORY:
            assert answer.inventory is not None, "history is of a vCenter"
            read_at = f"read {format_zoned_minute(answer.inventory.taken_at)}"
            vcenter = answer.inventory.api_version
            return f"vCenter {vcenter}: {count(len(answer.sizing.vms), 'VM')}{of_profile} with a history, {read_at}"


def _counts(answer: SizingAnswer) -> TextTable:
    headers = [word for policy in SchedulerPolicy for word in (policy.replace("-", " "), "done")]
    table = TextTable("on a GPU", *headers, right=range(len(headers)))
    for row in answer.sizing.rows:
        cells: list[str | Text] = []
        for policy in SchedulerPolicy:
            share = row.shares[policy]
            cells += [_highlight_allowed(_slowdown(share), share, answer), f"{share.throughput:.2f}"]
        table.add_row(str(row.sharers), *cells)
    return table


def _highlight_allowed(text: str, share: GpuShare, answer: SizingAnswer) -> str | Text:
    """Return the cell in green if its slowdown is allowed."""
    allowed = answer.sizing.limits.at_most
    return Text(text, "green") if allowed is not None and share.highest_slowdown <= allowed else text


def _slowdown(share: GpuShare) -> str:
    range_ = "" if share.low is None else f" ({share.low:.2f} to {share.high:.2f})"
    return f"{share.slowdown:.2f}{range_}"


def _vms(answer: SizingAnswer) -> TextTable:
    """Return the table of the busiest VMs. Its slowdowns are those of `vms_at` VMs on a GPU."""
    slowdowns = [f"{policy.replace('-', ' ')}, {answer.sizing.vms_at} on a GPU" for policy in SchedulerPolicy]
    rows = (
        (
            vm.name,
            f"{vm.busy:.0%}",
            optional_figure(hours, ".0f", unknown="-"),
            *(f"{vm.slowdown[policy]:.2f}" for policy in SchedulerPolicy),
            "yes" if vm.shares else Text("no", "yellow"),
        )
        for vm, hours in _vms_with_hours(answer)[:_MOST_VMS]
    )
    return TextTable("VM", "busy alone", "hours", *slowdowns, "may share", right=range(1, 6), whole=(0,), rows=rows)


def _vms_with_hours(answer: SizingAnswer) -> list[tuple[SizedVm, float | None]]:
    """Return the VMs with their hours of history, the busiest first; equal VMs of a workload once."""
    hours = answer.history.hours if answer.history is not None else (None,) * len(answer.sizing.vms)
    vms_with_hours = sorted(zip(answer.sizing.vms, hours, strict=True), key=lambda pair: (-pair[0].busy, pair[0].name))
    if answer.source is SizingSource.HISTORY:
        return vms_with_hours
    return list({(vm.name, vm.shares): (vm, hours) for vm, hours in vms_with_hours}.values())


def _recommendation(answer: SizingAnswer) -> Iterator[Text]:
    """Yield the recommended number of VMs on a GPU with its scheduler, and the VMs that should not share a GPU."""
    allowed, advice = answer.sizing.limits.at_most, answer.sizing.advice
    if allowed is None:
        yield Text("add --at-most 1.2 for a recommendation: the most VMs on a GPU of which none takes longer", "dim")
        return
    if advice is None:
        yield Text(f"recommended: none; not even one VM stays within {allowed:g}", "bold yellow")
        return
    vms = "1 VM" if advice.sharers == 1 else f"up to {advice.sharers} VMs"
    policy = advice.policy.replace("-", " ")
    recommendation = f"recommended: {vms} on a GPU, {policy}: {_slowdown(advice.share)}, {allowed:g} is allowed"
    if answer.sizing.vms:
        recommendation += f"; {count(advice.gpus, 'GPU')} for {count(len(answer.sizing.vms), 'VM')}"
    yield Text(recommendation, "bold green")
    vms_apart = _vms_that_should_not_share(answer, advice)
    if vms_apart:
        yield Text(f"should not share: {vms_apart}", "yellow")


def _vms_that_should_not_share(answer: SizingAnswer, advice: SharersAdvice) -> str:
    """Return the VMs that should not share a GPU."""
    if advice.sharers == 1 and len(answer.sizing.vms) > 1:
        return "all of these VMs: two on a GPU take longer than is allowed"
    names = Counter(vm.name for vm in answer.sizing.vms if not vm.shares)
    names_text = [name if times == 1 else f"{times} x {name}" for name, times in names.items()]
    return some_names(names_text, 5)


def _notes(answer: SizingAnswer) -> Iterator[str]:
    yield "slowdown: times as long as alone; done: the work of all on the GPU, what each does alone = 1"
    if any(share.low is not None for row in answer.sizing.rows for share in row.shares.values()):
        yield "in brackets: a tenth of what VMs had is below, a tenth above; --at-most holds for that, and for each VM"
    history = answer.history
    if history is not None:
        least, most = min(history.hours), max(history.hours)
        hours = f"{most:.0f} h" if f"{least:.0f}" == f"{most:.0f}" else f"{least:.0f} to {most:.0f} h"
        yield f"by {hours} of history of {count(len(history.hours), 'VM')} since {format_zoned_minute(history.since)}"
        if answer.inventory is not None and answer.inventory.taken_at - history.since < _A_WEEK:
            yield "that is less than a week: of other days, which may be busier, nothing is known"
        if history.full:
            yield f"GPUs that VMs share were full in {history.full:.0%} of the time: more than is known may be wanted"
    if answer.pairs is not None:
        error = (
            "too few to say by how much" if answer.pairs_error is None else f"by {answer.pairs_error:.2f} of its speed"
        )
        yield f"corrected by {count(answer.pairs_observed, 'observed pair')}; a VM beside another one is off {error}"
    if answer.source is not SizingSource.HISTORY:
        yield "busy shares as they were stated, not measured; the model is within 15 % of published measurements"
    for name, reason in list((answer.left_out or {}).items())[:_MOST_VMS]:
        yield f"left out: {name}: {reason}"


class SharedGpuRecord(DocumentRecord, frozen=True):
    """The slowdown and throughput of VMs on one GPU under one scheduler."""

    slowdown: Annotated[float, "times as long as alone, in the mean of VMs"]
    low: Annotated[float | None, "a tenth of what VMs had on their days is below; null = there is nothing that differs"]
    high: Annotated[float | None, "a tenth is above"]
    worst: Annotated[float, "in the mean of its days, of the VM that suffers most"]
    throughput: Annotated[float, "the work of all of them together, what each does alone = 1"]


class SharersOnGpuRecord(DocumentRecord, frozen=True):
    """One number of VMs on one GPU."""

    sharers: int
    schedulers: Annotated[dict[str, SharedGpuRecord], "best-effort, equal-share and fixed-share"]

    @classmethod
    def made_of(cls, row: SharersRow) -> Self:
        return cls(row.sharers, {policy.value: SharedGpuRecord.made_of(share) for policy, share in row.shares.items()})


class RecommendedSharersRecord(DocumentRecord, frozen=True):
    """The most VMs on a GPU that stay within what is allowed."""

    sharers: int
    scheduler: SchedulerPolicy
    gpus: Annotated[int, "GPUs for all VMs, with those that should not share; 1 for plain numbers"]
    slowdown: Annotated[float, "times as long as alone, in the mean of VMs"]
    low: Annotated[float | None, "a tenth of what VMs had on their days is below; null = there is nothing that differs"]
    high: Annotated[float | None, "a tenth is above"]
    worst: Annotated[float, "in the mean of its days, of the VM that suffers most"]
    throughput: Annotated[float, "the work of all of them together, what each does alone = 1"]

    @classmethod
    def made_of(cls, advice: SharersAdvice) -> Self:
        return cls.from_attributes(advice, advice.share, scheduler=advice.policy)


class SizedVmRecord(DocumentRecord, frozen=True):
    """One VM, of a file or of a vCenter."""

    name: str
    busy: Annotated[float, "mean share of the time that it keeps a GPU busy alone"]
    hours: Annotated[float | None, "of history; null = its busy share was stated"]
    may_share: Annotated[bool, "false = it should have a GPU of its own"]
    slowdown: Annotated[dict[str, float], "by scheduler"]


class BusyHistoryRecord(DocumentRecord, frozen=True):
    """The length of the measured history."""

    since: Moment
    hours_least: Annotated[float, "of the VM with the shortest history"]
    hours_most: float
    full: Annotated[float, "share of the time in which shared GPUs were full, so that VMs may have needed more"]

    @classmethod
    def made_of(cls, history: BusyHistory) -> Self:
        return cls.from_attributes(history, hours_least=min(history.hours), hours_most=max(history.hours))


class LearnedPairsRecord(DocumentRecord, frozen=True):
    """How workloads that shared a GPU slow each other down."""

    observed: int
    mean_error: Annotated[
        float | None, "by how much a speed is off on pairs that the fit does not know; null = too few pairs"
    ]
    sensitivity: Annotated[dict[str, float], "by workload, the share of its speed that it loses next to an average one"]
    pressure: Annotated[dict[str, float], "by workload, the share of its speed that an average one loses next to it"]


@printed("size", by="gpuops size")
class SizeDocument(PrintedDocument, frozen=True):
    """How many VMs may share a GPU, and under which vGPU scheduler."""

    source: Annotated[SizingSource, "where the busy shares are from"]
    vcenter: Annotated[str | None, "its instance uuid; null = no vCenter was read"]
    read_at: Moment | None
    profile: Annotated[str | None, "the vGPU profile of all VMs; null = none was given, or there are several"]
    most_per_gpu: Annotated[int | None, "vGPUs of the profile that fit on a GPU; fixed share divides by this"]
    busy: Annotated[float | None, "for plain numbers, the share of the time that each VM keeps a GPU busy alone"]
    overlap: Annotated[
        float, "for plain numbers, the share of its work in which each VM overlaps the next; 1 = all together"
    ]
    at_most: Annotated[float | None, "the slowdown that is allowed; null = nothing is recommended"]
    guaranteed: Annotated[bool, "whether it must hold at any load of the other VMs"]
    sizes: list[SharersOnGpuRecord]
    recommended: Annotated[
        RecommendedSharersRecord | None, "null = not requested, or not even one VM stays within at_most"
    ]
    vms_at: Annotated[int | None, "the number of VMs on a GPU for the slowdown of each VM"]
    vms: Annotated[list[SizedVmRecord], "empty for plain numbers"]
    history: Annotated[BusyHistoryRecord | None, "null = the busy shares were stated"]
    pairs: Annotated[LearnedPairsRecord | None, "null = no pair was observed"]
    left_out: Annotated[dict[str, str], "reason by name, for each VM without a judgement"]


def sizing_document(answer: SizingAnswer) -> SizeDocument:
    """Return the answer as a document. null = not given, or not known."""
    sizing, history, pairs = answer.sizing, answer.history, answer.pairs
    hours = history.hours if history is not None else (None,) * len(sizing.vms)
    vms = [
        SizedVmRecord.from_attributes(
            vm,
            hours=vm_hours,
            may_share=vm.shares,
            slowdown={policy.value: slowdown for policy, slowdown in vm.slowdown.items()},
        )
        for vm, vm_hours in zip(sizing.vms, hours, strict=True)
    ]
    learned = pairs and LearnedPairsRecord(
        answer.pairs_observed, answer.pairs_error, dict(pairs.sensitivity), dict(pairs.pressure)
    )
    return SizeDocument.from_attributes(
        answer,
        sizing,
        sizing.limits,
        vcenter=answer.inventory.vcenter if answer.inventory is not None else None,
        read_at=answer.inventory.taken_at if answer.inventory is not None else None,
        most_per_gpu=sizing.limits.slots,
        sizes=sizing.rows,
        recommended=sizing.advice,
        vms_at=sizing.vms_at if sizing.vms else None,
        vms=vms,
        pairs=learned,
        left_out=dict(answer.left_out or {}),
    )
