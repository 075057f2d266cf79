"""What `gpuops size --measure` prints: what is made, run and removed; what was measured, and what the model says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuops.advise.sizing.measured import MeasuredCurve, NormalisedCount, measured_curve
from gpuops.plan.capacity.measure import MeasurePlan, later_commands
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

if TYPE_CHECKING:
    from gpuops.model.scheduler import SchedulerPolicy
    from gpuops.model.sharing_measurement import SharingMeasurement

GOES_ON = "the same again goes on; gpuops size --measure --remove removes what is left of it"


def measure_plan_text(plan: MeasurePlan) -> Shown:
    """What is done, step by step, or every reason why not."""
    if plan.rejections:
        return [Text(line, "red") for line in (each.line for each in plan.rejections)]
    table = TextTable("", "what", "of what")
    for verb, what, of in _steps(plan):
        table.add_row(verb, visible(what), visible(of))
    return [Text(_place(plan), "bold"), table, *(Text(line, "dim") for line in _later(plan))]


def _place(plan: MeasurePlan) -> str:
    host = visible(plan.host.name) if plan.host is not None else "an unknown host"
    where = f"{host}, GPU {plan.gpu.address} ({visible(plan.gpu.name)})" if plan.gpu is not None else host
    return f"measurement {plan.measurement.id} on {where}, scheduler {plan.in_force or 'not known'}"


def _steps(plan: MeasurePlan) -> Iterator[tuple[str, str, str]]:
    wish = plan.measurement.wish
    if plan.now:
        most = max(plan.now)
        yield "make", f"{count(most, 'VM')}, {plan.measurement.name(1)} and on", f"template {wish.template}"
        yield "change", f"each: vGPU {plan.profile}, bound to that GPU, powered on", "all of it whole for each count"
        begins = "together" if wish.overlap == 1.0 else f"each beside the next for {wish.overlap:.0%} of its work"
        yield "run", f"in {', '.join(map(str, plan.now))} of them, {begins}", wish.command
        yield "remove", "all of them, with their disks", "by name and notes"
    else:
        yield "nothing", "all counts of this scheduler are measured", ""


def _later(plan: MeasurePlan) -> Iterator[str]:
    for scheduler, command in zip(plan.later, later_commands(plan), strict=True):
        yield f"{scheduler} is not in force: {command}; then the same again measures it"


def measured_text(plan: MeasurePlan, measurement: SharingMeasurement, left: tuple[str, ...]) -> Shown:
    """The curve, what is fitted to it, and what is still to be done."""
    curve = measured_curve(measurement.done, plan.slots, measurement.wish.overlap)
    table = TextTable("scheduler", "VMs", "seconds", "times as long", "least", "most", "model", right=range(1, 7))
    for row in curve.rows:
        table.add_row(*_cells(row))
    lines: list[Shown] = [Text(f"{visible(measurement.wish.template)}, {visible(plan.profile)}", "bold"), table]
    lines += [Text(f"{_named(row)} failed: {visible(row.count.error)}", "red") for row in curve.rows if row.count.error]
    lines += [Text(note, "dim") for note in _notes(curve)]
    lines += [Text(line, "yellow") for line in _later(plan)]
    lines += [Text(f"left: {visible(line)}", "red") for line in left]
    if left or plan.later or any(row.count.error for row in curve.rows):
        lines.append(Text(GOES_ON, "dim"))
    return lines


def _named(row: NormalisedCount) -> str:
    return f"{row.count.scheduler}, {count(row.count.sharers, 'VM')}"


def _cells(row: NormalisedCount) -> tuple[str, ...]:
    times = row.count.times_s
    seconds = f"{sum(times) / len(times):.2f}" if times else "-"
    return (
        row.count.scheduler.replace("-", " "),
        str(row.count.sharers),
        seconds,
        *("-" if each is None else f"{each:.2f}" for each in (row.mean, row.least, row.most, row.model)),
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
    plan: MeasurePlan, measurement: SharingMeasurement, left: tuple[str, ...], *, applied: bool
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
        "error": row.count.error or None,
    }


def left_text(
    measurement: SharingMeasurement | None, vms: tuple[str, ...], left: tuple[str, ...], *, applied: bool
) -> Shown:
    """What a measurement that did not end has left, and what became of it."""
    if measurement is None:
        return Text("nothing to remove: no measurement of this vCenter was cut off")
    head = f"measurement {measurement.id} of {visible(measurement.wish.template)}: {count(len(vms), 'VM')}"
    if left:
        return [Text(f"{head}, not all of them removed", "red"), *(Text(f"left: {visible(line)}") for line in left)]
    said = "removed, and it is forgotten" if applied else "to be removed"
    return [Text(f"{head} {said}", "bold"), *(Text(f"  {visible(name)}") for name in vms)]


def left_document(
    measurement: SharingMeasurement | None, vms: tuple[str, ...], left: tuple[str, ...], *, applied: bool
) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "size-measure-remove",
        "id": measurement.id if measurement is not None else None,
        "vms": list(vms),
        "left": list(left),
        "applied": applied,
    }
