"""Waits for a change of a VM or host that affects GPUs: power state, host, connection or maintenance mode.

One filter watches a ContainerView of all VMs and hosts, so new VMs are included. Without changes a wait takes one
request per slice.
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
"""Objects in one answer; further ones are in the next answers."""


class ChangeWatch:
    """The changes of one session's vCenter."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session, at_most=MOST_AT_ONCE)
        self._view: Any = None
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
        while news == [] and clock.passed_s() < until:  # the wait broke off, and begins anew
            news = self._updates.next(max(0.0, until - clock.passed_s()))
        changed = news is not None
        while news:  # drop the other changes so far: they have the same answer
            news = self._updates.next(0.0)
        return changed

    def _everything(self) -> Any:
        """Return the filter; its view ends with the session."""
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
