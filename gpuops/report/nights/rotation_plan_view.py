"""Text and document of `rotate plan`: which desktop is suspended for which ML VM, what stays, and the way back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil
from typing import Annotated, Final, Self

from msgspec import field

from gpuops.advise.forecast import SLOT, Basis, Error, Forecast
from gpuops.model.nights.night_record import Role
from gpuops.model.time_text import format_clock, format_iso_utc, format_minute, format_zoned_minute
from gpuops.model.window import Weekday
from gpuops.plan.core.rejection import some_names
from gpuops.plan.placement.suspended_vms import role_of
from gpuops.plan.rotation.nights.preview import ExpectedRun, HostProof, NightPreview, ReturnedDesktop
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, Ref, SiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.nights.rotation_status_view import NO_LOCK_VM
from gpuops.report.plan_json import ChoiceRecord, RejectionRecord
from gpuops.report.plan_text import plan_text
from gpuops.report.text import count, optional_figure

_HOUR: Final = timedelta(hours=1)
_NUMBER: Final = re.compile(r"(?<![\w.-])\d[\d.,]*(?![\w-])")
MOST_NAMES: Final = 5
"""Number of VMs named for each reason to stay."""


def preview_text(preview: NightPreview, *, every_vm: bool = False) -> Iterator[Shown]:
    """Yield the totals, the VMs that start and make room, the VMs that stay, the return, and the forecast.

    VMs that stay have one line for each reason, and the return has one for each host; with `every_vm`, both have a
    line for each VM.
    """
    yield Text(_headline(preview), "bold")
    yield Text(_summary(preview), "bold")
    yield Text(f"planned on what vCenter showed at {format_zoned_minute(preview.inventory.taken_at)}", "dim")
    if preview.night_plan.refusals:
        yield plan_text(preview.night_plan.plan(), preview.inventory)
    if preview.expected_runs:
        yield from _titled_table(
            "ML VMs that start", ("VM", "host", "GPUs", "runs", "GPU-hours", "why"), _run_rows(preview)
        )
    desktops = list(_desktop_rows(preview))
    if desktops:
        yield from _titled_table("desktops that make room", ("VM", "host", "how", "for"), desktops)
    staying = [(choice.subject, choice.reason) for choice in preview.night_plan.choices if not choice.chosen]
    if staying and every_vm:
        yield from _titled_table("what stays as it is", ("VM", "why"), staying)
    elif staying:
        yield from _titled_table(
            "what stays as it is (--all: each VM)", ("VMs", "why", "which"), _rows_by_reason(staying)
        )
    if preview.proofs and every_vm:
        yield from _titled_table("the way back, in this order", ("host", "from", "VM", "to"), _proof_rows(preview))
    elif preview.proofs:
        yield from _titled_table(
            "the way back (--all: each VM)", ("host", "from", "desktops"), _host_proof_rows(preview)
        )
    yield from _forecast_lines(preview)
    yield from (Text(f"warning: {text}", "yellow") for text in preview.warnings)
    if preview.night_plan.policy.lock_vm is None:
        yield Text(NO_LOCK_VM, "dim")


def _headline(preview: NightPreview) -> str:
    night = preview.night
    text = f"policy {preview.night_plan.policy.name}, night {preview.night_plan.night}"
    if night is None:
        return f"{text}, at {_moment(preview.at, preview)}"
    window = f"open from {_clock(night.opens, preview)} to {_clock(night.closes, preview)}"
    return f"{text}, at {_moment(preview.at, preview)}: {window}, desktops back by {_clock(night.back_by, preview)}"


def _summary(preview: NightPreview) -> str:
    if preview.night_plan.refusals:
        return f"no night: refused for {count(len(preview.night_plan.refusals), 'reason')}"
    if preview.night_plan.is_over:
        return f"no night: night {preview.night_plan.night} is {preview.night_plan.ended_reason}"
    hours = (
        f"{preview.gpu_hours:.1f} GPU-hours" if preview.gpu_hours is not None else "GPU-hours unknown without a window"
    )
    desktops = count(len(preview.night_plan.decision.desktops), "desktop")
    ml_vms = count(len(preview.expected_runs), "ML VM")
    text = f"{ml_vms} would start, {desktops} would make room: {hours}"
    unproved_hosts = [proof.host.name for proof in preview.proofs if proof.refusals]
    if unproved_hosts:
        return f"{text}; the return to {', '.join(unproved_hosts)} is not proved"
    proved_count = sum(len(proof.order) for proof in preview.proofs)
    return f"{text}; {proved_count} come back, proved" if proved_count else text


def _run_rows(preview: NightPreview) -> Iterator[tuple[str, ...]]:
    chosen = [choice.reason for choice in preview.night_plan.decision.choices if choice.chosen]
    for expected, reason in zip(preview.expected_runs, chosen, strict=True):
        start, run = expected.start, expected.run
        ends = "the morning" if run.ends is None else _clock(run.ends, preview)
        times = f"{_clock(run.begins, preview)} to {ends}"
        hours = optional_figure(expected.gpu_hours, ".1f", unknown="unknown")
        yield start.vm.name, start.host.name, f"{expected.gpus:g}", times, hours, reason


def _desktop_rows(preview: NightPreview) -> Iterator[tuple[str, ...]]:
    for start in preview.night_plan.decision.starts:
        for vm in start.desktops:
            method = "its guest shuts down" if role_of(vm) is Role.SHUT_DOWN else "suspend"
            yield vm.name, start.host.name, method, start.vm.name


def _proof_rows(preview: NightPreview) -> Iterator[tuple[str, ...]]:
    times = preview.night_plan.return_times
    for proof in preview.proofs:
        begins = _clock(times[proof.host.ref], preview) if proof.host.ref in times else "any time"
        for desktop in proof.order:
            yield proof.host.name, begins, desktop.vm.name, ", ".join(str(place) for place in desktop.places)
        for refusal in proof.refusals:
            yield proof.host.name, begins, "not proved", str(refusal)


def _host_proof_rows(preview: NightPreview) -> Iterator[tuple[str, ...]]:
    """Yield one row for each host, and one for each reason why the return to it is not proved."""
    times = preview.night_plan.return_times
    for proof in preview.proofs:
        begins = _clock(times[proof.host.ref], preview) if proof.host.ref in times else "any time"
        if proof.order:
            yield proof.host.name, begins, f"{len(proof.order)}, each with its place"
        for refusal in proof.refusals:
            yield proof.host.name, begins, f"not proved: {refusal}"


def _rows_by_reason(staying: Iterable[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each reason: how many VMs have it, the reason, and the first of these VMs.

    Reasons that differ only in numbers share a row, which shows `..` for the numbers that differ.

    >>> list(_rows_by_reason([("a", "uses 900 MHz, idle is below 500"), ("b", "uses 600 MHz, idle is below 500")]))
    [('2', 'uses .. MHz, idle is below 500', 'a, b')]
    """
    vms_by_reason: dict[str, list[str]] = {}
    numbers_by_reason: dict[str, list[list[str]]] = {}
    for vm, reason in staying:
        without_numbers = _NUMBER.sub("\0", reason)  # \0 marks the place of each number
        vms_by_reason.setdefault(without_numbers, []).append(vm)
        numbers_by_reason.setdefault(without_numbers, []).append(_NUMBER.findall(reason))
    for without_numbers, vms in vms_by_reason.items():
        columns = zip(*numbers_by_reason[without_numbers], strict=True)
        numbers = iter([column[0] if len(set(column)) == 1 else ".." for column in columns])
        why = "".join(next(numbers) if character == "\0" else character for character in without_numbers)
        yield str(len(vms)), why, some_names(vms, MOST_NAMES)


