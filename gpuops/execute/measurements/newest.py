"""The newest use of GPUs that the store of measurements has: of VMs, of hosts, and of each GPU of theirs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops.execute.measurements.rolling_up import FINE_S
from gpuops.execute.measurements.store_reads import MeasurementReads
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, NewestUse

OLD: Final = timedelta(hours=1)
"""What was observed longer ago tells nothing of now: a look comes every 20 minutes, and one may fail."""
_LAST: Final = timedelta(seconds=2 * FINE_S)
"""Of how many steps the newest counts: samples of the last one may be late, and a VM that is off has none."""


def newest_use(
    state_dir: Path,
    url: str,
    vcenter: str,
    entities: Collection[str],
    now: datetime,
    known: NewestUse | None = None,
) -> NewestUse | None:
    """What GPUs are used for, of these VMs and hosts (ids), by the last look at them; None = there was none.

    `known` is an earlier answer for the same entities: it is given back where nothing was observed since. Asks no
    vCenter. Raises UsageError, StateDamaged.
    """
    store = MeasurementReads.found(state_dir, url, vcenter)
    if store is None:
        return None
    with store:
        observed = store.observed()
        until = observed[-1].until if observed else None
        if until is None:
            return None
        if now - until > OLD:
            return NewestUse(until, {})
        if known is not None and known.until == until:
            return known
        return NewestUse(until, store.newest(entities, (GPU_USE, GPU_MEMORY), until - _LAST, until))
