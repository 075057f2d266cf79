"""Reads the nights of a policy from the store of measurements and replays them. Writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops.advise.managed_vms import never_taken
from gpuops.api.vms import refuse_unknown_pool
from gpuops.errors import UsageError
from gpuops.execute.site import Site
from gpuops.extras.observe import replay as advice
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import Span
from gpuops.model.measurements.measurement_settings import Retention
from gpuops.model.nights.rotation_policy import Policy, Pool
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night

FINE_DAYS: Final = Retention().fine_days
"""The most days that can be replayed. Older time is stored in hours, which do not show single steps."""


def idle_replay(
    inventory: Inventory, site: Site, policy: Policy, since: datetime, *, pool: str | None = None
) -> advice.Replay:
    """Return what nights of this policy would have suspended since then, by the store of measurements. Changes nothing.

    The desktops of a pool are those that vCenter shows now. Raises UsageError for an unknown pool, for a policy that
    cannot be replayed, and if nothing was measured; StateDamaged if the store cannot be read.
    """
    refuse_unknown_pool(policy, pool)
    if policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    return replay(*site.measurements_store, inventory, policy, since, pool)


def replay(
    state_dir: Path, url: str, inventory: Inventory, policy: Policy, since: datetime, pool: str | None = None
) -> advice.Replay:
    """Replay the nights of the policy that opened since then and are over. `pool`: only for this pool.

    Raises UsageError if the store does not reach back so far, if no night or pool can be replayed, or if nothing was
    measured; StateDamaged if the store cannot be read.
    """
    now = inventory.taken_at
    nights = _nights_to_replay(policy, since, now)
    chosen_pools = [chosen_pool for chosen_pool in policy.pools if pool in (None, chosen_pool.name)]
    refusals = {
        chosen_pool.name: refused
        for chosen_pool in chosen_pools
        if (refused := advice.refusal(chosen_pool)) is not None
    }
    replayed_pools = [chosen_pool for chosen_pool in chosen_pools if chosen_pool.name not in refusals]
    if not replayed_pools:  # all are refused: report the reason for the first
        reason, next_move = refusals[chosen_pools[0].name]
        raise UsageError(f"pool {chosen_pools[0].name} cannot be replayed: {reason}", hint=next_move)
    spans = [_needed_span(night, replayed_pools) for night in nights]
    members = _vms_by_pool(inventory, policy)
    desktops = {
        chosen_pool.name: _suspendable(policy, chosen_pool, members[chosen_pool.name]) for chosen_pool in replayed_pools
    }
    store = MeasurementReads.open_if_exists(state_dir, url, inventory.vcenter)
    if store is None:
        raise _nothing_stored()
    with store:
        observed_spans = store.observed_spans()
        if not observed_spans:
            raise _nothing_stored()
        by_night = [
            _replay_night(store, night, span, replayed_pools, desktops, observed_spans)
            for night, span in zip(nights, spans, strict=True)
        ]
        measured_refs = store.entities(spans[0].begin, spans[-1].until)
    pools = []
    for chosen_pool in chosen_pools:
        if chosen_pool.name in refusals:
            pools.append(_pool_replay(chosen_pool, (), 0, (), refusals[chosen_pool.name]))
        else:
            pool_nights = tuple(night[chosen_pool.name] for night in by_night)
            left_out = len(members[chosen_pool.name]) - len(desktops[chosen_pool.name])
            pools.append(_pool_replay(chosen_pool, desktops[chosen_pool.name], left_out, pool_nights))
    return advice.Replay(
        inventory.vcenter,
        policy.name,
        since,
        now,
        nights,
        tuple(pools),
        advice.gaps(observed_spans, spans),
        gone=len(measured_refs - inventory.vms.keys() - inventory.hosts.keys()),
    )


def _pool_replay(
    pool: Pool,
    desktops: Collection[str],
    left_out: int,
    nights: tuple[advice.PoolNight, ...],
    refused: tuple[str, str] = ("", ""),
) -> advice.PoolReplay:
    """Return the replay of a pool; `refused`: why it cannot be replayed, and the next step."""
    not_replayed = advice.not_replayed(pool.idle)
    return advice.PoolReplay(pool.name, len(desktops), left_out, not_replayed, pool.users_kept_away, nights, *refused)


def _nights_to_replay(policy: Policy, since: datetime, now: datetime) -> tuple[Night, ...]:
    """Return the nights that opened since then and are over. Raises UsageError for none, or if `since` is too old."""
    if now - since > timedelta(days=FINE_DAYS):
        raise UsageError(
            f"--replay from {since.date()} is not possible: steps of five minutes are kept for {FINE_DAYS} days",
            hint=f"use --replay {FINE_DAYS}d or less",
        )
    if not policy.windows:
        raise UsageError(
            f"policy {policy.name} has no windows, so the times of its nights are unknown",
            hint="add `windows` to a copy of the policy, and set --policy to it (gpuops help policy)",
        )
    nights = advice.complete_nights(policy, since, now)
    if not nights:
        raise UsageError(
            f"no night of policy {policy.name} opened and ended since {format_zoned_minute(since)}",
            hint=f"go further back, up to --replay {FINE_DAYS}d",
        )
    return nights


def _nothing_stored() -> UsageError:
    return UsageError(
        "gpuops observe has stored nothing about this vCenter yet, so no night can be replayed",
        hint="run gpuops observe --once every 20 minutes from now on (gpuops help observe)",
    )


def _needed_span(night: Night, pools: Sequence[Pool]) -> Span:
    """Return the span of measurements that the replay of this night needs for all of these pools."""
    pool_spans = [advice.hours_of(night, pool.idle) for pool in pools]
    return Span(min(span.begin for span in pool_spans), max(span.until for span in pool_spans))


def _vms_by_pool(inventory: Inventory, policy: Policy) -> dict[str, list[Vm]]:
    members: dict[str, list[Vm]] = {pool.name: [] for pool in policy.pools}
    for vm in inventory.vms.values():
        if (pool_of_vm := policy.pool_of(vm)) is not None:
            members[pool_of_vm.name].append(vm)
    return members


def _suspendable(policy: Policy, pool: Pool, members: Sequence[Vm]) -> dict[str, Vm]:
    """Return by ref the desktops of a pool that a night may suspend."""
    return {vm.ref: vm for vm in members if not never_taken(policy, pool, vm)}


def _replay_night(
    store: MeasurementReads,
    night: Night,
    span: Span,
    pools: Sequence[Pool],
    desktops: dict[str, dict[str, Vm]],
    observed: Sequence[Span],
) -> dict[str, advice.PoolNight]:
    """Return the night of each of these pools, read by one query."""
    pool_of = {ref: pool for pool in pools for ref in desktops[pool.name]}
    counters = {name for pool in pools for name in advice.series_of(pool.idle)}
    nights: dict[str, list[advice.DesktopNight]] = {pool.name: [] for pool in pools}
    for ref, series in store.windows(pool_of, counters, span.begin, span.until):
        pool = pool_of[ref]
        vm = desktops[pool.name][ref]
        nights[pool.name].append(advice.desktop_night(vm, pool.idle, night, series, observed))
    return {name: advice.PoolNight(night, tuple(desktop_nights)) for name, desktop_nights in nights.items()}
