"""What `gpuops queue` prints: the ML queue in its order, and how its teams stand, as text and document."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from gpuops.plan.rotation.ml_queue.queue_look import QueueLook, QueuePlace, QueueState
from gpuops.plan.rotation.ml_queue.team_shares import TeamShares, TeamStanding
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count, visible

_DAY = timedelta(days=1)
_STYLES = {QueueState.STARTS: "green", QueueState.WAITS: "yellow", QueueState.RUNS: "", QueueState.NOT_NOW: "dim"}


def queue_text(found: QueueLook) -> Shown:
    """The teams, then the queue."""
    return _parts(found)


def _parts(found: QueueLook) -> Iterator[Shown]:
    plan = found.night_plan
    at = found.at.astimezone(_zone(found))
    what = f"night {plan.night}" if plan.policy.spare is None else "spare capacity"
    yield Text(f"ML queue of policy {visible(plan.policy.name)}, {what}, at {at:%Y-%m-%d %H:%M} {_zone(found)}", "bold")
    for rejection in plan.refusals:
        yield Text(f"no start: {visible(str(rejection))}", "yellow")
    if plan.shares is not None and plan.shares.standings:
        yield from _teams(plan.shares)
    if found.places:
        columns = ("VM", "team", "priority", "GPUs", "turn", "at", "why")
        table = TextTable("", *(columns if plan.shares is not None else (columns[0], *columns[2:])))
        for place in found.places:
            table.add_row(*_row(place, found))
        yield table
    if plan.shares is not None:
        yield from (Text(f"warning: {visible(said)}", "yellow") for said in plan.shares.unclear)
    yield Text(_summary(found), "bold")


def _teams(shares: TeamShares) -> Iterator[Shown]:
    days = shares.rule.half_life / _DAY
    yield Text(f"teams by {visible(str(shares.rule.by))}; GPU-hours of {days:g} days ago count half", "dim")
    table = TextTable(
        "team", "weight", "share", "had of late", "GPU-hours of 7 days", "left", "GPUs now", right=(1, 2, 3, 4, 5, 6)
    )
    for each in shares.standings:
        team, used = each.team, each.used_share
        left = each.hours_left
        table.add_row(
            visible(team.name),
            f"{team.weight:g}",
            f"{each.share:.0%}",
            "-" if used is None else f"{used:.0%}",
            _of(each.use.week, team.gpu_hours),
            "any" if left is None else f"{left:.1f}",
            _of(each.running_gpus, team.gpus),
        )
    yield table
    for each in shares.standings:
        if each.use.unknown:
            runs = count(each.use.unknown, "run")
            yield Text(f"team {visible(each.team.name)}: the GPU-hours of {runs} are not known, and left out", "dim")


def _of(amount: float, most: float | None) -> str:
    return f"{amount:.1f}" if most is None else f"{amount:.1f} of {most:g}"


def _row(place: QueuePlace, found: QueueLook) -> list[str | Text]:
    waits, shares = place.waits, found.night_plan.shares
    starts = "" if place.starts_at is None else f"{place.starts_at.astimezone(_zone(found)):%H:%M}"
    row: list[str | Text] = [
        "" if place.place is None else str(place.place),
        visible(waits.name),
        str(waits.queued.priority),
        "" if place.gpus is None else f"{place.gpus:.4g}",
        Text(place.state.value, _STYLES[place.state]),
        starts,
        visible(place.reason),
    ]
    return row if shares is None else [*row[:2], visible(waits.team), *row[2:]]


def _summary(found: QueueLook) -> str:
    states = [place.state for place in found.places]
    starts, waits, runs = (states.count(state) for state in (QueueState.STARTS, QueueState.WAITS, QueueState.RUNS))
    return f"{count(starts, 'ML VM')} would start, {waits} would wait, {runs} run already"


def _zone(found: QueueLook) -> tzinfo:
    windows = found.night_plan.policy.windows
    return windows[0].zone if windows else UTC


def queue_document(found: QueueLook) -> Document:
    """The same for programs; every moment in UTC."""
    plan = found.night_plan
    shares = plan.shares
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "ml-queue",
        "vcenter": found.inventory.vcenter,
        "read_at": found.inventory.taken_at.isoformat(),
        "policy": plan.policy.name,
        "at": _utc(found.at),
        "night": plan.night,
        "fair_share": None
        if shares is None
        else {
            "by": str(shares.rule.by),
            "half_life_days": shares.rule.half_life / _DAY,
        },
        "teams": [_standing(each) for each in (shares.standings if shares is not None else ())],
        "queue": [_place(place) for place in found.places],
        "rejections": [RejectionRecord.of(refusal) for refusal in plan.refusals],
        "warnings": list(shares.unclear if shares is not None else ()),
    }


def _standing(each: TeamStanding) -> Document:
    left = each.hours_left
    return {
        "team": each.team.name,
        "weight": each.team.weight,
        "share": round(each.share, 4),
        "gpu_hours": round(each.use.decayed, 3),
        "used_share": None if each.used_share is None else round(each.used_share, 4),
        "gpu_hours_week": round(each.use.week, 3),
        "gpu_hours_coming": round(each.coming_hours, 3),
        "gpu_hours_at_most": each.team.gpu_hours,
        "gpu_hours_left": None if left is None else round(left, 3),
        "gpus": round(each.running_gpus, 4),
        "gpus_at_most": each.team.gpus,
        "uncounted_runs": each.use.unknown,
    }


def _place(place: QueuePlace) -> Document:
    vm = place.waits.vm
    return {
        "name": place.waits.name,
        "ref": vm.ref if vm is not None else None,
        "team": place.waits.team or None,
        "place": place.place,
        "priority": place.waits.queued.priority,
        "gpus": None if place.gpus is None else round(place.gpus, 4),
        "turn": place.state.value,
        "starts_at": None if place.starts_at is None else _utc(place.starts_at),
        "reason": place.reason,
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
