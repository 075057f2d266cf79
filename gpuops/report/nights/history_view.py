"""Text, documents and CSV rows of `gpuops history`: past nights and changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from msgspec import field

from gpuops.model.nights.history import (
    GpuHours,
    HeldPeriod,
    Incident,
    PastChange,
    PastEvents,
    PastNight,
    PastOutcome,
    PastRun,
    PastStep,
    PastVm,
    share_of,
)
from gpuops.model.nights.night_record import Role
from gpuops.model.time_text import format_minute
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.json_and_csv import Cell, csv_text
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count, optional_figure

CSV_HEADER: Final = (
    "kind", "id", "began", "ended", "outcome", "by", "what", "vcenter", "desktops_taken", "desktops_back", "ml_vms",
    "gpu_hours", "gpu_hours_at_least", "gpu_hours_available", "share", "incidents",
)  # fmt: skip


class PastRunRecord(DocumentRecord, frozen=True):
    """A run of gpuops; user and machine are null if an older gpuops did not record them."""

    run: Annotated[str, "its id"]
    command: Annotated[str, "as it is typed after `gpuops`"]
    began: Moment
    ended: Annotated[Moment | None, "null = it goes on, or was killed and no later run has ended it yet"]
    cut_off: Annotated[bool, "whether another run had to end it"]
    user: str | None
    machine: str | None
    pid: int

    @classmethod
    def made_of(cls, run: PastRun) -> Self:
        return cls.from_attributes(run.by, **_run_fields(run))


class IncidentRecord(DocumentRecord, frozen=True):
    """Something that went wrong."""

    at: Moment
    of: Annotated[str, "name of the VM or host, or the command"]
    what: Annotated[str, "such as suspend failed, outcome unknown, cut off or given up"]
    reason: str | None

    @classmethod
    def made_of(cls, incident: Incident) -> Self:
        return cls.from_attributes(incident, of=incident.about, reason=incident.reason or None)


class PastStepRecord(DocumentRecord, frozen=True):
    """A step of a night, or of its return, on a VM."""

    what: Annotated[str, "such as gate, suspend, start, resume or shutdown"]
    from_: Annotated[Moment, "when it was intended"] = field(name="from")
    until: Annotated[Moment | None, "when its outcome was noted; null = it is not known yet"]
    done: Annotated[bool | None, "null = it goes on, or its outcome is not known"]

    @classmethod
    def made_of(cls, step: PastStep) -> Self:
        return cls.from_attributes(step, from_=step.begins, until=step.ends)


class HeldPeriodRecord(DocumentRecord, frozen=True):
    """A time in which a desktop was suspended or shut down, or an ML VM ran."""

    from_: Annotated[Moment | None, "null = not known"] = field(name="from")
    until: Annotated[Moment | None, "null = it has not ended, as far as the journal knows"]
    by_itself: Annotated[bool, "not by a step of gpuops; it ended at some moment before `until`, when that was seen"]
    gpu_hours: float | None


class PastVmRecord(DocumentRecord, frozen=True):
    """A VM of a past night."""

    ref: Annotated[str, "managed object id, as it was then"]
    instance_uuid: str | None
    name: str
    role: Role
    profiles: list[str]
    gpus: Annotated[float | None, "whole GPUs that its vGPUs amount to; null = it has none, or one that is not known"]
    held: Annotated[list[HeldPeriodRecord], "in their order; none = the night did not take it"]
    steps: Annotated[list[PastStepRecord], "in the order of their intents"]
    back: Annotated[bool | None, "whether it is as it was before; null = it was not taken"]
    given_up: bool

    @classmethod
    def made_of(cls, vm: PastVm) -> Self:
        periods = [
            HeldPeriodRecord.from_attributes(
                period, from_=period.begins, until=period.ends, gpu_hours=_round_figure(period.hours(vm.gpus).exact)
            )
            for period in vm.held
        ]
        return cls.from_attributes(vm, instance_uuid=vm.uuid, held=periods, back=vm.back if vm.taken else None)


class PastNightRecord(DocumentRecord, frozen=True):
    """A night, from its first run to its last VM that is back; null = not known."""

    night: str
    vcenter: Annotated[str, "its instance uuid"]
    policy: Annotated[str | None, "its name"]
    began: Moment
    ended: Annotated[Moment | None, "when its last run ended; null also = a run has not"]
    outcome: PastOutcome
    by_markers: Annotated[bool, "whether the journal has only its return"]
    by: Annotated[list[str], "USER@MACHINE of its runs, or unknown"]
    desktops_taken: int
    desktops_back: int
    ml_vms: Annotated[int, "how many ran"]
    gpu_hours: Annotated[float | None, "what the ML VMs had, GPUs times hours"]
    gpu_hours_at_least: Annotated[float, "what they had in any case"]
    gpu_hours_available: Annotated[
        float | None, "of the taken desktops' GPUs, and of free GPUs on the hosts of the night"
    ]
    share: Annotated[float | None, "of what could be had, 1 = all of it"]
    incident_count: Annotated[int, "how often something went wrong"]

    @classmethod
    def made_of(cls, night: PastNight) -> Self:
        return cls.from_attributes(
            night,
            night=night.id,
            began=night.begins,
            ended=_last_end(night.runs),
            by=sorted({str(run.by) for run in night.runs}),
            desktops_taken=len(night.desktops),
            desktops_back=night.returned,
            ml_vms=len(night.ml),
            incident_count=len(night.incidents),
            **_hour_fields(night),
        )


class NightInFullRecord(PastNightRecord, frozen=True):
    """A night with its runs, its VMs and what went wrong; null = not known."""

    back_by: Annotated[
        Moment | None, "when its desktops had to be back; null = its policy has no windows, or it cannot be read"
    ]
    runs: Annotated[list[PastRunRecord], "the nights, and the returns that brought VMs of it back, oldest first"]
    vms: list[PastVmRecord]
    incidents: list[IncidentRecord]


class PastChangeRecord(DocumentRecord, frozen=True):
    """A change of VMs or hosts, with the run that made it."""

    what: Annotated[str, "the command whose change it is"]
    vcenter: Annotated[str, "its instance uuid"]
    run: Annotated[str, "its id"]
    command: Annotated[str, "as it is typed after `gpuops`"]
    began: Moment
    ended: Annotated[Moment | None, "null = it goes on, or was killed and no later run has ended it yet"]
    cut_off: Annotated[bool, "whether another run had to end it"]
    user: str | None
    machine: str | None
    pid: int
    outcome: PastOutcome
    of: Annotated[list[str], "names of the VMs and hosts that were to be changed"]
    incidents: list[IncidentRecord]


class HistoryTotalsRecord(DocumentRecord, frozen=True):
    """The sums of the nights that are shown; null = not known."""

    nights: int
    left_off: Annotated[int, "how many older nights and changes the limit leaves out"]
    gpu_hours: Annotated[float | None, "what the ML VMs had, GPUs times hours"]
    gpu_hours_at_least: Annotated[float, "what they had in any case"]
    gpu_hours_available: Annotated[
        float | None, "of the taken desktops' GPUs, and of free GPUs on the hosts of the nights"
    ]
    share: Annotated[float | None, "of what could be had, 1 = all of it"]

    @classmethod
    def made_of(cls, events: PastEvents) -> Self:
        return cls.from_attributes(events, nights=len(events.nights), **_hour_fields(events))


@printed("history", by="gpuops history")
class HistoryDocument(PrintedDocument, frozen=True):
    """Past nights and changes, newest first."""

    journal: Annotated[str, "the file, or the database without its password"]
    totals: HistoryTotalsRecord
    nights: list[PastNightRecord]
    changes: list[PastChangeRecord]

    @classmethod
    def made_of(cls, events: PastEvents) -> Self:
        changes = [
            PastChangeRecord.from_attributes(
                change, change.run.by, what=change.verb, of=change.subjects, **_run_fields(change.run)
            )
            for change in events.changes
        ]
        return cls.from_attributes(events, totals=events, changes=changes)


@printed("history-night", by="gpuops history show")
class HistoryNightDocument(PrintedDocument, frozen=True):
    """One past night in full; several where nights of several vCenters have the name."""

    journal: Annotated[str, "the file, or the database without its password"]
    nights: list[NightInFullRecord]


def history_csv(events: PastEvents) -> str:
    """Return a line for each night and each change."""
    return csv_text(CSV_HEADER, [*map(_night_cells, events.nights), *map(_change_cells, events.changes)])


NIGHT_CSV_HEADER: Final = (
    "night", "vcenter", "vm", "role", "gpus", "taken", "returned", "by_itself", "gpu_hours", "given_up"
)  # fmt: skip


def night_csv(events: PastEvents) -> str:
    """Return a CSV table with a row for each period in which a night held a VM."""
    rows: list[tuple[Cell, ...]] = [
        (
            night.id, night.vcenter, vm.name, vm.role.value, vm.gpus, period.begins, period.ends, period.by_itself,
            _round_figure(period.hours(vm.gpus).exact), vm.given_up,
        )
        for night in events.nights
        for vm in night.vms
        for period in vm.held
    ]  # fmt: skip
    return csv_text(NIGHT_CSV_HEADER, rows)


def _night_cells(night: PastNight) -> tuple[Cell, ...]:
    return (
        "night", night.id, night.begins, _last_end(night.runs), night.outcome.value, people_of(night.runs),
        night.policy, night.vcenter, len(night.desktops), night.returned, len(night.ml),
        _round_figure(night.harvested.exact), _round_figure(night.harvested.at_least),
        _round_figure(night.available.exact), _round_figure(night.share), len(night.incidents),
    )  # fmt: skip


def _change_cells(change: PastChange) -> tuple[Cell, ...]:
    subjects = ", ".join(change.subjects)
    description = f"{change.verb}: {subjects}" if subjects else change.verb
    return (
        "change", change.id, change.begins, change.run.ends, change.outcome.value, str(change.run.by), description,
        change.vcenter, *(None,) * 7, len(change.incidents),
    )  # fmt: skip


def _hour_fields(events: PastNight | PastEvents) -> dict[str, Any]:
    return {
        "gpu_hours": _round_figure(events.harvested.exact),
        "gpu_hours_at_least": _round_figure(events.harvested.at_least),
        "gpu_hours_available": _round_figure(events.available.exact),
        "share": _round_figure(share_of(events.harvested, events.available)),
    }


def _run_fields(run: PastRun) -> dict[str, Any]:
    return {"run": run.id, "command": run.kind, "began": run.begins, "ended": run.ends, "cut_off": run.cut_off}


def _last_end(runs: tuple[PastRun, ...]) -> datetime | None:
    """Return when the last run of a night ended; None if a run has not ended, or no run is known."""
    ends = [run.ends for run in runs]
    return None if None in ends else max((end for end in ends if end is not None), default=None)


def people_of(runs: tuple[PastRun, ...]) -> str:
    """Return the users of the runs, each once."""
    return ", ".join(dict.fromkeys(str(run.by) for run in runs)) or "unknown"


def _round_figure(figure: float | None) -> float | None:
    """Return the figure rounded to four decimals: a ten-thousandth of a GPU-hour is less than a second."""
    return None if figure is None else round(figure, 4)


_STYLES: Final = {
    PastOutcome.DONE: "green",
    PastOutcome.OPEN: "bold red",
    PastOutcome.GIVEN_UP: "magenta",
    PastOutcome.NOTHING: "dim",
    PastOutcome.PARTLY: "yellow",
    PastOutcome.ABORTED: "yellow",
}
_AT_LEAST: Final = "+ means at least: when an ML VM stopped by itself, the time is not known"


def history_text(events: PastEvents, selection: str) -> Shown:
    """Return the nights and the changes, newest first.

    `selection` is the text of the filter, such as ` since 2026-11-01`; empty if all events were requested.
    """
    if not events.nights and not events.changes:
        if selection:
            return [
                Text(f"nothing{selection} in the journal", "bold"),
                "next: gpuops history shows all nights and changes",
            ]
        return [
            Text("no nights yet, and no changes: nothing was recorded in the journal", "bold"),
            "next: gpuops rotate plan --policy FILE shows what a night would bring",
        ]
    parts: list[Shown] = []
    if events.nights:
        parts += [_nights_table(events.nights), Text(history_summary(events), "bold")]
        # `12.5+` means at least 12.5 hours, which the line explains
        if any("+" in _hours(night.harvested) for night in events.nights):
            parts.append(Text(_AT_LEAST, "dim"))
    if events.changes:
        parts += [*([""] if parts else []), _changes_table(events.changes)]
    if events.left_off:
        parts.append(Text(f"{events.left_off} older ones are not shown: use a higher --limit", "dim"))
    return parts


def _nights_table(nights: tuple[PastNight, ...]) -> TextTable:
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


def _changes_table(changes: tuple[PastChange, ...]) -> TextTable:
    # as in `_nights_table`, the first 8 characters of a vCenter's UUID are shown
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
        parts += [*([""] if parts else []), *_night_lines(night)]
    return parts


def _night_lines(night: PastNight) -> Iterator[Shown]:
    policy = f", policy {night.policy}" if night.policy is not None else ""
    journal_note = ", known only by its return" if night.by_markers else ""
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
    yield ["", _runs_table(night.runs)]
    yield ["", _vms_table("desktop", "suspended", "back", [vm for vm in night.vms if not vm.is_ml])]
    if any(vm.is_ml for vm in night.vms):
        yield ["", _vms_table("ML VM", "started", "stopped", [vm for vm in night.vms if vm.is_ml])]
    yield ""
    yield _incidents_table(night.incidents) if night.incidents else "nothing went wrong"
    if night.outcome is PastOutcome.OPEN:
        yield "next: gpuops rotate status shows what is not back"


def _runs_table(runs: tuple[PastRun, ...]) -> TextTable:
    return table_of(
        runs,
        Column("run", lambda run: run.kind),
        Column("began", lambda run: _minute(run.begins)),
        Column("ended", _end_of),
        Column("by", lambda run: f"{run.by}, pid {run.by.pid}"),
    )


def _end_of(run: PastRun) -> str:
    return "not ended" if run.ends is None else _minute(run.ends) + (" (cut off)" if run.cut_off else "")


def _vms_table(noun: str, begun_header: str, ended_header: str, vms: list[PastVm]) -> TextTable:
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


def _incidents_table(incidents: tuple[Incident, ...]) -> TextTable:
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
