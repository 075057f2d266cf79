"""Power watch: waiting for what has no task: a guest on its way up or down, a state that lags behind its task."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.model.vm import Guest
from gpuops.vsphere.managed import vm
from gpuops.vsphere.updates import Updates

if TYPE_CHECKING:
    from gpuops.model.vm import PowerState
    from gpuops.vsphere.session import Session

POWER: Final = "runtime.powerState"
TOOLS: Final = "guest.toolsRunningStatus"
ADDRESS: Final = "guest.ipAddress"
RUNNING: Final = "guestToolsRunning"
SLICE_S: Final = 20.0


def wait_for_power(session: Session, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
    """Those of these VMs that show this power state before the time is up; returns as soon as all do.

    A VM that is gone never will, and is not waited for.
    """
    return _wait(session, vms, POWER, lambda value: value == power.value, timeout_s)


def wait_for_guest(session: Session, ref: str, timeout_s: float, *, address: bool) -> Guest:
    """What the guest tells of itself once VMware Tools run in it, with `address` once it has one, or at the end.

    Raises VmNotFound for a VM that is gone by then.
    """
    if address:
        _wait(session, (ref,), ADDRESS, bool, timeout_s)
    else:
        _wait(session, (ref,), TOOLS, lambda value: value == RUNNING, timeout_s)
    found = vm(session, ref)
    told = session.read(lambda: found.guest, subject=ref)
    if told is None or told.toolsRunningStatus is None:
        return Guest(None, None)
    return Guest(told.toolsRunningStatus == RUNNING, told.ipAddress or None)


def _wait(
    session: Session, vms: Collection[str], path: str, reaches: Callable[[Any], bool], timeout_s: float
) -> frozenset[str]:
    """Those of these VMs whose property got there before the time was up."""
    left, reached, left_s = set(vms), set[str](), max(timeout_s, 0.0)
    updates = Updates(session)
    try:
        updates.watch([vm(session, ref) for ref in vms], (path,))
        while left:
            slice_s, asked_at = min(SLICE_S, left_s), clock.passed_s()
            news = updates.next(slice_s)
            left_s -= max(slice_s if news is None else 0.0, clock.passed_s() - asked_at)
            for each in news or ():
                if each.gone:
                    left.discard(each.ref)
                elif reaches(each.values.get(path)):
                    left.discard(each.ref)
                    reached.add(each.ref)
            if left_s <= 0:
                break
    finally:
        updates.close()
    return frozenset(reached)
