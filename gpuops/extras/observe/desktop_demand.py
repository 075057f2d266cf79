"""Counts from the store of measurements how many desktops of each pool were in use at a time. Writes nothing.

A desktop is in use in a step of five minutes if a counter reached the limit in the rule of its pool, as in a replay
(`replay.py`). It is in use in a slot of a quarter of an hour if it was in use in one of its steps: a user who
only reads for five minutes is still working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.forecast import SLOT, WEEKS, UseHistory
from gpuops.execute.rotation.night_extension import NightExtension
from gpuops.execute.site import Site
from gpuops.extras.observe.blocks import FINE_S, WHOLE
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import CPU_MHZ, VM_COUNTERS, Span
from gpuops.model.nights.rotation_policy import IdleRule, Policy
from gpuops.model.vcenter.inventory import Inventory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuops.extras.observe.blocks import Values

_SLOT_S: Final = int(SLOT.total_seconds())
_KNOWN_FACTOR: Final = 10
"""A slot is unknown if more than one in this many running desktops has an unknown use."""


def in_use(state_dir: Path, url: str, inventory: Inventory, policy: Policy) -> Mapping[str, UseHistory]:
    """Return for each pool how many of today's desktops were in use in each slot of the last weeks.

    The slots begin with the first observation of which steps of five minutes are stored, at most `WEEKS` weeks and a
    day ago. Empty without such an observation. Raises UsageError, StateDamaged.
    """
    store = MeasurementReads.open_if_exists(state_dir, url, inventory.vcenter)
    if store is None:
        return {}
    with store:
        observed, fine_begin = store.observed_spans(), store.fine_begin()
        if not observed or fine_begin is None:
            return {}
        now_s = int(inventory.taken_at.timestamp())
        oldest = max(observed[0].begin, fine_begin, inventory.taken_at - timedelta(weeks=WEEKS, days=1))
        # complete slots: the begin is rounded down, the end up
        begin_s, until_s = int(oldest.timestamp()) // _SLOT_S * _SLOT_S, -(-now_s // _SLOT_S) * _SLOT_S
        slots = max(0, (until_s - begin_s) // _SLOT_S)
        is_observed = _observed_slots(observed, begin_s, slots)
        # by desktop: its pool, and the limits of the counters by which that pool judges it
        rules = {vm.ref: (pool.name, limits_of(pool.idle)) for vm in inventory.vms.values()
                 if not vm.template and (pool := policy.pool_of(vm)) is not None}  # fmt: skip
        # three rows, as in `slot_use`: desktops in use, desktops that ran, desktops whose use is unknown
        counts_by_pool = {pool.name: np.zeros((3, slots), np.int64) for pool in policy.pools}
        counters = {name for _, limits in rules.values() for name in limits}
        for ref, series in store.arrays(rules, counters, begin_s, slots * (_SLOT_S // FINE_S)):
            name, limits = rules[ref]
            counts_by_pool[name] += slot_use(series, limits)
    begin = datetime.fromtimestamp(begin_s, UTC)
    return {name: UseHistory(begin, _counts(slot_counts, is_observed)) for name, slot_counts in counts_by_pool.items()}


def limits_of(rule: IdleRule) -> Mapping[str, int]:
    """Return the limits of the rule for counters that are stored, or the limit of the CPU if it has no such counter."""
    limits = {name: below for name, below in rule.limits.items() if name in VM_COUNTERS}
    return limits or {CPU_MHZ: rule.cpu_below_mhz}


def slot_use(series: Mapping[str, Values], limits: Mapping[str, int]) -> NDArray[np.int64]:
    """Return for each slot (column) as 1 or 0: the desktop was in use; it ran; it ran and its use is unknown.

    `series`: for each limit one row (average, highest, fifteenths covered) for each step of five minutes.
    """
    steps = len(next(iter(series.values())))
    busy, ran, quiet = np.zeros(steps, bool), np.zeros(steps, bool), np.ones(steps, bool)
    for name, below in limits.items():
        average, highest, covered = series[name].T
        has_samples = covered > 0
        ran |= has_samples
        # an average at the limit proves that the highest reached it too
        busy |= has_samples & (np.where(highest >= 0, highest, average) >= below)
        # only samples of the complete step prove that the limit was not reached
        quiet &= (covered >= WHOLE) & (highest >= 0) & (highest < below)
    is_used, is_running, is_unsure = (
        per_step.reshape(-1, _SLOT_S // FINE_S).any(axis=1) for per_step in (busy, ran, ran & ~busy & ~quiet)
    )
    return np.stack([is_used, is_running, is_unsure & ~is_used]).astype(np.int64)


def _observed_slots(spans: Sequence[Span], begin_s: int, slots: int) -> NDArray[np.bool_]:
    """Return for each slot whether it was observed from its begin to its end."""
    begins = begin_s + np.arange(slots, dtype=np.int64) * _SLOT_S
    is_observed = np.zeros(slots, bool)
    for span in spans:
        is_observed |= (begins >= int(span.begin.timestamp())) & (begins + _SLOT_S <= int(span.until.timestamp()))
    return is_observed


def _counts(slot_counts: NDArray[np.int64], is_observed: NDArray[np.bool_]) -> tuple[int | None, ...]:
    """Return how many desktops were in use in each slot; None = unknown."""
    used_desktops, running_desktops, unsure_desktops = slot_counts
    is_known = is_observed & (unsure_desktops * _KNOWN_FACTOR <= running_desktops)
    return tuple(
        count if is_count_known else None
        for count, is_count_known in zip(used_desktops.tolist(), is_known.tolist(), strict=True)
    )


class MeasuredDesktopUse(NightExtension):
    """Gives nights the number of desktops that were in use in the past weeks, from the store of measurements."""

    def desktop_use(self, site: Site, inventory: Inventory, policy: Policy) -> Mapping[str, UseHistory]:
        return in_use(*site.measurements_store, inventory, policy)


MEASURED_USE: Final = MeasuredDesktopUse()