def _forecast_lines(preview: NightPreview) -> Iterator[Shown]:
    if not preview.forecasts:
        if not preview.no_forecast:
            yield Text("no forecast of the morning: nothing was measured yet (gpuops help observe)", "dim")
        return
    begin, until = preview.morning
    columns = ("pool", f"from {_clock(begin, preview)}, each hour", "goes by", "off by", "the week before is off by")
    rows = [_forecast_row(pool, forecast, begin, until) for pool, forecast in preview.forecasts.items()]
    yield from _titled_table("desktops expected in use", columns, rows)


def _forecast_row(pool: str, forecast: Forecast, begin: datetime, until: datetime) -> tuple[str, ...]:
    hours = [begin + number * _HOUR for number in range(ceil((until - begin) / _HOUR))]
    most_text = " ".join(optional_figure(forecast.most(hour, hour + _HOUR)) for hour in hours)
    bases = dict.fromkeys(
        count(slot.weeks, "week") if slot.basis is Basis.EARLIER_WEEKS else "the day before"
        for slot in forecast.slots
        if slot is not None and slot.begin + SLOT > begin
    )
    return (
        pool,
        most_text,
        ", ".join(bases) or "nothing is known",
        _error_text(forecast.error),
        _error_text(forecast.naive),
    )


def _error_text(error: Error | None) -> str:
    return "not known" if error is None else f"{error.mean:.1f}; in 9 of 10 slots short by at most {error.short}"


