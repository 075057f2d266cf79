"""Text and document of `gpuops queue`: the ML queue in its order, and the shares of the teams."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, timedelta, tzinfo
from typing import Annotated, Self

from gpuops.model.time_text import format_clock, format_iso_utc, format_minute
from gpuops.plan.rotation.ml_queue.queue_look import QueueLook, QueuePlace, QueueState
from gpuops.plan.rotation.ml_queue.team_shares import TeamShares, TeamStanding
from gpuops.report.document import DocumentRecord, Moment, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.plan_json import RejectionRecord
from gpuops.report.text import count, optional_figure

_DAY = timedelta(days=1)
_STYLES = {QueueState.STARTS: "green", QueueState.WAITS: "yellow", QueueState.RUNS: "", QueueState.NOT_NOW: "dim"}


def queue_text(look: QueueLook) -> Iterator[Shown]:
    """Yield a table of the teams, and a table of the queue."""
    plan = look.night_plan
    local_time = look.at.astimezone(_zone(look))
    subject = f"night {plan.night}" if plan.policy.spare is None else "spare capacity"
    yield Text(
        f"ML queue of policy {plan.policy.name}, {subject}, at {format_minute(local_time)} {_zone(look)}", "bold"
    )
    for rejection in plan.refusals:
        yield Text(f"no start: {rejection}", "yellow")
    if plan.shares is not None and plan.shares.standings:
        yield from _team_lines(plan.shares)
    if look.places:
        yield _places_table(look)
    if plan.shares is not None:
        yield from (Text(f"warning: {warning}", "yellow") for warning in plan.shares.unclear)
    states = [place.state for place in look.places]
    starts, waits, runs = (states.count(state) for state in (QueueState.STARTS, QueueState.WAITS, QueueState.RUNS))
    yield Text(f"{count(starts, 'ML VM')} would start, {waits} would wait, {runs} run already", "bold")


def _team_lines(shares: TeamShares) -> Iterator[Shown]:
    days = shares.rule.half_life / _DAY
    yield Text(f"teams by {shares.rule.by}; GPU-hours of {days:g} days ago count half", "dim")
    yield table_of(
        shares.standings,
        Column("team", lambda standing: standing.team.name),
        Column("weight", lambda standing: f"{standing.team.weight:g}", right=True),
        Column("share", lambda standing: f"{standing.share:.0%}", right=True),
        Column("recent share", lambda team: optional_figure(team.used_share, ".0%", unknown="-"), right=True),
        Column(
            "GPU-hours of 7 days",
            lambda standing: _amount_of_limit(standing.use.week, standing.team.at_most.gpu_hours_per_week),
            right=True,
        ),
        Column("left", lambda team: "any" if team.hours_left is None else f"{team.hours_left:.1f}", right=True),
        Column(
            "GPUs now", lambda standing: _amount_of_limit(standing.running_gpus, standing.team.at_most.gpus), right=True
        ),
    )
    for standing in shares.standings:
        if standing.use.unknown:
            runs = count(standing.use.unknown, "run")
            yield Text(f"team {standing.team.name}: the GPU-hours of {runs} are not known and not counted", "dim")


def _amount_of_limit(amount: float, most: float | None) -> str:
    return f"{amount:.1f}" if most is None else f"{amount:.1f} of {most:g}"


def _places_table(look: QueueLook) -> TextTable:
    return table_of(
        look.places,
        Column("", lambda place: optional_figure(place.place, unknown="")),
        Column("VM", lambda place: place.waits.name),
        Column("team", lambda place: place.waits.team) if look.night_plan.shares is not None else None,
        Column("priority", lambda place: str(place.waits.queued.priority)),
        Column("GPUs", lambda place: optional_figure(place.gpus, ".4g", unknown="")),
        Column("turn", lambda place: Text(place.state.value, _STYLES[place.state])),
        Column(
            "at", lambda place: "" if place.starts_at is None else format_clock(place.starts_at.astimezone(_zone(look)))
        ),
        Column("why", lambda place: place.reason),
    )


def _zone(look: QueueLook) -> tzinfo:
    windows = look.night_plan.policy.windows
    return windows[0].zone if windows else UTC


class FairShareRecord(DocumentRecord, frozen=True):
    """How teams share the queue."""

    by: Annotated[str, "the property of a VM that names its team"]
    half_life_days: Annotated[float, "GPU-hours of this age count half"]


class TeamStandingRecord(DocumentRecord, frozen=True):
    """The past use, current use and limits of a team."""

    team: str
    weight: float
    share: Annotated[float, "its weight divided by that of all teams in the queue, 0 to 1"]
    gpu_hours: Annotated[float, "past use, weighted by the half-life"]
    used_share: Annotated[float | None, "its part of all such hours, 0 to 1; null = no team had any"]
    gpu_hours_week: Annotated[float, "of the last 7 days, unweighted"]
    gpu_hours_coming: Annotated[float, "that its running ML VMs may still use until desktops are due"]
    gpu_hours_at_most: Annotated[float | None, "limit in any 7 days; null = no limit"]
    gpu_hours_left: Annotated[float | None, "left in that limit; null = no limit"]
    gpus: Annotated[float, "that its VMs hold now"]
    gpus_at_most: float | None
    uncounted_runs: Annotated[int, "runs whose GPU-hours are not known"]

    @classmethod
    def made_of(cls, standing: TeamStanding) -> Self:
        team, use, hours_left = standing.team, standing.use, standing.hours_left
        return cls.from_attributes(
            team,
            team=team.name,
            share=round(standing.share, 4),
            gpu_hours=round(use.decayed, 3),
            used_share=None if standing.used_share is None else round(standing.used_share, 4),
            gpu_hours_week=round(use.week, 3),
            gpu_hours_coming=round(standing.coming_hours, 3),
            gpu_hours_at_most=team.at_most.gpu_hours_per_week,
            gpu_hours_left=None if hours_left is None else round(hours_left, 3),
            gpus=round(standing.running_gpus, 4),
            gpus_at_most=team.at_most.gpus,
            uncounted_runs=use.unknown,
        )


class QueuePlaceRecord(DocumentRecord, frozen=True):
    """A VM of the queue, or a queue line without a VM in the inventory."""

    name: str
    ref: Annotated[str | None, "null = there is no such VM"]
    team: Annotated[str | None, "null = the policy knows no teams, or there is no such VM"]
    place: Annotated[int | None, "among those that wait for a start, from 1 on"]
    priority: int
    gpus: Annotated[float | None, "GPUs that its devices amount to"]
    turn: QueueState
    starts_at: Annotated[
        Moment | None, "when it is expected to start; null = it does not start, or a watch sets no time"
    ]
    reason: Annotated[str, "why it starts, waits, or does neither"]

    @classmethod
    def made_of(cls, place: QueuePlace) -> Self:
        waits = place.waits
        return cls.from_attributes(
            place,
            waits,
            ref=waits.vm.ref if waits.vm is not None else None,
            team=waits.team or None,
            priority=waits.queued.priority,
            turn=place.state,
            gpus=None if place.gpus is None else round(place.gpus, 4),
            starts_at=None if place.starts_at is None else format_iso_utc(place.starts_at),
        )


@printed("ml-queue", by="gpuops queue")
class MlQueueDocument(SiteDocument, frozen=True):
    """The ML queue in the order in which a night or a watch would take it, and how its teams stand."""

    policy: Annotated[str, "its name"]
    at: Annotated[Moment, "the moment for which the queue is shown"]
    night: str
    fair_share: Annotated[FairShareRecord | None, "null = the policy knows no teams"]
    teams: Annotated[list[TeamStandingRecord], "by name"]
    queue: Annotated[list[QueuePlaceRecord], "in the order in which they are tried"]
    rejections: Annotated[list[RejectionRecord], "why there is no night at that time"]
    warnings: list[str]


def queue_document(look: QueueLook) -> MlQueueDocument:
    """Return the queue and the teams as a document; every moment in UTC."""
    plan = look.night_plan
    shares = plan.shares
    return MlQueueDocument.from_attributes(
        plan,
        vcenter=look.inventory.vcenter,
        read_at=look.inventory.taken_at,
        policy=plan.policy.name,
        at=format_iso_utc(look.at),
        fair_share=FairShareRecord(str(shares.rule.by), shares.rule.half_life / _DAY) if shares is not None else None,
        teams=shares.standings if shares is not None else (),
        queue=look.places,
        rejections=plan.refusals,
        warnings=shares.unclear if shares is not None else (),
    )
