"""Writes into a store of measurements how many of some desktops were in use, as `gpuops observe` would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from gpuops.advise.forecast import SLOT
from gpuops.extras.observe.blocks import FINE_S, WHOLE, Block
from gpuops.extras.observe.store import Measurements
from gpuops.model.measurements.measurement import CPU_MHZ

QUIET_MHZ, BUSY_MHZ = 60, 900
STEPS: Final = int(SLOT.total_seconds()) // FINE_S


def measure(
    state_dir: Path,
    vcenter: str,
    refs: Sequence[str],
    begin: datetime,
    until: datetime,
    in_use: Callable[[datetime], int],
) -> None:
    """In each slot that begins from `begin` on, so many of these VMs were used: the first ones."""
    slots = (until - begin) // SLOT
    used = np.array([in_use(begin + at * SLOT) for at in range(slots)])
    blocks = {}
    for number, ref in enumerate(refs):
        mhz = np.repeat(np.where(number < used, BUSY_MHZ, QUIET_MHZ), STEPS)
        values = np.stack([mhz, mhz, np.full(slots * STEPS, WHOLE)], axis=1).astype(np.int64)
        blocks[ref] = Block(slots * STEPS, {CPU_MHZ: values})
    begin_s = int(begin.timestamp())
    with Measurements.open(state_dir, "", vcenter) as store:
        store.write(begin_s, blocks)
        store.note_observed(begin_s, begin_s + slots * int(SLOT.total_seconds()))
