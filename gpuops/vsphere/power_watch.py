"""Power watch: waiting for what has no task: a guest's own shutdown, a state that lags behind the task that set it."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from gpuops.vsphere.managed import vm
from gpuops.vsphere.updates import Updates

if TYPE_CHECKING:
    from gpuops.model.vm import PowerState
    from gpuops.vsphere.session import Session

POWER: Final = "runtime.powerState"
SLICE_S: Final = 20.0


def wait_for_power(session: Session, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
    """Those of these VMs that show this power state before the time is up; returns as soon as all do.

    A VM that is gone never will, and is not waited for.
    """
    left, reached, left_s = set(vms), set[str](), max(timeout_s, 0.0)
    updates = Updates(session)
    try:
        updates.watch([vm(session, ref) for ref in vms], (POWER,))
        while left:
            slice_s, asked_at = min(SLICE_S, left_s), time.monotonic()
            news = updates.next(slice_s)
            left_s -= max(slice_s if news is None else 0.0, time.monotonic() - asked_at)
            for each in news or ():
                if each.gone:
                    left.discard(each.ref)
                elif each.values.get(POWER) == power.value:
                    left.discard(each.ref)
                    reached.add(each.ref)
            if left_s <= 0:
                break
    finally:
        updates.close()
    return frozenset(reached)
