"""Waits until a VM or host of the vCenter changes in a way that moves GPUs: power, host, connection, maintenance mode.

One filter over a ContainerView of everything: a VM that is made meanwhile is seen too, and while nothing changes a wait
costs one request a slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.vsphere.waiting.updates import Updates

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

OF_VMS: Final = ("runtime.powerState", "runtime.host")
OF_HOSTS: Final = ("runtime.connectionState", "runtime.inMaintenanceMode")
MOST_AT_ONCE: Final = 1000
"""Objects in one answer; the rest follows in the next ones."""


class ChangeWatch:
    """The changes of one session's vCenter."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session, at_most=MOST_AT_ONCE)
        self._view: Any = None
        self._follows = False

    def close(self) -> None:
        """Stop watching."""
        self._updates.close()
        self._follows = False

    def wait(self, timeout_s: float) -> bool:
        """Whether something changed since the last call, as soon as it has, or when the time is up.

        The first call says yes: what was read before it may be old. So does one after a lost session, and one whose
        wait was broken off to its end: nobody can say then. Raises VcenterUnreachable when waits stay broken.
        """
        if not self._follows:
            self._updates.follow(self._everything)
            self._follows = True
        until = clock.passed_s() + timeout_s
        news = self._updates.next(timeout_s)
        while news == [] and clock.passed_s() < until:  # the wait broke off, and begins anew
            news = self._updates.next(max(0.0, until - clock.passed_s()))
        changed = news is not None
        while news:  # what else has happened by now is the same answer
            news = self._updates.next(0.0)
        return changed

    def _everything(self) -> Any:
        """The filter; its view goes with the session that made it."""
        from pyVmomi import vim, vmodl

        content, query = self._session.content, vmodl.query.PropertyCollector
        self._view = content.viewManager.CreateContainerView(
            content.rootFolder, [vim.VirtualMachine, vim.HostSystem], recursive=True
        )
        along = query.TraversalSpec(name="view", type=vim.view.ContainerView, path="view", skip=False)
        return query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=self._view, skip=True, selectSet=[along])],
            propSet=[
                query.PropertySpec(type=vim.VirtualMachine, pathSet=list(OF_VMS), all=False),
                query.PropertySpec(type=vim.HostSystem, pathSet=list(OF_HOSTS), all=False),
            ],
        )
