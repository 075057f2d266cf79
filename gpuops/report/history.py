"""What `gpuops history` prints of past nights and changes: a table, a document, rows of CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from gpuops.model.history import (
    GpuHours,
    HeldPeriod,
    Incident,
    PastChange,
    PastEvents,
    PastNight,
    PastOutcome,
    PastRun,
    PastVm,
    share_of,
)
from gpuops.report.csv_text import Cell, csv_text
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.prediction import SHOWS_ALL, past_misprediction_document
from gpuops.report.text import count, visible

CSV_HEADER: Final = (
    "kind", "id", "began", "ended", "outcome", "by", "what", "vcenter", "desktops_taken", "desktops_back", "ml_vms",
    "gpu_hours", "gpu_hours_at_least", "gpu_hours_available", "share", "incidents",
)  # fmt: skip
_STYLES: Final = {
    PastOutcome.DONE: "green",
    PastOutcome.OPEN: "bold red",
    PastOutcome.GIVEN_UP: "magenta",
    PastOutcome.NOTHING: "dim",
    PastOutcome.PARTLY: "yellow",
    PastOutcome.ABORTED: "yellow",
}
_AT_LEAST: Final = "+ at least: when an ML VM stopped that stopped by itself is not known"


def history_text(events: PastEvents, asked: str) -> Shown:
    """The nights and the changes, newest first. `asked`: what was asked for, ` since 2026-11-01`; empty = all."""
    if not events.nights and not events.changes:
        return _none(events, asked)
    parts: list[Shown] = []
    if events.nights:
        parts += [_nights(events.nights), Text(history_summary(events), "bold")]
        if any("+" in _hours(night.harvested) for night in events.nights):
            parts.append(Text(_AT_LEAST, "dim"))
    if events.changes:
        parts += [*([""] if parts else []), _changes(events.changes)]
    parts += _mispredicted([*events.nights, *events.changes])
    if events.left_off:
        parts.append(Text(f"{events.left_off} older not shown: a higher --limit shows them", "dim"))
    return parts


def _none(events: PastEvents, asked: str) -> Shown:
    if asked:
        return [
            Text(f"nothing{asked} in the journal", "bold"),
            "next: gpuops history shows all that there is",
        ]
    return [
        Text("no nights yet, and no changes: nothing was recorded in the journal", "bold"),
        "next: gpuops rotate plan --policy FILE shows what a night would bring",
    ]


def _nights(nights: tuple[PastNight, ...]) -> TextTable:
    several = len({night.vcenter for night in nights}) > 1
    table = TextTable(
        "night", "outcome", "taken", "back", "ML", "GPU-hours", "share", "wrong", *(("vCenter",) if several else ()),
        "by", right=(2, 3, 4, 5, 6, 7), whole=(0,),
    )  # fmt: skip
    for night in nights:
        table.add_row(
            visible(night.id),
            Text(night.outcome.value, _STYLES[night.outcome]),
            str(len(night.desktops)),
            str(night.returned),
            str(len(night.ml)),
            _hours(night.harvested),
            _share(night.share, night.available),
            Text(str(len(night.incidents)), "yellow" if night.incidents else ""),
            *((visible(night.vcenter[:8]),) if several else ()),
            visible(_by(night.runs)),
        )
    return table


def _changes(changes: tuple[PastChange, ...]) -> TextTable:
    several = len({change.vcenter for change in changes}) > 1
    table = TextTable("change began", "what", "of", "outcome", "wrong", *(("vCenter",) if several else ()), "by")
    for change in changes:
        table.add_row(
            _minute(change.begins),
            visible(change.verb),
            visible(_few(change.subjects)),
            Text(change.outcome.value, _STYLES[change.outcome]),
            str(len(change.incidents)),
            *((visible(change.vcenter[:8]),) if several else ()),
            visible(str(change.run.by)),
        )
    return table


def history_summary(events: PastEvents) -> str:
    """`3 nights: 12 desktops taken, 12 back; 70.1 GPU-hours of 80.2 that could be had (87%)`."""
    taken = sum(len(night.desktops) for night in events.nights)
    back = sum(night.returned for night in events.nights)
    share = share_of(events.harvested, events.available)
    part = _part(share, events.available)
    return (
        f"{count(len(events.nights), 'night')}: {count(taken, 'desktop')} taken, {back} back; "
        f"{_hours(events.harvested)} GPU-hours{_of_available(events.available)}{part}"
    )


def night_text(events: PastEvents) -> Shown:
    """Each night in full."""
    parts: list[Shown] = []
    for night in events.nights:
        parts += [*([""] if parts else []), *_night(night)]
    return parts


def _night(night: PastNight) -> Iterator[Shown]:
    policy = f", policy {visible(night.policy)}" if night.policy is not None else ""
    known = ", known by its return alone" if night.by_markers else ""
    yield (
        Text(f"night {visible(night.id)}: ", "bold")
        .append(night.outcome.value, _STYLES[night.outcome])
        .append(f"{policy}{known}; times are in UTC")
    )
    yield f"vCenter {visible(night.vcenter)}"
    share = _part(night.share, night.available)
    yield (
        f"{count(len(night.desktops), 'desktop')} taken, {night.returned} back; {count(len(night.ml), 'ML VM')} ran: "
        f"{_hours(night.harvested)} GPU-hours{_of_available(night.available)}{share}"
    )
    if "+" in _hours(night.harvested):
        yield Text(_AT_LEAST, "dim")
    yield ["", _runs(night.runs)]
    yield ["", _vms("desktop", "suspended", "back", [vm for vm in night.vms if not vm.is_ml])]
    if any(vm.is_ml for vm in night.vms):
        yield ["", _vms("ML VM", "started", "stopped", [vm for vm in night.vms if vm.is_ml])]
    yield ""
    yield _incidents(night.incidents) if night.incidents else "nothing went wrong"
    yield from _mispredicted([night])
    if night.outcome is PastOutcome.OPEN:
        yield "next: gpuops rotate status shows what is not back"


def _mispredicted(events: Iterable[PastNight | PastChange]) -> Iterator[Text]:
    """How many mispredictions there were, if any."""
    number = len({(one.op_id, one.found.what) for each in events for one in each.mispredictions})
    if number:
        yield Text(f"{count(number, 'misprediction')}: {SHOWS_ALL} lists them", "magenta")


def _runs(runs: tuple[PastRun, ...]) -> TextTable:
    table = TextTable("run", "began", "ended", "by")
    for run in runs:
        ended = "not ended" if run.ends is None else _minute(run.ends) + (" (cut off)" if run.cut_off else "")
        table.add_row(visible(run.kind), _minute(run.begins), ended, visible(f"{run.by}, pid {run.by.pid}"))
    return table


def _vms(noun: str, begun: str, over: str, vms: list[PastVm]) -> TextTable:
    table = TextTable(noun, "GPUs", begun, over, "GPU-hours", right=(1, 4))
    for vm in vms:
        gpus = "unknown" if vm.gpus is None else f"{vm.gpus:.3g}"
        for held in vm.held or (None,):
            hours = _hours(held.hours(vm.gpus)) if held is not None else "-"
            table.add_row(visible(vm.name), gpus, *_period(vm, held), hours)
    return table


def _period(vm: PastVm, held: HeldPeriod | None) -> tuple[str, str]:
    if held is None:
        return "not taken", "-"
    begins = _minute(held.begins) if held.begins is not None else "unknown"
    if held.ends is None:
        return begins, "given up" if vm.given_up else "not yet"
    return begins, f"{_minute(held.ends)} at the latest, by itself" if held.by_itself else _minute(held.ends)


def _incidents(incidents: tuple[Incident, ...]) -> TextTable:
    table = TextTable("went wrong", "of", "what", "why")
    for each in incidents:
        table.add_row(_minute(each.at), visible(each.about), visible(each.what), visible(each.reason or "-"))
    return table


def history_document(events: PastEvents) -> Document:
    """The list for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "history",
        "journal": events.journal,
        "totals": history_totals(events),
        "nights": [night_row(night) for night in events.nights],
        "changes": [_change(change) for change in events.changes],
    }


