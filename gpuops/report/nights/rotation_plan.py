"""What `rotate plan` prints, as text and JSON: who is suspended for whom, who stays and why, and the way back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from gpuops.advise.forecast import SLOT, Basis, Error, Expected, Forecast
from gpuops.model.nights.night_record import Role
from gpuops.model.window import Weekday
from gpuops.plan.placement.return_order import role_of
from gpuops.plan.rotation.nights.preview import ExpectedRun, HostProof, NightPreview
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.nights.rotation_status import NO_LOCK_VM
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.plan_text import plan_text
from gpuops.report.text import count, visible

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
    yield Text(f"planned on what vCenter showed at {found.inventory.taken_at:%Y-%m-%d %H:%M %Z}", "dim")
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
    yield from (Text(f"warning: {visible(text)}", "yellow") for text in found.warnings)
    if found.night_plan.policy.lock_vm is None:
        yield Text(NO_LOCK_VM, "dim")


def _headline(found: NightPreview) -> str:
    night = found.night
    text = f"policy {visible(found.night_plan.policy.name)}, night {found.night_plan.night}"
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
            yield Text("no forecast of the morning: nothing was measured yet (gpuops help measurements)", "dim")
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
    table = TextTable(*columns)
    for row in rows:
        table.add_row(*(visible(cell) for cell in row))
    yield Text(title, "bold cyan")
    yield table


def _zone(found: NightPreview) -> tzinfo:
    windows = found.night_plan.policy.windows
    return found.night.zone if found.night is not None else windows[0].zone if windows else UTC


def _moment(moment: datetime, found: NightPreview) -> str:
    zone = _zone(found)
    local = moment.astimezone(zone)
    # not `%a`: Ansible switches the locale on, and the day would be named in its language
    return f"{Weekday.of(local.date()).title()} {local:%Y-%m-%d %H:%M} {zone}"


def _clock(moment: datetime, found: NightPreview) -> str:
    local, night = moment.astimezone(_zone(found)), found.night
    lasts_days = night is not None and night.back_by - night.opens > timedelta(days=1)
    return f"{Weekday.of(local.date()).title()} {local:%H:%M}" if lasts_days else f"{local:%H:%M}"


def preview_document(found: NightPreview) -> Document:
    """The same for programs; every moment in UTC."""
    night_plan, night = found.night_plan, found.night
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotation-plan",
        "vcenter": found.inventory.vcenter,
        "read_at": found.inventory.taken_at.isoformat(),
        "policy": night_plan.policy.name,
        "at": _utc(found.at),
        "night": night_plan.night,
        "window": None
        if night is None
        else {
            "zone": str(night.zone),
            "opens": _utc(night.opens),
            "closes": _utc(night.closes),
            "back_by": _utc(night.back_by),
        },
        "feasible": not night_plan.refusals,
        "exit_code": found.exit_code,
        "over": night_plan.is_over,
        "because": list(night_plan.plan().because),
        "rejections": [RejectionRecord.of(refusal) for refusal in night_plan.refusals],
        "warnings": list(found.warnings),
        "gpu_hours": found.gpu_hours,
        "ml": [_expected_run(expected) for expected in found.expected_runs],
        "desktops": [
            {
                "ref": vm.ref,
                "name": vm.name,
                "host": start.host.name,
                "how": _word(vm.has_passthrough),
                "for": start.vm.name,
            }
            for start in night_plan.decision.starts
            for vm in start.desktops
        ],
        "choices": [
            {"subject": choice.subject, "chosen": choice.chosen, "reason": choice.reason}
            for choice in night_plan.choices
        ],
        "returns": [_proof(proof, found) for proof in found.proofs],
        "forecasts": [_forecast(pool, forecast) for pool, forecast in found.forecasts.items()],
    }


def _forecast(pool: str, forecast: Forecast) -> Document:
    return {
        "pool": pool,
        "error": _error_document(forecast.error),
        "week_before_error": _error_document(forecast.naive),
        "slots": [
            {"begin": _utc(slot.begin), "in_use": slot.in_use, "basis": slot.basis.value, "weeks": slot.weeks}
            for slot in forecast.slots
            if slot is not None
        ],
    }


def _error_document(error: Error | None) -> Document | None:
    return None if error is None else {"slots": error.slots, "mean": round(error.mean, 2), "short": error.short}


def _word(passthrough: bool | None) -> str:
    return "shut-down-guest" if passthrough else "suspend"


def _expected_run(expected: ExpectedRun) -> Document:
    return {
        "ref": expected.start.vm.ref,
        "name": expected.start.vm.name,
        "host": expected.start.host.name,
        "moves": expected.start.moves,
        "gpus": expected.gpus,
        "begins": _utc(expected.run.begins),
        "ends": _utc(expected.run.ends) if expected.run.ends is not None else None,
        "gpu_hours": expected.gpu_hours,
    }


def _proof(proof: HostProof, found: NightPreview) -> Document:
    begins = found.night_plan.return_times.get(proof.host.ref)
    return {
        "host": {"ref": proof.host.ref, "name": proof.host.name},
        "nothing_taken_from": _utc(begins) if begins is not None else None,
        "proved": not proof.refusals,
        "instants": proof.instants,
        "refusals": [RejectionRecord.of(refusal) for refusal in proof.refusals],
        "order": [
            {
                "ref": desktop.vm.ref,
                "name": desktop.vm.name,
                "seats": [{"gpu": str(place.gpu), "place": place.place} for place in desktop.places],
            }
            for desktop in proof.order
        ],
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