def _titled_table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[Shown]:
    yield Text(title, "bold cyan")
    yield TextTable(*columns, rows=rows)


def _zone(preview: NightPreview) -> tzinfo:
    windows = preview.night_plan.policy.windows
    return preview.night.zone if preview.night is not None else windows[0].zone if windows else UTC


def _moment(moment: datetime, preview: NightPreview) -> str:
    zone = _zone(preview)
    local = moment.astimezone(zone)
    # not `%a`: Ansible switches the locale on, and the day would be named in its language
    return f"{Weekday.of(local.date()).title()} {format_minute(local)} {zone}"


def _clock(moment: datetime, preview: NightPreview) -> str:
    local, night = moment.astimezone(_zone(preview)), preview.night
    lasts_days = night is not None and night.back_by - night.opens > timedelta(days=1)
    return f"{Weekday.of(local.date()).title()} {format_clock(local)}" if lasts_days else format_clock(local)


class NightWindowRecord(DocumentRecord, frozen=True):
    """When a night may begin and when its desktops are back."""

    zone: str
    opens: Moment
    closes: Moment
    back_by: Moment


class MlRunRecord(DocumentRecord, frozen=True):
    """An ML VM that would run."""

    ref: Ref
    name: str
    host: str
    moves: Annotated[bool, "whether it is moved there first"]
    gpus: float
    begins: Moment
    ends: Moment | None
    gpu_hours: float | None

    @classmethod
    def made_of(cls, expected: ExpectedRun) -> Self:
        start, ends = expected.start, expected.run.ends
        begins = _utc(expected.run.begins)
        return cls.from_attributes(
            expected, start, start.vm, host=start.host.name, begins=begins, ends=None if ends is None else _utc(ends)
        )


class TakenDesktopRecord(DocumentRecord, frozen=True):
    """A desktop that would be taken."""

    ref: Ref
    name: str
    host: str
    how: Annotated[str, "suspend or shut-down-guest"]
    for_: Annotated[str, "the ML VM that gets its GPU"] = field(name="for")


class GpuPlaceRecord(DocumentRecord, frozen=True):
    """A place on a GPU."""

    gpu: Annotated[str, "PCI address"]
    place: str


class ReturningDesktopRecord(DocumentRecord, frozen=True):
    """A desktop with the places of its vGPUs."""

    ref: Ref
    name: str
    seats: list[GpuPlaceRecord]

    @classmethod
    def made_of(cls, desktop: ReturnedDesktop) -> Self:
        seats = [GpuPlaceRecord(str(place.gpu), place.place) for place in desktop.places]
        return cls.from_attributes(desktop.vm, seats=seats)


class ReturnProofRecord(DocumentRecord, frozen=True):
    """Whether the desktops of a host come back in every order of events."""

    host: NamedRecord
    nothing_taken_from: Annotated[Moment | None, "nothing is taken there from then on"]
    proved: bool
    instants: Annotated[int, "how many moments of the night were checked"]
    refusals: list[RejectionRecord]
    order: list[ReturningDesktopRecord]


class ExpectedUseRecord(DocumentRecord, frozen=True):
    """The expected use in a quarter of an hour."""

    begin: Moment
    in_use: Annotated[int, "desktops"]
    basis: Annotated[str, "earlier-weeks or day-before"]
    weeks: Annotated[int, "number of earlier weeks in the mean"]