def history_totals(events: PastEvents) -> Document:
    """The sums of the nights that are shown."""
    return {"nights": len(events.nights), "left_off": events.left_off, **_figures(events)}


def night_document(events: PastEvents) -> Document:
    """One night for programs; several where nights of several vCenters have the name."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "history-night",
        "journal": events.journal,
        "nights": [night_in_full(night) for night in events.nights],
    }


def night_in_full(night: PastNight) -> dict[str, Any]:
    """The record of one night, with its runs, VMs and incidents."""
    return {
        **night_row(night),
        "back_by": _moment(night.back_by),
        "runs": [_run(run) for run in night.runs],
        "vms": [_vm(vm) for vm in night.vms],
        "incidents": [_incident(each) for each in night.incidents],
        "mispredictions": [past_misprediction_document(each) for each in night.mispredictions],
    }


def history_csv(events: PastEvents) -> str:
    """A line for each night and each change."""
    nights = (_night_cells(night) for night in events.nights)
    changes = (_change_cells(change) for change in events.changes)
    return csv_text(CSV_HEADER, [*nights, *changes])


NIGHT_CSV_HEADER: Final = (
    "night", "vcenter", "vm", "role", "gpus", "taken", "returned", "by_itself", "gpu_hours", "given_up"
)  # fmt: skip


def night_csv(events: PastEvents) -> str:
    """A line for each time that a night held a VM."""
    return csv_text(NIGHT_CSV_HEADER, (row for night in events.nights for vm in night.vms for row in _held(night, vm)))


def _held(night: PastNight, vm: PastVm) -> Iterator[tuple[Cell, ...]]:
    for held in vm.held:
        yield (
            night.id, night.vcenter, vm.name, vm.role.value, vm.gpus, held.begins, held.ends, held.by_itself,
            _rounded(held.hours(vm.gpus).exact), vm.given_up,
        )  # fmt: skip


def _night_cells(night: PastNight) -> tuple[Cell, ...]:
    return (
        "night", night.id, night.begins, _last_end(night.runs), night.outcome.value, _by(night.runs), night.policy,
        night.vcenter, len(night.desktops), night.returned, len(night.ml), _rounded(night.harvested.exact),
        _rounded(night.harvested.at_least), _rounded(night.available.exact), _rounded(night.share),
        len(night.incidents),
    )  # fmt: skip


def _change_cells(change: PastChange) -> tuple[Cell, ...]:
    of = ", ".join(change.subjects)
    what = f"{change.verb}: {of}" if of else change.verb
    return (
        "change", change.id, change.begins, change.run.ends, change.outcome.value, str(change.run.by), what,
        change.vcenter, *(None,) * 7, len(change.incidents),
    )  # fmt: skip


def _figures(found: PastNight | PastEvents) -> Document:
    return {
        "gpu_hours": _rounded(found.harvested.exact),
        "gpu_hours_at_least": _rounded(found.harvested.at_least),
        "gpu_hours_available": _rounded(found.available.exact),
        "share": _rounded(share_of(found.harvested, found.available)),
    }


def night_row(night: PastNight) -> dict[str, Any]:
    """The record of one night in a list."""
    return {
        "night": night.id,
        "vcenter": night.vcenter,
        "policy": night.policy,
        "began": night.begins.isoformat(),
        "ended": _moment(_last_end(night.runs)),
        "outcome": night.outcome.value,
        "by_markers": night.by_markers,
        "by": sorted({str(run.by) for run in night.runs}),
        "desktops_taken": len(night.desktops),
        "desktops_back": night.returned,
        "ml_vms": len(night.ml),
        **_figures(night),
        "incident_count": len(night.incidents),
        "misprediction_count": len(night.mispredictions),
    }


def _change(change: PastChange) -> Document:
    return {
        "what": change.verb,
        "vcenter": change.vcenter,
        **_run(change.run),
        "outcome": change.outcome.value,
        "of": list(change.subjects),
        "incidents": [_incident(each) for each in change.incidents],
        "misprediction_count": len(change.mispredictions),
    }


def _run(run: PastRun) -> Document:
    return {
        "run": run.id,
        "command": run.kind,
        "began": run.begins.isoformat(),
        "ended": _moment(run.ends),
        "cut_off": run.cut_off,
        "user": run.by.user,
        "machine": run.by.machine,
        "pid": run.by.pid,
    }


def _vm(vm: PastVm) -> Document:
    return {
        "ref": vm.ref,
        "instance_uuid": vm.uuid,
        "name": vm.name,
        "role": vm.role.value,
        "profiles": list(vm.profiles),
        "gpus": vm.gpus,
        "held": [
            {
                "from": _moment(held.begins),
                "until": _moment(held.ends),
                "by_itself": held.by_itself,
                "gpu_hours": _rounded(held.hours(vm.gpus).exact),
            }
            for held in vm.held
        ],
        "steps": [
            {"what": step.what, "from": step.begins.isoformat(), "until": _moment(step.ends), "done": step.done}
            for step in vm.steps
        ],
        "back": vm.back if vm.taken else None,
        "given_up": vm.given_up,
    }


def _incident(incident: Incident) -> Document:
    return {
        "at": incident.at.isoformat(),
        "of": incident.about,
        "what": incident.what,
        "reason": incident.reason or None,
    }


def _last_end(runs: tuple[PastRun, ...]) -> datetime | None:
    """When the last run of a night ended; None = one has not, or none is known."""
    ends = [run.ends for run in runs]
    return None if None in ends else max((each for each in ends if each is not None), default=None)


def _by(runs: tuple[PastRun, ...]) -> str:
    """Who ran them, each once."""
    return ", ".join(dict.fromkeys(str(run.by) for run in runs)) or "unknown"


def _of_available(available: GpuHours) -> str:
    return "" if available.exact is None else f" of {available.exact:.1f} that could be had"


def _few(names: tuple[str, ...]) -> str:
    """`ml-01`, `esx-01 and 3 more`."""
    return "-" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _hours(hours: GpuHours) -> str:
    """`41.2`; `41.2+` where it may be more; `unknown` where nothing is known."""
    if hours.exact is not None:
        return f"{hours.exact:.1f}"
    return f"{hours.at_least:.1f}+" if hours.at_least else "unknown"


def _share(share: float | None, available: GpuHours) -> str:
    """`90%`; `unknown`; `-` where so little could be had that it reads 0.0."""
    if share is None:
        return "unknown"
    return "-" if _hours(available) == "0.0" else f"{share:.0%}"


def _part(share: float | None, available: GpuHours) -> str:
    """The same behind the hours, ` (90%)`; empty where there is none to say."""
    said = _share(share, available)
    return f" ({said})" if said.endswith("%") else ""


def _rounded(figure: float | None) -> float | None:
    """To a ten-thousandth: the seconds of a GPU-hour."""
    return None if figure is None else round(figure, 4)


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
