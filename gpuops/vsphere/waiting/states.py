"""Waits for states that are not the end of a task, and for any change of a VM or host that affects GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.model.vcenter.host import has_booted
from gpuops.vsphere.waiting.updates import Updates

if TYPE_CHECKING:
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
    "VirtualMachine", ("runtime.powerState",), lambda vm, power: vm.get("runtime.powerState") == power
)
TOOLS: Final = AwaitedState(
    "VirtualMachine", ("guest.toolsRunningStatus",), lambda vm, status: vm.get("guest.toolsRunningStatus") == status
)
ADDRESS: Final = AwaitedState(
    "VirtualMachine", ("guest.ipAddress",), lambda vm, has_address: bool(vm.get("guest.ipAddress")) == has_address
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
        """Return the objects that reach their goals within `timeout_s`, and those that do not exist any more.

        Objects that do neither are in neither set.
        """
        self._follow(state, goals)
        reached, removed, left_s = set[str](), set[str](), max(timeout_s, 0.0)
        while self._pending:
            slice_s, asked_at = min(SLICE_S, left_s), clock.passed_s()
            news = self._updates.next(slice_s)
            # vCenter's waits count even if the clock here stood still
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


OF_VMS: Final = ("runtime.powerState", "runtime.host")
OF_HOSTS: Final = ("runtime.connectionState", "runtime.inMaintenanceMode")
MOST_AT_ONCE: Final = 1000
"""Objects in one answer; further ones are in the next answers."""


class ChangeWatch:
    """Waits of one session for any change of a VM or host that affects GPUs.

    One filter watches a ContainerView of all VMs and hosts, so new VMs are included. Without changes a wait takes one
    request.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session, at_most=MOST_AT_ONCE)
        self._follows = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until something changes, at most for `timeout_s`, and return whether it did since the last call.

        The first call returns True, because an inventory read before may be old. So does a call after a lost session,
        or one whose wait stays broken off: changes are unknown then. Raises VcenterUnreachable if waits stay broken.
        """
        if not self._follows:
            self._updates.follow(self._everything)
            self._follows = True
        until = clock.passed_s() + timeout_s
        news = self._updates.next(timeout_s)
        while news == [] and clock.passed_s() < until:  # the wait broke off: begin again
            news = self._updates.next(max(0.0, until - clock.passed_s()))
        changed = news is not None
        while news:  # further changes do not change the answer: drop them
            news = self._updates.next(0.0)
        return changed

    def _everything(self) -> Any:
        """Return a filter for all VMs and hosts, through a view that ends with the session."""
        from pyVmomi import vim, vmodl

        content, query = self._session.content, vmodl.query.PropertyCollector
        view = content.viewManager.CreateContainerView(
            content.rootFolder, [vim.VirtualMachine, vim.HostSystem], recursive=True
        )
        along = query.TraversalSpec(name="view", type=vim.view.ContainerView, path="view", skip=False)
        return query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=view, skip=True, selectSet=[along])],
            propSet=[
                query.PropertySpec(type=vim.VirtualMachine, pathSet=list(OF_VMS), all=False),
                query.PropertySpec(type=vim.HostSystem, pathSet=list(OF_HOSTS), all=False),
            ],
        )
