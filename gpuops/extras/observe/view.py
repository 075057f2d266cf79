"""Texts and documents of `gpuops observe`, `gpuops idle --replay` and `gpuops capacity --forecast`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import Annotated, Final, Self

from msgspec import field

from gpuops.extras.observe.replay import SOON_STEPS, STEP, PoolNight, PoolReplay, Replay, UnknownUse
from gpuops.extras.observe.run_out import FEWEST_DAYS, HORIZON, TESTED_AHEAD, RunOut
from gpuops.model.desktops.evidence import Source, names
from gpuops.model.measurements.measurement import Cycle, Span, Stored, StoredTier, StoredVcenter
from gpuops.model.time_text import format_minute, format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, SiteDocument, VcenterDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count, optional_figure, vcenter_heading

_SHOWN_GAPS: Final = 10


def cycle_text(cycle: Cycle) -> Shown:
    """Return what one observation measured, which use is unknown, and which gap was filled, a line for each."""
    if cycle.until is None or cycle.begin is None:
        return Text("nothing to do: the last observation was less than five minutes ago", "bold")
    lines = [
        Text(
            f"measured {_span(Span(cycle.begin, cycle.until))}: {cycle.vms_measured} of {cycle.vms} VMs, "
            f"{cycle.hosts_measured} of {cycle.hosts} hosts, {cycle.calls} calls"
        )
    ]
    if cycle.vms_gpu_unknown:
        lines.append(
            Text(f"GPU use is unknown, not zero, for {count(cycle.vms_gpu_unknown, 'VM')} with vGPUs", "yellow")
        )
    if cycle.hosts_entered is not None:
        lines.append(Text(f"nvidia-smi was read on {cycle.hosts_entered} of {cycle.hosts} hosts"))
    if cycle.filled is not None:
        lines.append(Text(f"filled with vCenter's five-minute averages: {_span(cycle.filled)}"))
    return tuple(lines)


class ObservedSpanRecord(DocumentRecord, frozen=True):
    """A while."""

    from_: Moment = field(name="from")
    until: Moment

    @classmethod
    def made_of(cls, span: Span) -> Self:
        return cls(Moment(span.begin.isoformat()), Moment(span.until.isoformat()))


@printed("observe", by="gpuops observe --once")
class ObserveDocument(VcenterDocument, frozen=True):
    """One look at the performance counters of a vCenter."""

    from_: Annotated[
        Moment | None, "from when on it is measured; null = the last look was less than five minutes ago"
    ] = field(name="from")
    until: Moment | None
    filled: Annotated[ObservedSpanRecord | None, "what was asked of vCenter's own five-minute averages"]
    vms: Annotated[int, "how many there are, templates left out"]
    vms_measured: Annotated[int, "of how many there was a sample"]
    vms_gpu_unknown: Annotated[int, "VMs with vGPUs whose use of the GPU is unknown, which is not zero"]
    hosts: int
    hosts_measured: int
    calls: Annotated[int, "of QueryPerf"]
    hosts_entered: Annotated[int | None, "of how many the own nvidia-smi told something; null = none was asked"]

    @classmethod
    def made_of(cls, cycle: Cycle) -> Self:
        return cls.from_attributes(cycle, from_=cycle.begin)


def stored_text(stored: Stored) -> Shown:
    """Return what is stored, by vCenter."""
    if not stored.vcenters:
        return (
            Text(f"nothing was measured yet in {stored.store}", "bold"),
            Text("next: gpuops observe --once --vcenter NAME"),
        )
    lines = [Text(stored.store, "bold")]
    for vcenter in stored.vcenters:
        lines += _vcenter_lines(vcenter)
    return tuple(lines)


class StoredTierRecord(DocumentRecord, frozen=True):
    """What is stored in steps of one length."""

    step_s: int
    entities: Annotated[int, "VMs and hosts"]
    blocks: int
    bytes: Annotated[int, "of the packed blocks, without what the database adds"]
    since: Annotated[Moment | None, "where the oldest block begins"]

    @classmethod
    def made_of(cls, tier: StoredTier) -> Self:
        return cls.from_attributes(tier, step_s=int(tier.step.total_seconds()), bytes=tier.stored_bytes)


class StoredVcenterRecord(DocumentRecord, frozen=True):
    """What is stored of one vCenter."""

    vcenter: Annotated[str, "its instance uuid"]
    since: Annotated[Moment | None, "since when it was observed"]
    until: Moment | None
    gaps: Annotated[list[ObservedSpanRecord], "when it was not, in between"]
    tiers: Annotated[list[StoredTierRecord], "steps of five minutes, and hours"]

    @classmethod
    def made_of(cls, vcenter: StoredVcenter) -> Self:
        since, until = (vcenter.observed[0].begin, vcenter.observed[-1].until) if vcenter.observed else (None, None)
        return cls.from_attributes(vcenter, since=since, until=until, gaps=list(_gaps(vcenter)))


@printed("observe-status", by="gpuops observe status")
class ObserveStatusDocument(PrintedDocument, frozen=True):
    """What the store of measurements holds."""

    store: Annotated[str, "the file, or the database without its password"]
    vcenters: list[StoredVcenterRecord]


def _vcenter_lines(vcenter: StoredVcenter) -> Iterator[Text]:
    """Yield the observed time, the stored steps with their size, and the gaps of one vCenter."""
    yield Text("")
    yield Text(f"vCenter {vcenter.vcenter}", "bold")
    if vcenter.observed:
        yield Text(f"  observed        {_span(Span(vcenter.observed[0].begin, vcenter.observed[-1].until))}")
    for tier in vcenter.tiers:
        size = f"{tier.stored_bytes / 1_000_000:.1f} MB"
        since = f", since {format_minute(tier.since)}" if tier.since is not None else ""
        yield Text(f"  steps of {_step(tier.step):<6} {tier.entities} VMs and hosts, {size}{since}")
    gaps = list(_gaps(vcenter))
    for gap in gaps[-_SHOWN_GAPS:]:
        yield Text(f"  not observed    {_span(gap)}", "yellow")
    if len(gaps) > _SHOWN_GAPS:
        yield Text(f"  and {len(gaps) - _SHOWN_GAPS} older gaps", "yellow")


def _gaps(vcenter: StoredVcenter) -> Iterator[Span]:
    return (Span(earlier.until, later.begin) for earlier, later in pairwise(vcenter.observed))


def _step(step: timedelta) -> str:
    return "1 h" if step >= timedelta(hours=1) else f"{step // timedelta(minutes=1)} min"


def _span(span: Span) -> str:
    return f"{format_minute(span.begin)} to {format_minute(span.until)} UTC"


_BECAUSE: Final = {
    UnknownUse.NOT_OBSERVED: "not observed",
    UnknownUse.NO_SAMPLES: "without samples (off, or host not connected)",
    UnknownUse.COUNTER_MISSING: "without one of the counters",
    UnknownUse.ONLY_AVERAGES: "known only by averages",
    UnknownUse.SAMPLES_MISSING: "with samples missing",
    UnknownUse.NVIDIA_SMI_MISSING: "without nvidia-smi figures of its vGPU",
}
_SOON: Final = SOON_STEPS * STEP


def replay_text(replay: Replay) -> Shown:
    """Return a table of nights for each pool, what they leave unknown, and when nothing was observed."""
    nights = f"{count(len(replay.nights), 'night')} since {format_zoned_minute(replay.since)}"
    return (
        Text(f"policy {replay.policy}, {nights}, by counters only", "bold"),
        *(part for pool in replay.pools for part in _pool_parts(pool)),
        Text(""),
        *_replay_notes(replay),
    )


class ReplayedNightRecord(DocumentRecord, frozen=True):
    """What one night would have taken from a pool."""

    night: Annotated[str, "the local date of its evening"]
    opens: Moment
    closes: Moment
    back_by: Moment
    taken: Annotated[int, "desktops that were idle at some time of the night, each counted once"]
    used: Annotated[int, "desktops that were used whenever a night could take them"]
    unknown: Annotated[dict[str, int], "desktops that were never known to be idle, by the reason"]
    harvested_s: Annotated[
        int, "sum of the times from a suspend until use came back or the desktop was due, where known"
    ]
    not_known_s: Annotated[int, "the part of that time without measurements"]
    false_idle_within_s: Annotated[list[int], "for each false idle, the time until use came back"]
    false_idle_unknown: Annotated[int, "taken desktops without measurements soon after their suspend"]
    used_later: Annotated[int, "taken desktops whose use came back later, before they were due"]

    @classmethod
    def made_of(cls, pool_night: PoolNight) -> Self:
        night = pool_night.night
        return cls.from_attributes(
            pool_night,
            night,
            night=night.id,
            unknown={reason.value: desktop_count for reason, desktop_count in pool_night.unknown.items()},
            used=pool_night.busy,
            harvested_s=_seconds(pool_night.harvested),
            not_known_s=_seconds(pool_night.unseen),
            false_idle_within_s=list(map(_seconds, pool_night.false_idle)),
            false_idle_unknown=pool_night.unwatched,
        )


class ReplayedPoolRecord(DocumentRecord, frozen=True):
    """A pool of the policy."""

    pool: str
    desktops: Annotated[int, "in it today, and allowed to be taken"]
    left_out: Annotated[int, "in it today, and never taken by a night"]
    users_kept_away: Annotated[bool, "whether it is parked or gated; a night takes nothing from other pools"]
    not_replayed: Annotated[list[Source], "sources that it requires, and that are not stored"]
    refusal: Annotated[str | None, "why it cannot be replayed"]
    next: Annotated[str | None, "what to do about that"]
    nights: Annotated[list[ReplayedNightRecord], "none where it cannot be replayed"]

    @classmethod
    def made_of(cls, pool: PoolReplay) -> Self:
        return cls.from_attributes(
            pool, not_replayed=sorted(pool.not_replayed), refusal=pool.refusal or None, next=pool.next_move or None
        )


@printed("idle-replay", by="gpuops idle --replay")
class IdleReplayDocument(VcenterDocument, frozen=True):
    """What nights of a policy would have taken, by stored performance counters only."""

    policy: Annotated[str, "its name"]
    since: Annotated[Moment, "nights that opened since then"]
    until: Annotated[Moment, "nights that ended by then"]
    step_s: Annotated[int, "all ages are in whole steps"]
    false_idle_within_s: Annotated[int, "use that comes back within this time after a suspend makes it a false idle"]
    pools: Annotated[list[ReplayedPoolRecord], "in the order of the policy"]
    not_observed: Annotated[list[ObservedSpanRecord], "gaps in the observation, within the hours that the nights need"]
    gone: Annotated[int, "VMs and hosts that were measured then, and are no longer in vCenter"]

    @classmethod
    def made_of(cls, replay: Replay) -> Self:
        return cls.from_attributes(
            replay, step_s=_seconds(STEP), false_idle_within_s=_seconds(_SOON), not_observed=replay.gaps
        )


def _pool_parts(pool: PoolReplay) -> Iterator[Shown]:
    """Yield the heading, warnings and table of one pool."""
    yield Text("")
    head = Text(f"pool {pool.pool}", "bold")
    if pool.refusal:
        yield head.append(f": cannot be replayed, {pool.refusal}", "yellow")
        yield Text(f"next: {pool.next_move}")
        return
    head.append(f": {count(pool.desktops, 'desktop')}")
    if pool.left_out:
        head.append(f", {pool.left_out} more that no night suspends")
    yield head
    if not pool.users_kept_away:
        yield Text(
            "  a night suspends none of them, because the pool is neither parked nor gated; this is the possible gain",
            "yellow",
        )
    if pool.not_replayed:
        yield Text(
            f"  the rule also requires these sources, which are not stored: {names(pool.not_replayed)}", "yellow"
        )
    headers = ("night", "taken", "used", "unknown", "harvested", "not known", "false idle", "used later", "unknown are")
    table = TextTable(*headers, right=range(1, 8))
    for night in pool.nights:
        table.add_row(night.night.id, *_cells([night]))
    if len(pool.nights) > 1:
        table.add_row(*(Text(cell, "bold") for cell in ("all", *_cells(pool.nights))))
    yield table
    ages = Counter(age for night in pool.nights for age in night.false_idle)
    if ages:
        ages_text = ", ".join(f"{ages[age]} within {_minutes(age)}" for age in sorted(ages))
        yield Text(f"  use came back: {ages_text}", "red")
    unwatched = sum(night.unwatched for night in pool.nights)
    if unwatched:
        yield Text(
            f"  for {unwatched} taken desktops it is unknown whether use came back within {_minutes(_SOON)}", "yellow"
        )


def _cells(nights: Sequence[PoolNight]) -> tuple[str, ...]:
    """Return the cells of one night, or the sums of several."""
    unknown: Counter[UnknownUse] = Counter()
    for night in nights:
        unknown.update(night.unknown)
    return (
        str(sum(night.taken for night in nights)),
        str(sum(night.busy for night in nights)),
        str(unknown.total()),
        _hours(sum((night.harvested for night in nights), timedelta(0))),
        _hours(sum((night.unseen for night in nights), timedelta(0))),
        str(sum(len(night.false_idle) for night in nights)),
        str(sum(night.used_later for night in nights)),
        ", ".join(f"{unknown[why]} {_BECAUSE[why]}" for why in UnknownUse if unknown[why]) or "-",
    )


def _replay_notes(replay: Replay) -> Iterator[Text]:
    """Yield the definition of a false idle, the limits of a replay, and gaps in the observation."""
    yield Text(
        f"false idle: use came back within {_minutes(_SOON)} after a suspend; all ages are in steps of {_minutes(STEP)}"
    )
    yield Text("uses the pools of today, and not their floors and limits, nor the queue: a night may suspend fewer")
    if replay.gone:
        yield Text(f"measured then, but no longer in vCenter: {replay.gone} VMs and hosts", "yellow")
    for gap in replay.gaps[:_SHOWN_GAPS]:
        yield Text(f"not observed    {format_minute(gap.begin)} to {format_minute(gap.until)} UTC", "yellow")
    if len(replay.gaps) > _SHOWN_GAPS:
        yield Text(f"and {len(replay.gaps) - _SHOWN_GAPS} later gaps", "yellow")


def _seconds(length: timedelta) -> int:
    return int(length.total_seconds())


def _minutes(length: timedelta) -> str:
    return f"{length // timedelta(minutes=1)} min"


def _hours(length: timedelta) -> str:
    return f"{length / timedelta(hours=1):.1f} h"


def replay_views(replay: Replay) -> tuple[Shown, IdleReplayDocument]:
    """Return a replay as text and as a document."""
    return replay_text(replay), IdleReplayDocument.made_of(replay)


def run_out_text(profiles: Sequence[RunOut], inventory: Inventory) -> Shown:
    """Return a row for each profile, the one that runs out first at the top."""
    head = vcenter_heading(inventory, "when vGPU profiles run out")
    if not profiles:
        return (head, Text("no VM has or had a vGPU"))
    table = table_of(
        profiles,
        Column("profile", lambda profile: profile.profile, whole=True),
        Column("run now", lambda profile: str(profile.running), right=True),
        Column("fit", lambda profile: str(profile.fit), right=True),
        Column("most in 7 days", lambda profile: optional_figure(profile.most_of_week), right=True),
        Column("growth a week", lambda profile: optional_figure(profile.growth_per_week, "+.1f"), right=True),
        Column("runs out", _run_out_day),
        Column("earliest", lambda profile: optional_figure(profile.not_before, unknown="-")),
        Column("latest", lambda profile: optional_figure(profile.not_after, unknown="-")),
        Column("off by", lambda profile: optional_figure(profile.error, ".1f"), right=True),
        Column("naive", lambda profile: optional_figure(profile.naive_error, ".1f"), right=True),
        Column("days", lambda profile: str(profile.days), right=True),
    )
    return (head, table, *_run_out_notes(profiles))


def _run_out_notes(profiles: Sequence[RunOut]) -> list[Text]:
    tested = f"{TESTED_AHEAD.days} days ahead, for past days"
    notes = [
        "each forecast is for its profile only: profiles share the same GPUs",
        f"off by: mean error in vGPUs of forecasts {tested}; naive: the same for the weekday two weeks before",
    ]
    if any(profile.days < FEWEST_DAYS for profile in profiles):
        notes.append(
            f"`?` = unknown: a forecast needs {count(FEWEST_DAYS, 'day')} of `gpuops observe` (gpuops help observe)"
        )
    return [Text(note, "dim") for note in notes]


def _run_out_day(profile: RunOut) -> str | Text:
    if profile.runs_out is not None:
        return Text(f"{profile.runs_out}", "bold yellow")
    return "?" if profile.growth_per_week is None else f"not in {HORIZON.days} days"


class ProfileForecastRecord(DocumentRecord, frozen=True):
    """The forecast of one vGPU profile by itself; profiles share the same GPUs."""

    profile: str
    running: Annotated[int, "vGPUs of it that run now"]
    fit: Annotated[int, "how many more fit at least"]
    days_known: Annotated[int, "of history"]
    most_in_7_days: Annotated[int | None, "null = not known"]
    growth_per_week: Annotated[float | None, "null = there is too little history"]
    runs_out: Annotated[
        str | None, "the first day on which all slots are expected to be taken; null = none in the horizon"
    ]
    not_before: Annotated[str | None, "the same, if use is above what is expected by the error"]
    not_after: Annotated[str | None, "the same, if it is below"]
    error: Annotated[float | None, "vGPUs that forecasts of the past were off by in the mean"]
    naive_error: Annotated[float | None, "the same, by the same weekday two weeks before alone"]
    tested_days: Annotated[int, "on so many days"]

    @classmethod
    def made_of(cls, row: RunOut) -> Self:
        return cls.from_attributes(
            row,
            days_known=row.days,
            most_in_7_days=row.most_of_week,
            runs_out=_iso(row.runs_out),
            not_before=_iso(row.not_before),
            not_after=_iso(row.not_after),
        )


@printed("capacity-forecast", by="gpuops capacity --forecast")
class CapacityForecastDocument(SiteDocument, frozen=True):
    """When each vGPU profile runs out, by the history of gpuops observe."""

    horizon_days: Annotated[int, "profiles that last longer have no date"]
    tested_ahead_days: Annotated[int, "the errors are those of forecasts so far ahead"]
    profiles: Annotated[list[ProfileForecastRecord], "what runs out first comes first"]


def run_out_document(profiles: Sequence[RunOut], inventory: Inventory) -> CapacityForecastDocument:
    """Return the forecasts as a document. null = not known, or not within the horizon."""
    return CapacityForecastDocument.from_attributes(
        inventory,
        read_at=inventory.taken_at,
        horizon_days=HORIZON.days,
        tested_ahead_days=TESTED_AHEAD.days,
        profiles=profiles,
    )


def _iso(day: date | None) -> str | None:
    return day.isoformat() if day is not None else None


def run_out_views(profiles: Sequence[RunOut], inventory: Inventory) -> tuple[Shown, CapacityForecastDocument]:
    """Return when profiles run out as text and as a document."""
    return run_out_text(profiles, inventory), run_out_document(profiles, inventory)
