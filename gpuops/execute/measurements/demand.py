"""Counts in the store of measurements how many desktops of each pool were in use at a time. Writes nothing.

A desktop is in use in a step of five minutes under the rule of its pool by which a replay calls it busy
(`advise/replay.py`): a counter reached its limit. In a slot of a quarter of an hour it is in use that was in one of its
steps: somebody who reads for five minutes is still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.forecast import SLOT, WEEKS, UseHistory
from gpuops.execute.measurements.packing import WHOLE
from gpuops.execute.measurements.rolling_up import FINE_S
from gpuops.execute.measurements.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import CPU_MHZ, VM_COUNTERS, Span
from gpuops.model.nights.rotation import IdleRule, Policy
from gpuops.model.vcenter.inventory import Inventory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuops.execute.measurements.packing import Values

_SLOT_S: Final = int(SLOT.total_seconds())
_UNKNOWN_MOST: Final = 10
"""A slot is not known where it is unknown of more than a tenth of the desktops that ran whether they were used."""


def in_use(state_dir: Path, url: str, inventory: Inventory, policy: Policy) -> Mapping[str, UseHistory]:
    """Each pool with how many of the desktops that are in it today were in use, in each slot of the last weeks, as far
    as steps of five minutes are kept. Empty where nothing was measured of this vCenter.

    Raises UsageError, StateDamaged.
    """
    store = MeasurementReads.found(state_dir, url, inventory.vcenter)
    if store is None:
        return {}
    with store:
        observed = store.observed()
        if not observed:
            return {}
        now_s = int(inventory.taken_at.timestamp())
        oldest = max(observed[0].begin, inventory.taken_at - timedelta(weeks=WEEKS, days=1))
        begin_s, until_s = int(oldest.timestamp()) // _SLOT_S * _SLOT_S, -(-now_s // _SLOT_S) * _SLOT_S
        slots = max(0, (until_s - begin_s) // _SLOT_S)
        looked = _observed(observed, begin_s, slots)
        rules = {vm.ref: (pool.name, limits_of(pool.idle)) for vm in inventory.vms.values()
                 if not vm.template and (pool := policy.pool_of(vm)) is not None}  # fmt: skip
        counted = {pool.name: np.zeros((3, slots), np.int64) for pool in policy.pools}
        counters = {name for _, limits in rules.values() for name in limits}
        for ref, series in store.arrays(rules, counters, begin_s, slots * (_SLOT_S // FINE_S)):
            name, limits = rules[ref]
            counted[name] += slot_use(series, limits)
    begin = datetime.fromtimestamp(begin_s, UTC)
    return {name: UseHistory(begin, _counts(found, looked)) for name, found in counted.items()}


def limits_of(rule: IdleRule) -> Mapping[str, int]:
    """What a counter of the rule must stay below, of the counters that are kept; the CPU where it names none."""
    limits = {name: below for name, below in rule.limits.items() if name in VM_COUNTERS}
    return limits or {CPU_MHZ: rule.cpu_below_mhz}


def slot_use(series: Mapping[str, Values], limits: Mapping[str, int]) -> NDArray[np.int64]:
    """Three rows with a column a slot: whether one desktop was in use, ran, and ran without telling whether it was.

    `series`: for each limit a row (average, highest, fifteenths covered) a step of five minutes.
    """
    steps = len(next(iter(series.values())))
    busy, ran, quiet = np.zeros(steps, bool), np.zeros(steps, bool), np.ones(steps, bool)
    for name, below in limits.items():
        average, highest, covered = series[name].T
        there = covered > 0
        ran |= there
        busy |= there & (np.where(highest >= 0, highest, average) >= below)
        quiet &= (covered >= WHOLE) & (highest >= 0) & (highest < below)
    used, were, unsure = (each.reshape(-1, _SLOT_S // FINE_S).any(axis=1) for each in (busy, ran, ran & ~busy & ~quiet))
    return np.stack([used, were, unsure & ~used]).astype(np.int64)


def _observed(spans: Sequence[Span], begin_s: int, slots: int) -> NDArray[np.bool_]:
    """In which slots somebody looked from their begin to their end."""
    begins = begin_s + np.arange(slots, dtype=np.int64) * _SLOT_S
    looked = np.zeros(slots, bool)
    for span in spans:
        looked |= (begins >= int(span.begin.timestamp())) & (begins + _SLOT_S <= int(span.until.timestamp()))
    return looked


def _counts(found: NDArray[np.int64], looked: NDArray[np.bool_]) -> tuple[int | None, ...]:
    used, ran, unsure = found
    known = looked & (unsure * _UNKNOWN_MOST <= ran)
    return tuple(count if told else None for count, told in zip(used.tolist(), known.tolist(), strict=True))
