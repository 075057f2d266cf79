"""Text and documents of `gpuops measure`: its steps, what was measured, and how well the model fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Self

from gpuops.extras.sizing.measure_plan import (
    WHOLE,
    MeasuredCurve,
    MeasurePlan,
    NormalisedCount,
    later_commands,
    measured_curve,
    overheads,
)
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.sharing_measurement import MeasuredDevice
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, optional_figure

if TYPE_CHECKING:
    from gpuops.model.measurements.sharing_measurement import MeasuredCount, SharingMeasurement
    from gpuops.plan.hosts.change.rolling_plan import ChangeReport

GOES_ON = "the same command continues; gpuops measure --remove removes its VMs"


def measure_plan_text(plan: MeasurePlan) -> Shown:
    """Return the steps of the measurement, or the reasons for a refusal."""
    if plan.rejections:
        return [*_rejection_lines(plan), *(Text(line, "yellow") for line in plan.notes)]
    table = TextTable("", "what", "of what", rows=_steps(plan))
    notes = (*plan.notes, *_later(plan))
    return [Text(_place(plan), "bold"), table, *(Text(line, "dim") for line in notes)]


def _rejection_lines(plan: MeasurePlan) -> list[Text]:
    return [Text(rejection.line, "red") for rejection in plan.rejections]


def _place(plan: MeasurePlan) -> str:
    host = plan.host.name if plan.host is not None else "an unknown host"
    where = f"{host}, GPU {plan.gpu.address} ({plan.gpu.name})" if plan.gpu is not None else host
    return f"measurement {plan.measurement.id} on {where}, scheduler {plan.in_force or 'not known'}"


def _steps(plan: MeasurePlan) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the plan: the verb, its object, and a detail."""
    wish = plan.measurement.wish
    for whole in plan.whole:
        yield "run", f"in 1 VM that is made for it, with a whole GPU: {whole}", wish.command
    if plan.now:
        most = max(plan.now)
        yield "make", f"{count(most, 'VM')}, {plan.measurement.name(1)} and on", f"template {wish.template}"
        yield "change", f"each: vGPU {plan.profile}, bound to that GPU, powered on", "all of it whole for each count"
        begins = "together" if wish.overlap == 1.0 else f"each beside the next for {wish.overlap:.0%} of its work"
        yield "run", f"in {', '.join(map(str, plan.now))} of them, {begins}", wish.command
        yield "remove", "all of them, with their disks", "by name and notes"
    elif not plan.whole:
        yield "nothing", "all counts of this scheduler are measured", ""


def _later(plan: MeasurePlan) -> Iterator[str]:
    if plan.measurement.wish.sets_schedulers:
        for scheduler in plan.later:
            yield f"{scheduler} is not in force: it is set after that, by a reboot of the host, and measured too"
        return
    for scheduler, command in zip(plan.later, later_commands(plan), strict=True):
        yield f"{scheduler} is not in force: {command}; then the same again measures it"


def measured_text(plan: MeasurePlan, measurement: SharingMeasurement, vms_left: tuple[str, ...]) -> Shown:
    """Return the measured curve, the model that fits best, and what is still to be done."""
    curve = measured_curve(measurement.done, plan.slots, measurement.wish.overlap)
    headers = ("VMs", "seconds", "times as long", "least", "most", "model", "GPU use")
    whole = [measured for measured in measurement.done if measured.device is not MeasuredDevice.SHARE]
    rows = (*(NormalisedCount(measured, None) for measured in whole), *curve.rows)
    table = TextTable("scheduler", *headers, right=range(1, 8), rows=map(_cells, rows))
    lines: list[Shown] = [Text(f"{measurement.wish.template}, {plan.profile}", "bold"), table]
    lines += [Text(f"{_count_name(row)} failed: {row.count.error}", "red") for row in curve.rows if row.count.error]
    lines += [Text(f"{_device_name(measured)} failed: {measured.error}", "red") for measured in whole if measured.error]
    lines += [Text(note, "dim") for note in (*_notes(curve), *_overhead_notes(measurement), *plan.notes)]
    lines += [*_rejection_lines(plan), *(Text(line, "yellow") for line in _later(plan))]
    lines += [Text(f"left: {line}", "red") for line in vms_left]
    if vms_left or plan.later or plan.rejections or any(measured.error for measured in measurement.done):
        lines.append(Text(GOES_ON, "dim"))
    return lines


