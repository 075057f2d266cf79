"""Waits for states that no task tells of: a power state, VMware Tools in a guest, a host back from its reboot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.model.host import has_booted
from gpuops.model.vm import Guest
from gpuops.vsphere.waiting.updates import Updates

if TYPE_CHECKING:
    from gpuops.model.vm import PowerState
    from gpuops.vsphere.session import Session

POWER: Final = "runtime.powerState"
TOOLS: Final = "guest.toolsRunningStatus"
ADDRESS: Final = "guest.ipAddress"
RUNNING: Final = "guestToolsRunning"
BOOTED: Final = ("runtime.connectionState", "runtime.bootTime")
SLICE_S: Final = 20.0


def wait_for_power(session: Session, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
    """Those of these VMs that show this power state before the time is up; returns as soon as all do.

    A VM that is gone never will, and is not waited for.
    """
    objects = {ref: session.vm(ref) for ref in vms}
    return _wait(session, objects, (POWER,), lambda _, values: values.get(POWER) == power.value, timeout_s)[0]


def wait_for_guest(session: Session, vm: str, timeout_s: float, *, address: bool) -> Guest:
    """What the guest tells of itself once VMware Tools run in it, with `address` once it has one, or at the end.

    Raises VmNotFound for a VM that is gone by then.
    """
    found = session.vm(vm)
    if address:
        _wait(session, {vm: found}, (ADDRESS,), lambda _, values: bool(values.get(ADDRESS)), timeout_s)
    else:
        _wait(session, {vm: found}, (TOOLS,), lambda _, values: values.get(TOOLS) == RUNNING, timeout_s)
    told = session.read(lambda: found.guest, subject=vm)
    if told is None or told.toolsRunningStatus is None:
        return Guest(None, None)
    return Guest(told.toolsRunningStatus == RUNNING, told.ipAddress or None)


def wait_for_boot(session: Session, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
    """Those of these hosts that are connected, and booted at another moment than the one given, within the time; with
    them those that are gone from vCenter.

    RebootHost_Task ends when the reboot has begun; only the host's own boot time tells that it is over (vSphere API
    reference, HostSystem).
    """
    hosts = {ref: session.host(ref) for ref in since}
    back, gone = _wait(session, hosts, BOOTED, lambda ref, values: _is_back(values, since[ref]), timeout_s)
    return back | gone


def _is_back(values: Mapping[str, Any], before: datetime | None) -> bool:
    booted = values.get("runtime.bootTime")
    connected = values.get("runtime.connectionState") == "connected"
    return connected and has_booted(booted.astimezone(UTC) if booted is not None else None, before)


def _wait(
    session: Session,
    objects: Mapping[str, Any],
    paths: Sequence[str],
    reaches: Callable[[str, Mapping[str, Any]], bool],
    timeout_s: float,
) -> tuple[frozenset[str], frozenset[str]]:
    """(those of these objects whose properties `reaches` accepts before the time is up, those that are gone: they are
    not waited for)."""
    left, reached, gone, left_s = set(objects), set[str](), set[str](), max(timeout_s, 0.0)
    seen: dict[str, dict[str, Any]] = {ref: {} for ref in objects}
    updates = Updates(session)
    try:
        updates.watch(list(objects.values()), paths)
        while left:
            slice_s, asked_at = min(SLICE_S, left_s), clock.passed_s()
            news = updates.next(slice_s)
            left_s -= max(slice_s if news is None else 0.0, clock.passed_s() - asked_at)
            with session.decoding("a wait for a state"):
                for each in news or ():
                    values = seen.setdefault(each.ref, {})
                    values.update(each.values)
                    if each.gone:
                        left.discard(each.ref)
                        gone.add(each.ref)
                    elif each.ref in left and reaches(each.ref, values):
                        left.discard(each.ref)
                        reached.add(each.ref)
            if left_s <= 0:
                break
    finally:
        updates.close()
    return frozenset(reached), frozenset(gone)
