"""Reads the newest use of GPUs from the store of measurements: of VMs, of hosts, and of each of their GPUs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops.extras.observe.rolling_up import FINE_S
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, NewestUse

OLD: Final = timedelta(hours=1)
"""An older observation says nothing about now: the store is filled every 20 minutes, and one time may fail."""
_LAST: Final = timedelta(seconds=2 * FINE_S)
"""The span in which the newest step is looked for: samples may be late, and a VM that is off has none."""


def newest_use(
    state_dir: Path,
    url: str,
    vcenter: str,
    entities: Collection[str],
    now: datetime,
    earlier_answer: NewestUse | None = None,
) -> NewestUse | None:
    """Return the use of GPUs by these VMs and hosts (ids) in the last observation; None without an observation.

    `earlier_answer` is an earlier answer for the same entities; it is returned if nothing was observed since. Asks no
    vCenter. Raises UsageError, StateDamaged.
    """
    store = MeasurementReads.open_if_exists(state_dir, url, vcenter)
    if store is None:
        return None
    with store:
        observed = store.observed_spans()
        until = observed[-1].until if observed else None
        if until is None:
            return None
        if now - until > OLD:
            return NewestUse(until, {})
        if earlier_answer is not None and earlier_answer.until == until:
            return earlier_answer
        return NewestUse(until, store.newest(entities, (GPU_USE, GPU_MEMORY), until - _LAST, until))
