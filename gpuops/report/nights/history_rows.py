"""Documents and CSV rows of `gpuops history`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Self

from msgspec import field

from gpuops.model.nights.history import (
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
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.json_and_csv import Cell, csv_text

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
