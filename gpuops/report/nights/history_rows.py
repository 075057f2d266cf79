"""What `gpuops history` gives programs of past nights and changes: documents, and rows of CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from gpuops.model.nights.history import Incident, PastChange, PastEvents, PastNight, PastRun, PastVm, share_of
from gpuops.report.csv_text import Cell, csv_text
from gpuops.report.document import SCHEMA_VERSION, Document

CSV_HEADER: Final = (
    "kind", "id", "began", "ended", "outcome", "by", "what", "vcenter", "desktops_taken", "desktops_back", "ml_vms",
    "gpu_hours", "gpu_hours_at_least", "gpu_hours_available", "share", "incidents",
)  # fmt: skip


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
        "night", night.id, night.begins, _last_end(night.runs), night.outcome.value, people_of(night.runs),
        night.policy, night.vcenter, len(night.desktops), night.returned, len(night.ml),
        _rounded(night.harvested.exact), _rounded(night.harvested.at_least), _rounded(night.available.exact),
        _rounded(night.share), len(night.incidents),
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
    }


def _change(change: PastChange) -> Document:
    return {
        "what": change.verb,
        "vcenter": change.vcenter,
        **_run(change.run),
        "outcome": change.outcome.value,
        "of": list(change.subjects),
        "incidents": [_incident(each) for each in change.incidents],
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


def people_of(runs: tuple[PastRun, ...]) -> str:
    """Who ran them, each once."""
    return ", ".join(dict.fromkeys(str(run.by) for run in runs)) or "unknown"


def _rounded(figure: float | None) -> float | None:
    """To a ten-thousandth: the seconds of a GPU-hour."""
    return None if figure is None else round(figure, 4)


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
