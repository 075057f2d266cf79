"""What `gpuops size --measure` prints: what is made, run and removed; what was measured, and what the model says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuops.advise.sizing.measured import WHOLE, MeasuredCurve, NormalisedCount, measured_curve, overheads
from gpuops.model.measurements.sharing_measurement import MeasuredDevice
from gpuops.plan.capacity.measure import MeasurePlan, later_commands
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

if TYPE_CHECKING:
    from gpuops.model.devices.scheduler import SchedulerPolicy
    from gpuops.model.measurements.sharing_measurement import MeasuredCount, SharingMeasurement
    from gpuops.plan.hosts.change.report import ChangeReport

GOES_ON = "the same again goes on; gpuops size --measure --remove removes what is left of it"


def measure_plan_text(plan: MeasurePlan) -> Shown:
    """What is done, step by step, or every reason why not."""
    if plan.rejections:
        return [*_refused(plan), *(Text(visible(line), "yellow") for line in plan.notes)]
    table = TextTable("", "what", "of what")
    for verb, what, of in _steps(plan):
        table.add_row(verb, visible(what), visible(of))
    notes = (*plan.notes, *_later(plan))
    return [Text(_place(plan), "bold"), table, *(Text(visible(line), "dim") for line in notes)]


def _refused(plan: MeasurePlan) -> list[Text]:
    return [Text(visible(each.line), "red") for each in plan.rejections]


def _place(plan: MeasurePlan) -> str:
    host = visible(plan.host.name) if plan.host is not None else "an unknown host"
    where = f"{host}, GPU {plan.gpu.address} ({visible(plan.gpu.name)})" if plan.gpu is not None else host
    return f"measurement {plan.measurement.id} on {where}, scheduler {plan.in_force or 'not known'}"


def _steps(plan: MeasurePlan) -> Iterator[tuple[str, str, str]]:
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


def measured_text(plan: MeasurePlan, measurement: SharingMeasurement, left: tuple[str, ...]) -> Shown:
    """The curve, what is fitted to it, and what is still to be done."""
    curve = measured_curve(measurement.done, plan.slots, measurement.wish.overlap)
    headers = ("VMs", "seconds", "times as long", "least", "most", "model", "GPU use")
    table = TextTable("scheduler", *headers, right=range(1, 8))
    whole = [each for each in measurement.done if each.device is not MeasuredDevice.SHARE]
    for row in (*(NormalisedCount(each, None) for each in whole), *curve.rows):
        table.add_row(*_cells(row))
    lines: list[Shown] = [Text(f"{visible(measurement.wish.template)}, {visible(plan.profile)}", "bold"), table]
    lines += [Text(f"{_named(row)} failed: {visible(row.count.error)}", "red") for row in curve.rows if row.count.error]
    lines += [Text(f"{_named_whole(each)} failed: {visible(each.error)}", "red") for each in whole if each.error]
    lines += [Text(note, "dim") for note in (*_notes(curve), *_overhead_notes(measurement), *plan.notes)]
    lines += [*_refused(plan), *(Text(line, "yellow") for line in _later(plan))]
    lines += [Text(f"left: {visible(line)}", "red") for line in left]
    if left or plan.later or plan.rejections or any(each.error for each in measurement.done):
        lines.append(Text(GOES_ON, "dim"))
    return lines


def _overhead_notes(measurement: SharingMeasurement) -> Iterator[str]:
    found = overheads(measurement.done)
    if found:
        said = ", ".join(f"{name.replace('-', ' ')} {100 * (times - 1):+.1f} %" for name, times in found.items())
        yield f"one VM alone, to DirectPath I/O: {said}"


def _named_whole(count: MeasuredCount) -> str:
    return WHOLE if count.device is MeasuredDevice.WHOLE_VGPU else "DirectPath I/O"


def _named(row: NormalisedCount) -> str:
    return f"{row.count.scheduler}, {count(row.count.sharers, 'VM')}"


def _cells(row: NormalisedCount) -> tuple[str, ...]:
    times = row.count.times_s
    seconds = f"{sum(times) / len(times):.2f}" if times else "-"
    return (
        row.count.scheduler.replace("-", " ") if row.count.device is MeasuredDevice.SHARE else _named_whole(row.count),
        str(row.count.sharers),
        seconds,
        *("-" if each is None else f"{each:.2f}" for each in (row.mean, row.least, row.most, row.model)),
        "-" if row.count.gpu_use is None else f"{row.count.gpu_use:.0%}",
    )


def _notes(curve: MeasuredCurve) -> Iterator[str]:
    if curve.busy is None:
        yield "no busy share is fitted: best effort or equal share with 2 VMs or more tells it"
    else:
        yield (
            f"fits best: each VM keeps the GPU busy {curve.busy:.0%} of the time alone; the model is off by "
            f"{curve.worst_error or 0.0:.0%} at the most (gpuops size --busy {curve.busy:.2f})"
        )
    late = [row for row in curve.rows if row.count.times_s and row.count.apart_s > 0.05 * min(row.count.times_s)]
    if late:
        worst = max(row.count.apart_s for row in late)
        yield f"VMs began up to {worst:.1f} s apart, a twentieth of what they took or more: better run a longer command"


def measured_document(
    plan: MeasurePlan,
    measurement: SharingMeasurement,
    left: tuple[str, ...],
    *,
    applied: bool,
    changes: Sequence[ChangeReport] = (),
) -> Document:
    """The same for programs. null = not known."""
    curve = measured_curve(measurement.done, plan.slots, measurement.wish.overlap)
    wish = measurement.wish
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "size-measure",
        "id": measurement.id,
        "template": wish.template,
        "profile": plan.profile,
        "command": wish.command,
        "overlap": wish.overlap,
        "host": plan.host.name if plan.host is not None else None,
        "gpu": str(plan.gpu.address) if plan.gpu is not None else None,
        "scheduler": plan.in_force.value if plan.in_force is not None else None,
        "applied": applied,
        "now": list(plan.now),
        "later": [{"scheduler": each.value, "command": line} for each, line in _paired(plan)],
        "rejections": [each.line for each in plan.rejections],
        "counts": [_count(row) for row in curve.rows],
        "whole": [
            {"device": each.device.value, "times_s": list(each.times_s), "error": each.error or None}
            for each in measurement.done
            if each.device is not MeasuredDevice.SHARE
        ],
        "overheads": dict(overheads(measurement.done)),
        "notes": list(plan.notes),
        "changes": [
            {
                "feasible": each.plan.feasible,
                "applied": each.applied,
                "exit_code": each.exit_code,
                "rejections": [rejection.line for rejection in each.plan.rejections],
            }
            for each in changes
        ],
        "busy": curve.busy,
        "worst_error": curve.worst_error,
        "left": list(left),
    }


def _paired(plan: MeasurePlan) -> Iterator[tuple[SchedulerPolicy, str]]:
    yield from zip(plan.later, later_commands(plan), strict=True)


def _count(row: NormalisedCount) -> Document:
    return {
        "scheduler": row.count.scheduler.value,
        "sharers": row.count.sharers,
        "times_s": list(row.count.times_s),
        "apart_s": row.count.apart_s,
        "slowdown": row.mean,
        "low": row.least,
        "high": row.most,
        "model": row.model,
        "gpu_use": row.count.gpu_use,
        "error": row.count.error or None,
    }


def left_text(
    measurement: SharingMeasurement | None,
    vms: tuple[str, ...],
    left: tuple[str, ...],
    undone: str = "",
    *,
    applied: bool,
) -> Shown:
    """What a measurement that did not end has left, and what became of it."""
    if measurement is None:
        return Text("nothing to remove: no measurement of this vCenter was cut off")
    head = f"measurement {measurement.id} of {visible(measurement.wish.template)}: {count(len(vms), 'VM')}"
    after = [Text(visible(undone), "yellow")] if undone else []
    if left:
        lines = [Text(f"left: {visible(line)}") for line in left]
        return [Text(f"{head}, not all of them removed", "red"), *lines, *after]
    said = "removed, and it is forgotten" if applied else "to be removed"
    return [Text(f"{head} {said}", "bold"), *(Text(f"  {visible(name)}") for name in vms), *after]


def left_document(
    measurement: SharingMeasurement | None,
    vms: tuple[str, ...],
    left: tuple[str, ...],
    undone: str = "",
    *,
    applied: bool,
) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "size-measure-remove",
        "id": measurement.id if measurement is not None else None,
        "vms": list(vms),
        "left": list(left),
        "undone": undone or None,
        "applied": applied,
    }
