"""Rotation, restless pools: somebody, or a broker, works against the night: desktops come back by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from gpuops.model.rotation import Policy
from gpuops.model.vm import Vm

FEW: Final = 3
"""So many desktops of a pool that came back by themselves in a night, and the pool is left alone."""
WHY: Final = f"{FEW} desktops of its pool came back by themselves tonight: no more of it are taken"


def restless(woken: Iterable[Vm], policy: Policy) -> frozenset[str]:
    """Names of the pools that are not parked, by these desktops: a night took them, and they run."""
    pools = Counter(pool.name for vm in woken if (pool := policy.pool_of(vm)) is not None)
    return frozenset(name for name, count in pools.items() if count >= FEW)