def _overhead_notes(measurement: SharingMeasurement) -> Iterator[str]:
    """Yield how much slower one VM alone is than one with DirectPath I/O."""
    overhead_factors = overheads(measurement.done)
    if overhead_factors:
        percentages = ", ".join(
            f"{name.replace('-', ' ')} {100 * (times - 1):+.1f} %" for name, times in overhead_factors.items()
        )
        yield f"one VM alone, to DirectPath I/O: {percentages}"


def _device_name(count: MeasuredCount) -> str:
    return WHOLE if count.device is MeasuredDevice.WHOLE_VGPU else "DirectPath I/O"


def _count_name(row: NormalisedCount) -> str:
    return f"{row.count.scheduler}, {count(row.count.sharers, 'VM')}"


def _cells(row: NormalisedCount) -> tuple[str, ...]:
    times = row.count.times_s
    seconds = f"{sum(times) / len(times):.2f}" if times else "-"
    return (
        row.count.scheduler.replace("-", " ") if row.count.device is MeasuredDevice.SHARE else _device_name(row.count),
        str(row.count.sharers),
        seconds,
        *(optional_figure(factor, ".2f", unknown="-") for factor in (row.mean, row.least, row.most, row.model)),
        optional_figure(row.count.gpu_use, ".0%", unknown="-"),
    )


def _notes(curve: MeasuredCurve) -> Iterator[str]:
    if curve.busy is None:
        yield "no busy share is fitted: it needs 2 VMs or more under best effort or equal share"
    else:
        yield (
            f"fits best: each VM keeps the GPU busy {curve.busy:.0%} of the time alone; the model is off by "
            f"{curve.worst_error or 0.0:.0%} at most (gpuops size --busy {curve.busy:.2f})"
        )
    staggered_rows = [
        row for row in curve.rows if row.count.times_s and row.count.apart_s > 0.05 * min(row.count.times_s)
    ]
    if staggered_rows:
        worst = max(row.count.apart_s for row in staggered_rows)
        yield f"VMs began up to {worst:.1f} s apart, a twentieth of their time or more: run a longer command"


class LaterSchedulerRecord(DocumentRecord, frozen=True):
    """A scheduler that is measured once it is in force."""

    scheduler: SchedulerPolicy
    command: Annotated[str, "the command that sets it"]


class MeasuredSharersRecord(DocumentRecord, frozen=True):
    """How long the command took in one number of VMs on the GPU."""

    scheduler: SchedulerPolicy
    sharers: int
    times_s: Annotated[list[float], "seconds of each VM; empty = it failed"]
    apart_s: Annotated[float, "between the first start and the last, of those that begin together"]
    slowdown: Annotated[float | None, "mean, times as long as one VM alone under that scheduler"]
    low: Annotated[float | None, "of the VM with the least slowdown"]
    high: float | None
    model: Annotated[float | None, "slowdown by the model with the fitted busy share"]
    gpu_use: Annotated[
        float | None, "use of the GPU meanwhile, 0 to 1; null = its host has no complete sample of that time"
    ]
    error: str | None

    @classmethod
    def made_of(cls, row: NormalisedCount) -> Self:
        error = row.count.error or None
        return cls.from_attributes(row, row.count, slowdown=row.mean, low=row.least, high=row.most, error=error)


class MeasuredWholeRecord(DocumentRecord, frozen=True):
    """How long the command took in one VM with a complete GPU."""

    device: MeasuredDevice
    times_s: Annotated[list[float], "empty = it failed"]
    error: str | None

    @classmethod
    def made_of(cls, measured: MeasuredCount) -> Self:
        return cls.from_attributes(measured, error=measured.error or None)


class MeasuredChangeRecord(DocumentRecord, frozen=True):
    """A rolling change of the host that sets its scheduler."""

    feasible: bool
    applied: Annotated[bool, "false = it is planned"]
    exit_code: Annotated[int, "as of gpuops host scheduler set"]
    rejections: list[str]

    @classmethod
    def made_of(cls, change: ChangeReport) -> Self:
        rejections = [rejection.line for rejection in change.plan.rejections]
        return cls.from_attributes(change, change.plan, rejections=rejections)


