"""What `gpuops idle --replay` prints: what nights would have had taken. It names no desktop and no user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from gpuops.advise.replay import SOON_STEPS, STEP, PoolNight, PoolReplay, Replay, Untold
from gpuops.model.desktops.evidence import names
from gpuops.model.measurements.measurement import Span
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_GAPS_SHOWN: Final = 10
_BECAUSE: Final = {
    Untold.NOT_OBSERVED: "not observed",
    Untold.NO_SAMPLES: "without samples (off, or its host away)",
    Untold.COUNTER_MISSING: "without one of the counters",
    Untold.AVERAGES_ALONE: "known by averages alone",
    Untold.SAMPLES_MISSING: "with samples missing",
    Untold.NVIDIA_SMI_MISSING: "without what nvidia-smi tells of its vGPU",
}
_SOON: Final = SOON_STEPS * STEP


def replay_text(replay: Replay) -> Shown:
    """A table of nights for each pool, what they leave open, and when nobody looked."""
    nights = f"{count(len(replay.nights), 'night')} since {replay.since:%Y-%m-%d %H:%M %Z}"
    return (
        Text(f"policy {visible(replay.policy)}, {nights}, by counters alone", "bold"),
        *(part for pool in replay.pools for part in _pool(pool)),
        Text(""),
        *_notes(replay),
    )


def replay_document(replay: Replay) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "idle-replay",
        "vcenter": replay.vcenter,
        "policy": replay.policy,
        "since": replay.since.isoformat(),
        "until": replay.until.isoformat(),
        "step_s": _seconds(STEP),
        "false_idle_within_s": _seconds(_SOON),
        "pools": [_pool_values(pool) for pool in replay.pools],
        "not_observed": [_span_values(gap) for gap in replay.gaps],
        "gone": replay.gone,
    }


def _pool(pool: PoolReplay) -> Iterator[Shown]:
    yield Text("")
    head = Text(f"pool {visible(pool.pool)}", "bold")
    if pool.refusal:
        yield head.append(f": cannot be replayed, {visible(pool.refusal)}", "yellow")
        yield Text(f"next: {visible(pool.next_move)}")
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
        told = ", ".join(f"{ages[age]} within {_minutes(age)}" for age in sorted(ages))
        yield Text(f"  use came back: {told}", "red")
    unwatched = sum(night.unwatched for night in pool.nights)
    if unwatched:
        yield Text(f"  of {unwatched} taken it is not known whether use came back within {_minutes(_SOON)}", "yellow")


def _row(nights: Sequence[PoolNight]) -> tuple[str, ...]:
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
    yield Text(
        f"false idle: use came back within {_minutes(_SOON)} after a suspend; all ages are in steps of {_minutes(STEP)}"
    )
    yield Text("pools are as they are today; floors, limits and the queue are not replayed: a night may take less")
    if replay.gone:
        yield Text(f"VMs and hosts that were measured then, and are no longer in vCenter: {replay.gone}", "yellow")
    for gap in replay.gaps[:_GAPS_SHOWN]:
        yield Text(f"not observed    {gap.begin:%Y-%m-%d %H:%M} to {gap.until:%Y-%m-%d %H:%M} UTC", "yellow")
    if len(replay.gaps) > _GAPS_SHOWN:
        yield Text(f"and {len(replay.gaps) - _GAPS_SHOWN} later gaps", "yellow")


def _pool_values(pool: PoolReplay) -> Document:
    return {
        "pool": pool.pool,
        "desktops": pool.desktops,
        "left_out": pool.left_out,
        "users_kept_away": pool.users_kept_away,
        "not_replayed": sorted(source.value for source in pool.not_replayed),
        "refusal": pool.refusal or None,
        "next": pool.next_move or None,
        "nights": [_night_values(night) for night in pool.nights],
    }


def _night_values(night: PoolNight) -> Document:
    return {
        "night": night.night.id,
        "opens": night.night.opens.isoformat(),
        "closes": night.night.closes.isoformat(),
        "back_by": night.night.back_by.isoformat(),
        "taken": night.taken,
        "used": night.busy,
        "unknown": {why.value: number for why, number in night.unknown.items()},
        "harvested_s": _seconds(night.harvested),
        "not_known_s": _seconds(night.unseen),
        "false_idle_within_s": [_seconds(age) for age in night.false_idle],
        "false_idle_unknown": night.unwatched,
        "used_later": night.used_later,
    }


def _span_values(span: Span) -> Document:
    return {"from": span.begin.isoformat(), "until": span.until.isoformat()}


def _seconds(length: timedelta) -> int:
    return int(length.total_seconds())


def _minutes(length: timedelta) -> str:
    return f"{length // timedelta(minutes=1)} min"


def _hours(length: timedelta) -> str:
    return f"{length / timedelta(hours=1):.1f} h"
