"""Text and document of `gpuops idle --replay`: what past nights would have taken. No desktop or user is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Final, Self

from gpuops.extras.observe.replay import SOON_STEPS, STEP, PoolNight, PoolReplay, Replay, Untold
from gpuops.extras.observe.view import ObservedSpanRecord
from gpuops.model.desktops.evidence import Source, names
from gpuops.model.time_text import format_minute, format_zoned_minute
from gpuops.report.document import DocumentRecord, Moment, VcenterDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count

_GAPS_SHOWN: Final = 10
_BECAUSE: Final = {
    Untold.NOT_OBSERVED: "not observed",
    Untold.NO_SAMPLES: "without samples (off, or its host away)",
    Untold.COUNTER_MISSING: "without one of the counters",
    Untold.AVERAGES_ALONE: "known by averages alone",
    Untold.SAMPLES_MISSING: "with samples missing",
    Untold.NVIDIA_SMI_MISSING: "without nvidia-smi figures of its vGPU",
}
_SOON: Final = SOON_STEPS * STEP


def replay_text(replay: Replay) -> Shown:
    """Return a table of nights for each pool, what they leave unknown, and when nothing was observed."""
    nights = f"{count(len(replay.nights), 'night')} since {format_zoned_minute(replay.since)}"
    return (
        Text(f"policy {replay.policy}, {nights}, by counters alone", "bold"),
        *(part for pool in replay.pools for part in _pool(pool)),
        Text(""),
        *_notes(replay),
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


def _pool(pool: PoolReplay) -> Iterator[Shown]:
    """Yield the heading, warnings and table of one pool."""
    yield Text("")
    head = Text(f"pool {pool.pool}", "bold")
    if pool.refusal:
        yield head.append(f": cannot be replayed, {pool.refusal}", "yellow")
        yield Text(f"next: {pool.next_move}")
        return
    head.append(f": {count(pool.desktops, 'desktop')}")
    if pool.left_out:
        head.append(f", {pool.left_out} more that no night takes")
    yield head
    if not pool.users_kept_away:
        yield Text("  it is neither parked nor gated: a night takes none of it; this is what it would gain", "yellow")
    if pool.not_replayed:
        yield Text(f"  required and not replayed: {names(pool.not_replayed)}", "yellow")
    headers = ("night", "taken", "used", "unknown", "harvested", "not known", "false idle", "used later", "unknown are")
    table = TextTable(*headers, right=range(1, 8))
    for night in pool.nights:
        table.add_row(night.night.id, *_row([night]))
    if len(pool.nights) > 1:
        table.add_row(*(Text(cell, "bold") for cell in ("all", *_row(pool.nights))))
    yield table
    ages = Counter(age for night in pool.nights for age in night.false_idle)
    if ages:
        ages_text = ", ".join(f"{ages[age]} within {_minutes(age)}" for age in sorted(ages))
        yield Text(f"  use came back: {ages_text}", "red")
    unwatched = sum(night.unwatched for night in pool.nights)
    if unwatched:
        yield Text(f"  of {unwatched} taken it is not known whether use came back within {_minutes(_SOON)}", "yellow")


def _row(nights: Sequence[PoolNight]) -> tuple[str, ...]:
    """Return the cells of one night, or the sums of several."""
    unknown: Counter[Untold] = Counter()
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
        ", ".join(f"{unknown[why]} {_BECAUSE[why]}" for why in Untold if unknown[why]) or "-",
    )


def _notes(replay: Replay) -> Iterator[Text]:
    """Yield the definition of a false idle, the limits of a replay, and gaps in the observation."""
    yield Text(
        f"false idle: use came back within {_minutes(_SOON)} after a suspend; all ages are in steps of {_minutes(STEP)}"
    )
    yield Text("pools are as they are today; floors, limits and the queue are not replayed: a night may take less")
    if replay.gone:
        yield Text(f"VMs and hosts that were measured then, and are no longer in vCenter: {replay.gone}", "yellow")
    for gap in replay.gaps[:_GAPS_SHOWN]:
        yield Text(f"not observed    {format_minute(gap.begin)} to {format_minute(gap.until)} UTC", "yellow")
    if len(replay.gaps) > _GAPS_SHOWN:
        yield Text(f"and {len(replay.gaps) - _GAPS_SHOWN} later gaps", "yellow")


def _seconds(length: timedelta) -> int:
    return int(length.total_seconds())


def _minutes(length: timedelta) -> str:
    return f"{length // timedelta(minutes=1)} min"


def _hours(length: timedelta) -> str:
    return f"{length / timedelta(hours=1):.1f} h"


def replay_views(replay: Replay) -> tuple[Shown, IdleReplayDocument]:
    """Return a replay as text and as a document."""
    return replay_text(replay), IdleReplayDocument.made_of(replay)
