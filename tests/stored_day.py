"""A day of measurements that `gpuops observe` would have stored of VMs and hosts of a simulated vCenter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np

from gpuops.extras.observe.blocks import FINE_S, Block
from gpuops.extras.observe.store import Measurements
from gpuops.sim.server import SimServer

BUSY: Final = {"gpu.utilization.average": 6000, "gpu.mem.used.average": 4_000_000, "cpu.usagemhz.average": 2000}


def store_day(server: SimServer, state_dir: Path, vcenter: str, values: Mapping[str, Mapping[str, int]]) -> None:
    """Of these VMs and hosts, by name, what each counter said in each step of the last day."""
    begin = int((server.world.clock.now() - timedelta(days=1)).timestamp()) // FINE_S * FINE_S
    of = {
        managed.state.name: managed.moid
        for kind in ("VirtualMachine", "HostSystem")
        for managed in server.world.by_type(kind)
    }
    steps = 86_400 // FINE_S
    blocks = {
        of[name]: Block(
            steps,
            {key: np.tile(np.array([[value, value, 15]], np.int64), (steps, 1)) for key, value in counters.items()},
        )
        for name, counters in values.items()
    }
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Measurements.open(state_dir, "", vcenter) as store:
        store.write(begin, blocks)
        store.note_observed(begin, begin + steps * FINE_S)
