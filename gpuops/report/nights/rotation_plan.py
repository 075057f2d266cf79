"""What `rotate plan` prints, as text and JSON: who is suspended for whom, who stays and why, and the way back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Final, Self

from msgspec import field

from gpuops.advise.forecast import SLOT, Basis, Error, Expected, Forecast
from gpuops.model.nights.night_record import Role
from gpuops.model.time_text import format_clock, format_iso_utc, format_minute, format_zoned_minute
from gpuops.model.window import Weekday
from gpuops.plan.placement.suspended_vms import role_of
from gpuops.plan.rotation.nights.preview import ExpectedRun, HostProof, NightPreview, ReturnedDesktop
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, Ref, SiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.nights.rotation_status import NO_LOCK_VM
from gpuops.report.plan_json import ChoiceRecord, RejectionRecord
from gpuops.report.plan_text import plan_text
from gpuops.report.text import count

_HOUR: Final = timedelta(hours=1)
_NUMBER: Final = re.compile(r"(?<![\w.-])\d[\d.,]*(?![\w-])")
MOST_NAMES: Final = 5
"""So many VMs are named for a reason why they stay."""


def preview_text(found: NightPreview, *, every_vm: bool = False) -> Shown:
    """Return the result, then what would start and be suspended, then what stays, in a line for each reason.

    `every_vm`: what stays, and the way back, with a line for each VM.
    """
    return _parts(found, every_vm)


def _parts(found: NightPreview, every_vm: bool) -> Iterator[Shown]:
    yield Text(_headline(found), "bold")
    yield Text(_summary(found), "bold")
    yield Text(f"planned on what vCenter showed at {format_zoned_minute(found.inventory.taken_at)}", "dim")
    if found.night_plan.refusals:
        yield plan_text(found.night_plan.plan(), found.inventory)
    if found.expected_runs:
        yield from _table("ML VMs that start", ("VM", "host", "GPUs", "runs", "GPU-hours", "why"), _run_rows(found))
    desktops = list(_desktop_rows(found))
    if desktops:
        yield from _table("desktops that make room", ("VM", "host", "how", "for"), desktops)
    staying = [(choice.subject, choice.reason) for choice in found.night_plan.choices if not choice.chosen]
    if staying and every_vm:
        yield from _table("what stays as it is", ("VM", "why"), staying)
    elif staying:
        yield from _table("what stays as it is (--all: each VM)", ("VMs", "why", "which"), _rows_by_reason(staying))
    if found.proofs and every_vm:
        yield from _table("the way back, in this order", ("host", "from", "VM", "to"), _proof_rows(found))
    elif found.proofs:
        yield from _table("the way back (--all: each VM)", ("host", "from", "desktops"), _host_proof_rows(found))
    yield from _forecasts(found)
    yield from (Text(f"warning: {text}", "yellow") for text in found.warnings)
    if found.night_plan.policy.lock_vm is None:
        yield Text(NO_LOCK_VM, "dim")


def _headline(found: NightPreview) -> str:
    night = found.night
    text = f"policy {found.night_plan.policy.name}, night {found.night_plan.night}"
    if night is None:
        return f"{text}, at {_moment(found.at, found)}"
    window = f"open from {_clock(night.opens, found)} to {_clock(night.closes, found)}"
    return f"{text}, at {_moment(found.at, found)}: {window}, desktops back by {_clock(night.back_by, found)}"


def _summary(found: NightPreview) -> str:
    if found.night_plan.refusals:
        return f"no night: refused for {count(len(found.night_plan.refusals), 'reason')}"
    if found.night_plan.is_over:
        return f"no night: night {found.night_plan.night} is {found.night_plan.ended_reason}"
    hours = f"{found.gpu_hours:.1f} GPU-hours" if found.gpu_hours is not None else "GPU-hours unknown without a window"
    desktops = count(len(found.night_plan.decision.desktops), "desktop")
    return f"{count(len(found.expected_runs), 'ML VM')} would start, {desktops} would make room: {hours}{_doubt(found)}"


def _doubt(found: NightPreview) -> str:
    unproved = [proof.host.name for proof in found.proofs if proof.refusals]
    if unproved:
        return f"; the return to {', '.join(unproved)} is not proved"
    proved = sum(len(proof.order) for proof in found.proofs)
    return f"; {proved} come back, proved" if proved else ""


def _run_rows(found: NightPreview) -> Iterator[tuple[str, ...]]:
    chosen = [choice.reason for choice in found.night_plan.decision.choices if choice.chosen]
    for expected, reason in zip(found.expected_runs, chosen, strict=True):
        hours = "unknown" if expected.gpu_hours is None else f"{expected.gpu_hours:.1f}"
        start = expected.start
        yield start.vm.name, start.host.name, f"{expected.gpus:g}", _run(expected, found), hours, reason


def _run(expected: ExpectedRun, found: NightPreview) -> str:
    ends = "" if expected.run.ends is None else _clock(expected.run.ends, found)
    return f"{_clock(expected.run.begins, found)} to {ends or 'the morning'}"


def _desktop_rows(found: NightPreview) -> Iterator[tuple[str, ...]]:
    for start in found.night_plan.decision.starts:
        for vm in start.desktops:
            yield vm.name, start.host.name, _how(role_of(vm)), start.vm.name


def _how(role: Role) -> str:
    return "its guest shuts down" if role is Role.SHUT_DOWN else "suspend"


def _proof_rows(found: NightPreview) -> Iterator[tuple[str, ...]]:
    times = found.night_plan.return_times
    for proof in found.proofs:
        begins = _clock(times[proof.host.ref], found) if proof.host.ref in times else "any time"
        for desktop in proof.order:
            yield proof.host.name, begins, desktop.vm.name, ", ".join(str(place) for place in desktop.places)
        for refusal in proof.refusals:
            yield proof.host.name, begins, "not proved", str(refusal)


def _host_proof_rows(found: NightPreview) -> Iterator[tuple[str, ...]]:
    """One row for each host, and one for each reason why the return to it is not proved."""
    times = found.night_plan.return_times
    for proof in found.proofs:
        begins = _clock(times[proof.host.ref], found) if proof.host.ref in times else "any time"
        if proof.order:
            yield proof.host.name, begins, f"{len(proof.order)}, each with its place"
        for refusal in proof.refusals:
            yield proof.host.name, begins, f"not proved: {refusal}"


def _rows_by_reason(staying: Iterable[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    """Return a row for each reason: how many VMs have it, the reason, and the first of these VMs.

    Reasons that differ in numbers alone are one reason, which has `..` in place of these numbers.

    >>> list(_rows_by_reason([("a", "uses 900 MHz, idle is below 500"), ("b", "uses 600 MHz, idle is below 500")]))
    [('2', 'uses .. MHz, idle is below 500', 'a, b')]
    """
    vms_by_reason: dict[str, list[str]] = {}
    numbers_by_reason: dict[str, list[list[str]]] = {}
    for vm, reason in staying:
        without_numbers = _NUMBER.sub("\0", reason)
        vms_by_reason.setdefault(without_numbers, []).append(vm)
        numbers_by_reason.setdefault(without_numbers, []).append(_NUMBER.findall(reason))
    for without_numbers, vms in vms_by_reason.items():
        columns = zip(*numbers_by_reason[without_numbers], strict=True)
        shown = iter([column[0] if len(set(column)) == 1 else ".." for column in columns])
        why = "".join(next(shown) if character == "\0" else character for character in without_numbers)
        more = f" and {len(vms) - MOST_NAMES} more" if len(vms) > MOST_NAMES else ""
        yield str(len(vms)), why, ", ".join(vms[:MOST_NAMES]) + more


def _forecasts(found: NightPreview) -> Iterator[Shown]:
    if not found.forecasts:
        if not found.no_forecast:
            yield Text("no forecast of the morning: nothing was measured yet (gpuops help observe)", "dim")
        return
    begin, until = found.morning
    columns = ("pool", f"from {_clock(begin, found)}, each hour", "goes by", "off by", "the week before is off by")
    rows = [_forecast_row(pool, forecast, found, begin, until) for pool, forecast in found.forecasts.items()]
    yield from _table("desktops expected in use", columns, rows)


def _forecast_row(
    pool: str, forecast: Forecast, found: NightPreview, begin: datetime, until: datetime
) -> tuple[str, ...]:
    hours = [begin + number * _HOUR for number in range(-(-(until - begin) // _HOUR))]
    most = [forecast.most(hour, hour + _HOUR) for hour in hours]
    bases = dict.fromkeys(_basis(slot) for slot in forecast.slots if slot is not None and slot.begin + SLOT > begin)
    told = " ".join("?" if each is None else str(each) for each in most)
    return pool, told, ", ".join(bases) or "nothing is known", _error(forecast.error), _error(forecast.naive)


def _basis(slot: Expected) -> str:
    return count(slot.weeks, "week") if slot.basis is Basis.EARLIER_WEEKS else "the day before"


def _error(error: Error | None) -> str:
    return "not known" if error is None else f"{error.mean:.1f}; short by {error.short} at most in 9 of 10"


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[Shown]:
    yield Text(title, "bold cyan")
    yield TextTable(*columns, rows=rows)


def _zone(found: NightPreview) -> tzinfo:
    windows = found.night_plan.policy.windows
    return found.night.zone if found.night is not None else windows[0].zone if windows else UTC


def _moment(moment: datetime, found: NightPreview) -> str:
    zone = _zone(found)
    local = moment.astimezone(zone)
    # not `%a`: Ansible switches the locale on, and the day would be named in its language
    return f"{Weekday.of(local.date()).title()} {format_minute(local)} {zone}"


def _clock(moment: datetime, found: NightPreview) -> str:
    local, night = moment.astimezone(_zone(found)), found.night
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
    nothing_taken_from: Annotated[Moment | None, "from then on nothing is taken there"]
    proved: bool
    instants: Annotated[int, "how many moments of the night were checked"]
    refusals: list[RejectionRecord]
    order: list[ReturningDesktopRecord]


class ExpectedUseRecord(DocumentRecord, frozen=True):
    """What is expected in a quarter of an hour."""

    begin: Moment
    in_use: Annotated[int, "desktops"]
    basis: Annotated[str, "earlier-weeks or day-before"]
    weeks: Annotated[int, "how many earlier weeks it is the mean of"]


class ForecastErrorRecord(DocumentRecord, frozen=True):
    """How far forecasts were off, where desktops were in use or expected to be."""

    slots: Annotated[int, "of so many quarters of an hour"]
    mean: Annotated[float, "desktops, whichever way"]
    short: Annotated[int, "in nine slots of ten no more than so many were in use beyond what was expected"]

    @classmethod
    def made_of(cls, error: Error) -> Self:
        return cls(error.slots, round(error.mean, 2), error.short)


class PoolForecastRecord(DocumentRecord, frozen=True):
    """How many desktops of a pool are expected in use."""

    pool: Annotated[str, "its name"]
    error: Annotated[ForecastErrorRecord | None, "of such forecasts on what was measured; null = too little was"]
    week_before_error: Annotated[ForecastErrorRecord | None, "of what was a week before alone"]
    slots: Annotated[
        list[ExpectedUseRecord],
        "quarters of an hour from the begin of the night on; one of which nothing is known is left out",
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


def preview_document(found: NightPreview) -> RotationPlanDocument:
    """The same for programs; every moment in UTC."""
    night_plan, night = found.night_plan, found.night
    return RotationPlanDocument.from_attributes(
        found,
        night_plan,
        vcenter=found.inventory.vcenter,
        read_at=found.inventory.taken_at,
        policy=night_plan.policy.name,
        at=_utc(found.at),
        night=night_plan.night,
        window=None
        if night is None
        else NightWindowRecord(str(night.zone), _utc(night.opens), _utc(night.closes), _utc(night.back_by)),
        feasible=not night_plan.refusals,
        over=night_plan.is_over,
        because=night_plan.plan().because,
        rejections=night_plan.refusals,
        ml=found.expected_runs,
        desktops=[
            TakenDesktopRecord(vm.ref, vm.name, start.host.name, _word(vm.has_passthrough), start.vm.name)
            for start in night_plan.decision.starts
            for vm in start.desktops
        ],
        returns=[_proof(proof, found) for proof in found.proofs],
        forecasts=[_forecast(pool, forecast) for pool, forecast in found.forecasts.items()],
    )


def _forecast(pool: str, forecast: Forecast) -> PoolForecastRecord:
    slots = [
        ExpectedUseRecord.from_attributes(slot, begin=_utc(slot.begin)) for slot in forecast.slots if slot is not None
    ]
    return PoolForecastRecord.from_attributes(forecast, pool=pool, week_before_error=forecast.naive, slots=slots)


def _word(passthrough: bool | None) -> str:
    return "shut-down-guest" if passthrough else "suspend"


def _proof(proof: HostProof, found: NightPreview) -> ReturnProofRecord:
    begins = found.night_plan.return_times.get(proof.host.ref)
    nothing_taken_from = _utc(begins) if begins is not None else None
    return ReturnProofRecord.from_attributes(proof, nothing_taken_from=nothing_taken_from, proved=not proof.refusals)


def _utc(moment: datetime) -> Moment:
    return Moment(format_iso_utc(moment))
