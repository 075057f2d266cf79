"""Waits for states that are not the end of a task: a power state, running VMware Tools, a host after its reboot."""

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
    """A state of objects of one type: its properties, and a check whether their values reach a goal."""

    type: str
    paths: tuple[str, ...]
    is_reached: Callable[[Mapping[str, Any], Any], bool]


def _is_back(properties: Mapping[str, Any], before: datetime | None) -> bool:
    """Return whether a host is connected and its boot time is not `before`."""
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
    """Waits of one session: for one state of some objects at a time, with one property filter over all of them.

    If a wait is for objects that the previous wait did not see in their state, it uses the same filter: a wait of an
    hour for a host can be called in slices, each of which takes one request.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session)
        self._state: AwaitedState | None = None
        self._pending: dict[str, object] = {}
        """The goals by object, of the objects in the filter that have not reached them."""
        self._properties: dict[str, dict[str, Any]] = {}
        """The latest properties by object."""

    def close(self) -> None:
        """Stop watching."""
        self._updates.close()
        self._state = None

    def wait(
        self, state: AwaitedState, goals: Mapping[str, object], timeout_s: float
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the objects that reach their goals within the time, and those that do not exist any more."""
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
        """Keep the filter if the previous wait was for all of these goals; otherwise make a new one."""
        if state is not self._state or not goals.items() <= self._pending.items():
            self._updates.watch([self._session.managed_object(state.type, ref) for ref in goals], state.paths)
            self._state, self._properties = state, {}
        self._pending = dict(goals)


def wait_for_power(connection: Connection, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
    """Return the VMs that have this power state within the time; return early if all have it.

    A VM that does not exist any more is not waited for.
    """
    return connection.states.wait(POWER, dict.fromkeys(vms, power.value), timeout_s)[0]


def wait_for_guest(connection: Connection, vm: str, timeout_s: float, *, address: bool) -> Guest:
    """Return the guest as soon as VMware Tools run in it (with `address`: as soon as it has one), or after the time.

    Raises VmNotFound for a VM that does not exist any more.
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
    """Return the hosts that are connected within the time and have a new boot time, and those removed from vCenter.

    RebootHost_Task ends when the reboot has begun; only the boot time of the host shows its end (vSphere API
    reference, HostSystem).
    """
    back, removed = connection.states.wait(BOOTED, since, timeout_s)
    return back | removed