@printed("size-measure", by="gpuops measure")
class SizeMeasureDocument(PrintedDocument, frozen=True):
    """How long a command took in VMs that shared a GPU."""

    id: Annotated[str, "of the measurement, part of the names of its VMs"]
    template: str
    profile: str
    command: str
    overlap: Annotated[float, "the share of its work that each VM has beside the next; 1 = all together"]
    host: str | None
    gpu: Annotated[str | None, "PCI address; null = no GPU takes the VMs"]
    scheduler: Annotated[SchedulerPolicy | None, "in force on that GPU; null = not known"]
    applied: Annotated[bool, "whether VMs were made, or only planned"]
    now: Annotated[list[int], "the counts that this call measures"]
    later: list[LaterSchedulerRecord]
    rejections: Annotated[list[str], "why the measurement does not start"]
    counts: Annotated[list[MeasuredSharersRecord], "all measured counts, with those of earlier calls"]
    whole: Annotated[list[MeasuredWholeRecord], "one VM with a complete GPU"]
    overheads: Annotated[
        dict[str, float], "one VM alone to DirectPath I/O, times as long; by scheduler, and of the whole vGPU"
    ]
    notes: Annotated[list[str], "what is not measured, and why"]
    changes: Annotated[
        list[MeasuredChangeRecord], "of the host, to set each scheduler and at the end the first one again"
    ]
    busy: Annotated[float | None, "the busy share by which the model is closest; null = not known"]
    worst_error: Annotated[float | None, "largest error of the model, as a share"]
    left: Annotated[list[str], "VMs of the measurement that could not be removed, each with its reason"]


def measured_document(
    plan: MeasurePlan,
    measurement: SharingMeasurement,
    vms_left: tuple[str, ...],
    *,
    applied: bool,
    changes: Sequence[ChangeReport] = (),
) -> SizeMeasureDocument:
    """Return the measurement as a document. null = not known."""
    curve = measured_curve(measurement.done, plan.slots, measurement.wish.overlap)
    return SizeMeasureDocument.from_attributes(
        measurement,
        curve,
        plan,
        measurement.wish,
        template=measurement.wish.template,
        host=plan.host.name if plan.host is not None else None,
        gpu=plan.gpu.address if plan.gpu is not None else None,
        scheduler=plan.in_force,
        applied=applied,
        later=[LaterSchedulerRecord(scheduler, line) for scheduler, line in _later_schedulers(plan)],
        rejections=[rejection.line for rejection in plan.rejections],
        counts=curve.rows,
        whole=[measured for measured in measurement.done if measured.device is not MeasuredDevice.SHARE],
        overheads=dict(overheads(measurement.done)),
        changes=changes,
        left=vms_left,
    )


def _later_schedulers(plan: MeasurePlan) -> Iterator[tuple[SchedulerPolicy, str]]:
    yield from zip(plan.later, later_commands(plan), strict=True)


def removal_text(
    measurement: SharingMeasurement | None,
    vms: tuple[str, ...],
    vms_left: tuple[str, ...],
    undone: str = "",
    *,
    applied: bool,
) -> Shown:
    """Return the VMs of an unfinished measurement, and whether they were removed."""
    if measurement is None:
        return Text("nothing to remove: no measurement of this vCenter was cut off")
    head = f"measurement {measurement.id} of {measurement.wish.template}: {count(len(vms), 'VM')}"
    after = [Text(undone, "yellow")] if undone else []
    if vms_left:
        lines = [Text(f"left: {line}") for line in vms_left]
        return [Text(f"{head}, not all of them removed", "red"), *lines, *after]
    outcome_text = "removed, and it is forgotten" if applied else "to be removed"
    return [Text(f"{head} {outcome_text}", "bold"), *(Text(f"  {name}") for name in vms), *after]


@printed("size-measure-remove", by="gpuops measure --remove")
class SizeMeasureRemoveDocument(PrintedDocument, frozen=True):
    """The VMs of an unfinished measurement."""

    id: Annotated[str | None, "null = no measurement was cut off"]
    vms: Annotated[list[str], "its VMs that still existed"]
    left: Annotated[list[str], "those that could not be removed, each with its reason"]
    undone: Annotated[
        str | None, "a scheduler that differs from the one before the measurement, and the command that sets it back"
    ]
    applied: bool
