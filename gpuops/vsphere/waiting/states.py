"""Waits for states that no task tells of: a power state, VMware Tools in a guest, a host back from its reboot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.model.vcenter.host import has_booted
from gpuops.model.vcenter.vm import Guest
from gpuops.vsphere.waiting.updates import Updates

if TYPE_CHECKING:
    from gpuops.model.vcenter.vm import PowerState
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.session import Session

SLICE_S: Final = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class AwaitedState:
    """A state of objects of one type: the properties that tell of it, and whether their values are as wanted."""

    type: str
    paths: tuple[str, ...]
    is_reached: Callable[[Mapping[str, Any], Any], bool]


def _is_back(properties: Mapping[str, Any], before: datetime | None) -> bool:
    """Whether a host is connected, and booted at another moment than that."""
    booted = properties.get("runtime.bootTime")
    connected = properties.get("runtime.connectionState") == "connected"
    return connected and has_booted(booted.astimezone(UTC) if booted is not None else None, before)


POWER: Final = AwaitedState(
    "VirtualMachine", ("runtime.powerState",), lambda properties, power: properties.get("runtime.powerState") == power
)
TOOLS: Final = AwaitedState(
    "VirtualMachine",
    ("guest.toolsRunningStatus",),
    lambda properties, goal: properties.get("guest.toolsRunningStatus") == goal,
)
ADDRESS: Final = AwaitedState(
    "VirtualMachine", ("guest.ipAddress",), lambda properties, goal: bool(properties.get("guest.ipAddress")) == goal
)
BOOTED: Final = AwaitedState("HostSystem", ("runtime.connectionState", "runtime.bootTime"), _is_back)
RUNNING: Final = "guestToolsRunning"


class StateWatch:
    """What one session waits for: one state of some objects at a time, by one property filter over all of them.

    A wait for what the wait before it did not see goes on with its filter: a host that boots for an hour is waited for
    in slices, each of which costs one request.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session)
        self._state: AwaitedState | None = None
        self._pending: dict[str, object] = {}
        """Object -> what is wanted of it, of each object that the filter tells of and that was not seen to be so."""
        self._properties: dict[str, dict[str, Any]] = {}
        """Object -> the values of its properties so far."""

    def close(self) -> None:
        """Stop watching."""
        self._updates.close()
        self._state = None

    def wait(
        self, state: AwaitedState, goals: Mapping[str, object], timeout_s: float
    ) -> tuple[frozenset[str], frozenset[str]]:
        """(those of these objects that are seen in their wanted state before the time is up, those that are gone: they
        are not waited for)."""
        self._follow(state, goals)
        reached, removed, left_s = set[str](), set[str](), max(timeout_s, 0.0)
        while self._pending:
            slice_s, asked_at = min(SLICE_S, left_s), clock.passed_s()
            news = self._updates.next(slice_s)
            left_s -= max(slice_s if news is None else 0.0, clock.passed_s() - asked_at)
            with self._session.decoding("a wait for a state"):
                for update in news or ():
                    properties = self._properties.setdefault(update.ref, {})
                    properties.update(update.properties)
                    if update.ref in self._pending and (
                        update.is_gone or state.is_reached(properties, self._pending[update.ref])
                    ):
                        del self._pending[update.ref]
                        (removed if update.is_gone else reached).add(update.ref)
            if left_s <= 0:
                break
        if not self._pending:
            self.close()
        return frozenset(reached), frozenset(removed)

    def _follow(self, state: AwaitedState, goals: Mapping[str, object]) -> None:
        """The filter of the wait before, if that waited for all of this; otherwise one that tells how everything is."""
        if state is not self._state or not goals.items() <= self._pending.items():
            self._updates.watch([self._session.managed_object(state.type, ref) for ref in goals], state.paths)
            self._state, self._properties = state, {}
        self._pending = dict(goals)


def wait_for_power(connection: Connection, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
    """Those of these VMs that show this power state before the time is up; returns as soon as all do.

    A VM that is gone never will, and is not waited for.
    """
    return connection.states.wait(POWER, dict.fromkeys(vms, power.value), timeout_s)[0]


def wait_for_guest(connection: Connection, vm: str, timeout_s: float, *, address: bool) -> Guest:
    """What the guest tells of itself once VMware Tools run in it, with `address` once it has one, or at the end.

    Raises VmNotFound for a VM that is gone by then.
    """
    guest_vm = connection.vm(vm)
    if address:
        connection.states.wait(ADDRESS, {vm: True}, timeout_s)
    else:
        connection.states.wait(TOOLS, {vm: RUNNING}, timeout_s)
    guest_info = connection.read(lambda: guest_vm.guest, subject=vm)
    if guest_info is None or guest_info.toolsRunningStatus is None:
        return Guest(None, None)
    return Guest(guest_info.toolsRunningStatus == RUNNING, guest_info.ipAddress or None)


def wait_for_boot(connection: Connection, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
    """Those of these hosts that are connected, and booted at another moment than the one given, within the time; with
    them those that are gone from vCenter.

    RebootHost_Task ends when the reboot has begun; only the host's own boot time tells that it is over (vSphere API
    reference, HostSystem).
    """
    back, removed = connection.states.wait(BOOTED, since, timeout_s)
    return back | removed
