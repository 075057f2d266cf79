"""Text of `gpuops history`: tables and lines of past nights and changes. Documents are in `history_rows.py`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from gpuops.model.nights.history import (
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
from gpuops.model.time_text import format_minute
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.nights.history_rows import people_of
from gpuops.report.text import count, optional_figure

_STYLES: Final = {
    PastOutcome.DONE: "green",
    PastOutcome.OPEN: "bold red",
    PastOutcome.GIVEN_UP: "magenta",
    PastOutcome.NOTHING: "dim",
    PastOutcome.PARTLY: "yellow",
    PastOutcome.ABORTED: "yellow",
}
_AT_LEAST: Final = "+ at least: when an ML VM stopped that stopped by itself is not known"


def history_text(events: PastEvents, selection: str) -> Shown:
    """Return the nights and the changes, newest first.

    `selection` is the text of the filter, such as ` since 2026-11-01`; empty if all events were requested.
    """
    if not events.nights and not events.changes:
        if selection:
            return [
                Text(f"nothing{selection} in the journal", "bold"),
                "next: gpuops history shows all that there is",
            ]
        return [
            Text("no nights yet, and no changes: nothing was recorded in the journal", "bold"),
            "next: gpuops rotate plan --policy FILE shows what a night would bring",
        ]
    parts: list[Shown] = []
    if events.nights:
        parts += [_nights(events.nights), Text(history_summary(events), "bold")]
        # `12.5+` means at least 12.5 hours, which the line explains
        if any("+" in _hours(night.harvested) for night in events.nights):
            parts.append(Text(_AT_LEAST, "dim"))
    if events.changes:
        parts += [*([""] if parts else []), _changes(events.changes)]
    if events.left_off:
        parts.append(Text(f"{events.left_off} older not shown: a higher --limit shows them", "dim"))
    return parts


def _nights(nights: tuple[PastNight, ...]) -> TextTable:
    # the first 8 characters of a vCenter's UUID tell vCenters apart
    several_vcenters = len({night.vcenter for night in nights}) > 1
    return table_of(
        nights,
        Column("night", lambda night: night.id, whole=True),
        Column("outcome", lambda night: Text(night.outcome.value, _STYLES[night.outcome])),
        Column("taken", lambda night: str(len(night.desktops)), right=True),
        Column("back", lambda night: str(night.returned), right=True),
        Column("ML", lambda night: str(len(night.ml)), right=True),
        Column("GPU-hours", lambda night: _hours(night.harvested), right=True),
        Column("share", lambda night: _share(night.share, night.available), right=True),
        Column("wrong", lambda night: Text(str(len(night.incidents)), "yellow" if night.incidents else ""), right=True),
        Column("vCenter", lambda night: night.vcenter[:8]) if several_vcenters else None,
        Column("by", lambda night: people_of(night.runs)),
    )


def _changes(changes: tuple[PastChange, ...]) -> TextTable:
    # as in `_nights`, the first 8 characters of a vCenter's UUID are shown
    several_vcenters = len({change.vcenter for change in changes}) > 1
    return table_of(
        changes,
        Column("change began", lambda change: _minute(change.begins)),
        Column("what", lambda change: change.verb),
        Column("of", lambda change: _subjects_text(change.subjects)),
        Column("outcome", lambda change: Text(change.outcome.value, _STYLES[change.outcome])),
        Column("wrong", lambda change: str(len(change.incidents))),
        Column("vCenter", lambda change: change.vcenter[:8]) if several_vcenters else None,
        Column("by", lambda change: str(change.run.by)),
    )


def history_summary(events: PastEvents) -> str:
    """Return `3 nights: 12 desktops taken, 12 back; 70.1 GPU-hours of 80.2 that could be had (87%)`."""
    desktop_count = sum(len(night.desktops) for night in events.nights)
    returned_count = sum(night.returned for night in events.nights)
    return (
        f"{count(len(events.nights), 'night')}: {count(desktop_count, 'desktop')} taken, {returned_count} back; "
        f"{_hours_of_available(events)}"
    )


def night_text(events: PastEvents) -> Shown:
    """Return each night in full."""
    parts: list[Shown] = []
    for night in events.nights:
        parts += [*([""] if parts else []), *_night(night)]
    return parts


def _night(night: PastNight) -> Iterator[Shown]:
    policy = f", policy {night.policy}" if night.policy is not None else ""
    journal_note = ", known by its return alone" if night.by_markers else ""
    yield (
        Text(f"night {night.id}: ", "bold")
        .append(night.outcome.value, _STYLES[night.outcome])
        .append(f"{policy}{journal_note}; times are in UTC")
    )
    yield f"vCenter {night.vcenter}"
    yield (
        f"{count(len(night.desktops), 'desktop')} taken, {night.returned} back; {count(len(night.ml), 'ML VM')} ran: "
        f"{_hours_of_available(night)}"
    )
    if "+" in _hours(night.harvested):
        yield Text(_AT_LEAST, "dim")
    yield ["", _runs(night.runs)]
    yield ["", _vms("desktop", "suspended", "back", [vm for vm in night.vms if not vm.is_ml])]
    if any(vm.is_ml for vm in night.vms):
        yield ["", _vms("ML VM", "started", "stopped", [vm for vm in night.vms if vm.is_ml])]
    yield ""
    yield _incidents(night.incidents) if night.incidents else "nothing went wrong"
    if night.outcome is PastOutcome.OPEN:
        yield "next: gpuops rotate status shows what is not back"


def _runs(runs: tuple[PastRun, ...]) -> TextTable:
    return table_of(
        runs,
        Column("run", lambda run: run.kind),
        Column("began", lambda run: _minute(run.begins)),
        Column("ended", _end_of),
        Column("by", lambda run: f"{run.by}, pid {run.by.pid}"),
    )


def _end_of(run: PastRun) -> str:
    return "not ended" if run.ends is None else _minute(run.ends) + (" (cut off)" if run.cut_off else "")


def _vms(noun: str, begun_header: str, ended_header: str, vms: list[PastVm]) -> TextTable:
    table = TextTable(noun, "GPUs", begun_header, ended_header, "GPU-hours", right=(1, 4))
    for vm in vms:
        gpus = optional_figure(vm.gpus, ".3g", unknown="unknown")
        for period in vm.held or (None,):
            hours = _hours(period.hours(vm.gpus)) if period is not None else "-"
            table.add_row(vm.name, gpus, *_period(vm, period), hours)
    return table


def _period(vm: PastVm, period: HeldPeriod | None) -> tuple[str, str]:
    if period is None:
        return "not taken", "-"
    begins = _minute(period.begins) if period.begins is not None else "unknown"
    if period.ends is None:
        return begins, "given up" if vm.given_up else "not yet"
    return begins, f"{_minute(period.ends)} at the latest, by itself" if period.by_itself else _minute(period.ends)


def _incidents(incidents: tuple[Incident, ...]) -> TextTable:
    return table_of(
        incidents,
        Column("went wrong", lambda incident: _minute(incident.at)),
        Column("of", lambda incident: incident.about),
        Column("what", lambda incident: incident.what),
        Column("why", lambda incident: incident.reason or "-"),
    )


def _hours_of_available(events: PastNight | PastEvents) -> str:
    """Return `70.1 GPU-hours of 80.2 that could be had (87%)`; the figures that are unknown are left out."""
    text = f"{_hours(events.harvested)} GPU-hours"
    if events.available.exact is not None:
        text += f" of {events.available.exact:.1f} that could be had"
    share = _share(share_of(events.harvested, events.available), events.available)
    return f"{text} ({share})" if share.endswith("%") else text


def _subjects_text(names: tuple[str, ...]) -> str:
    """Return `ml-01` or `esx-01 and 3 more`."""
    return "-" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _hours(hours: GpuHours) -> str:
    """Return `41.2`; `41.2+` if it may be more; `unknown` if it is unknown."""
    if hours.exact is not None:
        return f"{hours.exact:.1f}"
    return f"{hours.at_least:.1f}+" if hours.at_least else "unknown"


def _share(share: float | None, available: GpuHours) -> str:
    """Return `90%`; `unknown`; `-` if the available hours read 0.0."""
    if share is None:
        return "unknown"
    return "-" if _hours(available) == "0.0" else f"{share:.0%}"


def _minute(moment: datetime) -> str:
    return format_minute(moment.astimezone(UTC))