class ForecastErrorRecord(DocumentRecord, frozen=True):
    """How far forecasts were off, where desktops were in use or expected to be."""

    slots: Annotated[int, "number of quarters of an hour"]
    mean: Annotated[float, "mean absolute error, in desktops"]
    short: Annotated[int, "in nine slots of ten, at most so many more desktops were in use than expected"]

    @classmethod
    def made_of(cls, error: Error) -> Self:
        return cls(error.slots, round(error.mean, 2), error.short)


class PoolForecastRecord(DocumentRecord, frozen=True):
    """How many desktops of a pool are expected in use."""

    pool: Annotated[str, "its name"]
    error: Annotated[ForecastErrorRecord | None, "of such forecasts for the past; null = too little was measured"]
    week_before_error: Annotated[ForecastErrorRecord | None, "of forecasts by the week before only"]
    slots: Annotated[
        list[ExpectedUseRecord],
        "quarters of an hour from the begin of the night; unknown ones are left out",
    ]


@printed("rotation-plan", by="gpuops rotate plan")
class RotationPlanDocument(SiteDocument, frozen=True):
    """What a night would do, and the proof that its desktops come back; its times are in UTC."""

    policy: Annotated[str, "its name"]
    at: Annotated[Moment, "when the night begins"]
    night: str
    window: NightWindowRecord | None
    feasible: bool
    exit_code: int
    over: Annotated[bool, "whether its return has begun"]
    because: list[str]
    rejections: list[RejectionRecord]
    warnings: list[str]
    gpu_hours: Annotated[float | None, "of all ML VMs that would run; null = not known"]
    ml: Annotated[list[MlRunRecord], "the ML VMs that would run, where and how long"]
    desktops: Annotated[list[TakenDesktopRecord], "those that would be suspended or shut down"]
    choices: Annotated[list[ChoiceRecord], "why each VM and host would be taken or not"]
    returns: Annotated[list[ReturnProofRecord], "for each host, the proof that its desktops come back"]
    forecasts: Annotated[
        list[PoolForecastRecord], "desktops expected in use until after the morning; empty = nothing was measured"
    ]


def preview_document(preview: NightPreview) -> RotationPlanDocument:
    """Return the preview as a document; every moment in UTC."""
    night_plan, night = preview.night_plan, preview.night
    window = None
    if night is not None:
        window = NightWindowRecord(str(night.zone), _utc(night.opens), _utc(night.closes), _utc(night.back_by))
    desktops = [
        TakenDesktopRecord(
            vm.ref, vm.name, start.host.name, "shut-down-guest" if vm.has_passthrough else "suspend", start.vm.name
        )
        for start in night_plan.decision.starts
        for vm in start.desktops
    ]
    return RotationPlanDocument.from_attributes(
        preview,
        night_plan,
        vcenter=preview.inventory.vcenter,
        read_at=preview.inventory.taken_at,
        policy=night_plan.policy.name,
        at=_utc(preview.at),
        night=night_plan.night,
        window=window,
        feasible=not night_plan.refusals,
        over=night_plan.is_over,
        because=night_plan.plan().because,
        rejections=night_plan.refusals,
        ml=preview.expected_runs,
        desktops=desktops,
        returns=[_proof(proof, preview) for proof in preview.proofs],
        forecasts=[_forecast(pool, forecast) for pool, forecast in preview.forecasts.items()],
    )


def _forecast(pool: str, forecast: Forecast) -> PoolForecastRecord:
    slots = [
        ExpectedUseRecord.from_attributes(slot, begin=_utc(slot.begin)) for slot in forecast.slots if slot is not None
    ]
    return PoolForecastRecord.from_attributes(forecast, pool=pool, week_before_error=forecast.naive, slots=slots)


def _proof(proof: HostProof, preview: NightPreview) -> ReturnProofRecord:
    begins = preview.night_plan.return_times.get(proof.host.ref)
    nothing_taken_from = _utc(begins) if begins is not None else None
    return ReturnProofRecord.from_attributes(proof, nothing_taken_from=nothing_taken_from, proved=not proof.refusals)


def _utc(moment: datetime) -> Moment:
    return Moment(format_iso_utc(moment))
