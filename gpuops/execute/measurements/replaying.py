"""Reads the nights of a policy from the store of measurements, and has them replayed. Writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops.advise import replay as advice
from gpuops.advise.left_alone import never_taken
from gpuops.errors import UsageError
from gpuops.execute.measurements.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import Retention, Span
from gpuops.model.nights.rotation import Policy, Pool
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night

FINE_DAYS: Final = Retention().fine_days
"""Hours tell nothing of the ten minutes after a suspend: what is older than steps of five minutes is not replayed."""


def replay(
    state_dir: Path, url: str, inventory: Inventory, policy: Policy, since: datetime, pool: str | None = None
) -> advice.Replay:
    """The nights of the policy that opened since then and are over, of all of its pools or of this one.

    Raises UsageError for a while that is not kept, where there is no night or no pool that can be replayed, and where
    nothing was measured; StateDamaged.
    """
    now = inventory.taken_at
    nights = _nights(policy, since, now)
    asked = [each for each in policy.pools if pool in (None, each.name)]
    refusals = {each.name: refused for each in asked if (refused := advice.refusal(each)) is not None}
    replayed = [each for each in asked if each.name not in refusals]
    if not replayed:
        reason, next_move = refusals[asked[0].name]
        raise UsageError(f"pool {asked[0].name} cannot be replayed: {reason}", hint=next_move)
    hours = [_hours(night, replayed) for night in nights]
    members = _members(inventory, policy)
    desktops = {each.name: _takeable(policy, each, members[each.name]) for each in replayed}
    store = MeasurementReads.found(state_dir, url, inventory.vcenter)
    if store is None:
        raise _nothing_measured()
    with store:
        observed = store.observed()
        if not observed:
            raise _nothing_measured()
        by_night = [
            _night(store, night, span, replayed, desktops, observed) for night, span in zip(nights, hours, strict=True)
        ]
        measured = store.entities(hours[0].begin, hours[-1].until)
    pools = []
    for each in asked:
        if each.name in refusals:
            pools.append(_pool(each, (), 0, (), refusals[each.name]))
        else:
            its_nights = tuple(night[each.name] for night in by_night)
            left_out = len(members[each.name]) - len(desktops[each.name])
            pools.append(_pool(each, desktops[each.name], left_out, its_nights))
    return advice.Replay(
        inventory.vcenter,
        policy.name,
        since,
        now,
        nights,
        tuple(pools),
        advice.gaps(observed, hours),
        gone=len(measured - inventory.vms.keys() - inventory.hosts.keys()),
    )


def _pool(
    pool: Pool,
    desktops: Collection[str],
    left_out: int,
    nights: tuple[advice.PoolNight, ...],
    refused: tuple[str, str] = ("", ""),
) -> advice.PoolReplay:
    unread = advice.not_replayed(pool.idle)
    return advice.PoolReplay(pool.name, len(desktops), left_out, unread, pool.users_kept_away, nights, *refused)


def _nights(policy: Policy, since: datetime, now: datetime) -> tuple[Night, ...]:
    if now - since > timedelta(days=FINE_DAYS):
        raise UsageError(
            f"--replay: steps of five minutes are kept for {FINE_DAYS} days, and {since.date()} is longer ago",
            hint=f"say --replay {FINE_DAYS}d, or less",
        )
    if not policy.windows:
        raise UsageError(
            f"policy {policy.name} has no windows: nothing says when its nights would have been",
            hint="add `windows` to a copy of the policy (gpuops help policy)",
        )
    nights = advice.whole_nights(policy, since, now)
    if not nights:
        raise UsageError(
            f"no night of policy {policy.name} opened and ended since {format_zoned_minute(since)}",
            hint=f"go further back, up to --replay {FINE_DAYS}d",
        )
    return nights


def _nothing_measured() -> UsageError:
    return UsageError(
        "nothing was measured of this vCenter yet, so no night of it can be replayed",
        hint="gpuops observe --once, every 20 minutes from now on (gpuops help observe)",
    )


def _hours(night: Night, pools: Sequence[Pool]) -> Span:
    spans = [advice.hours_of(night, each.idle) for each in pools]
    return Span(min(each.begin for each in spans), max(each.until for each in spans))


def _members(inventory: Inventory, policy: Policy) -> dict[str, list[Vm]]:
    found: dict[str, list[Vm]] = {each.name: [] for each in policy.pools}
    for vm in inventory.vms.values():
        if (its := policy.pool_of(vm)) is not None:
            found[its.name].append(vm)
    return found


def _takeable(policy: Policy, pool: Pool, members: Sequence[Vm]) -> dict[str, Vm]:
    """Desktops of the pool by their ids, without those that no night takes."""
    return {vm.ref: vm for vm in members if not never_taken(policy, pool, vm)}


def _night(
    store: MeasurementReads,
    night: Night,
    hours: Span,
    pools: Sequence[Pool],
    desktops: dict[str, dict[str, Vm]],
    observed: Sequence[Span],
) -> dict[str, advice.PoolNight]:
    """The night of each of these pools, by one query."""
    pool_of = {ref: pool for pool in pools for ref in desktops[pool.name]}
    counters = {name for pool in pools for name in advice.series_of(pool.idle)}
    found: dict[str, list[advice.DesktopNight]] = {pool.name: [] for pool in pools}
    for ref, series in store.windows(pool_of, counters, hours.begin, hours.until):
        pool = pool_of[ref]
        vm = desktops[pool.name][ref]
        found[pool.name].append(advice.desktop_night(vm, pool.idle, night, series, observed))
    return {name: advice.PoolNight(night, tuple(each)) for name, each in found.items()}
