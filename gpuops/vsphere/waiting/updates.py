"""Waits for property changes of objects with one PropertyCollector and one filter, for `tasks` and `states`.

`WaitForUpdatesEx` is called in slices, so that a silent vCenter does not delay the caller beyond its limit. If the
session ends, or the version of the collector is lost, collector and filter are made again and report everything again:
a caller must accept the same change twice. pyVim's WaitForTask is not used: it has no deadline and cannot be cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import VcenterUnreachable
from gpuops.vsphere.faults import translate
from gpuops.vsphere.transport import network

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

PAUSES_S: Final = (0.0, 2.0, 10.0, 30.0)
"""Pauses before each new attempt after a broken wait; after the last one the wait fails."""


@dataclass(frozen=True, slots=True)
class PropertyUpdate:
    """A change of one object: its properties by path (None = unset now), and whether it does not exist any more."""

    ref: str
    properties: Mapping[str, Any]
    is_gone: bool = False


class Updates:
    """The changes of one set of objects at a time."""

    def __init__(
        self, session: Session, pause: Callable[[float], None] = clock.pause, at_most: int | None = None
    ) -> None:
        """`at_most` is the limit of objects in one answer; None = no limit."""
        self._session = session
        self._pause = pause
        self._at_most = at_most
        self._objects: tuple[Any, ...] = ()
        """The watched objects; empty for a filter that finds its objects itself."""
        self._spec: Callable[[], Any] | None = None
        self._collector: Any = None
        self._filter: Any = None
        self._broken_collectors: list[Any] = []
        """Collectors whose wait broke off, with their filters: they exist as long as the session."""
        self._version = ""
        self._broken = 0
        """How many waits in a row broke off."""
        self._filtered = False
        """Whether the collector has the filter for these objects."""

    def watch(self, objects: Sequence[Any], paths: Sequence[str]) -> None:
        """Watch these objects, all of one type, from now on; the first report has their present values."""
        from pyVmomi import vmodl

        query = vmodl.query.PropertyCollector

        def spec() -> Any:
            return query.FilterSpec(
                objectSet=[query.ObjectSpec(obj=watched, skip=False) for watched in self._objects],
                propSet=[query.PropertySpec(type=type(self._objects[0]), pathSet=list(paths), all=False)],
                reportMissingObjectsInResults=True,
            )

        self._objects = tuple(objects)
        self._spec, self._filtered = spec if objects else None, False

    def follow(self, spec: Callable[[], Any]) -> None:
        """Watch the objects that the filter of `spec` finds; `spec` is called again after a lost session."""
        self._objects, self._spec, self._filtered = (), spec, False

    def next(self, wait_s: float) -> list[PropertyUpdate] | None:
        """Return the changes since the last call as soon as there are any; None = no change within `wait_s` seconds.

        Raises VcenterUnreachable if the wait stays broken.
        """
        updates: list[PropertyUpdate] | None = self._call_with_recovery(lambda: self._ask(wait_s))
        return updates

    def close(self) -> None:
        """Destroy the collector, which would otherwise exist as long as the session."""
        if self._collector is not None:
            self._broken_collectors.append(self._collector)
        self._collector = self._filter = None
        self._destroy_broken_collectors()

    def _destroy_broken_collectors(self) -> None:
        if not self._broken_collectors:  # do not import pyVmomi for a session that never waited
            return
        from pyVmomi import vmodl

        while self._broken_collectors:
            with suppress(vmodl.MethodFault, *network.LOST_ERRORS, *network.UNREADABLE_ERRORS):
                self._broken_collectors.pop().DestroyPropertyCollector()

    def _ask(self, wait_s: float) -> list[PropertyUpdate] | None:
        """Return the changes in vCenter's next answer; None = no change within `wait_s` seconds, or no objects."""
        from pyVmomi import vmodl

        if self._spec is None:
            return None
        if self._collector is None:
            self._collector = self._session.content.propertyCollector.CreatePropertyCollector()
            self._filtered = False
        if not self._filtered:
            self._replace_filter(self._spec)
            self._destroy_broken_collectors()
        options = vmodl.query.PropertyCollector.WaitOptions(
            maxWaitSeconds=math.ceil(wait_s), maxObjectUpdates=self._at_most
        )
        update_set = self._collector.WaitForUpdatesEx(self._version, options)
        if self._version:
            # not at the first answer: it comes at once, so it does not show that waits work again
            self._broken = 0
        if update_set is None:
            return None
        updates = [update for filter_update in update_set.filterSet for update in _property_updates(filter_update)]
        self._version = update_set.version
        return updates

    def _replace_filter(self, spec: Callable[[], Any]) -> None:
        """Create the new filter, then destroy the old one. With version '' all objects of the new one are reported."""
        old, self._filter = self._filter, self._collector.CreateFilter(spec(), False)
        self._version, self._filtered = "", True
        if old is not None:
            old.DestroyPropertyFilter()

    def _call_with_recovery(self, act: Callable[[], Any]) -> Any:
        """Return the result of the call; an empty list after a lost session, collector or connection.

        If watched objects do not exist any more, return their removals. Raises VcenterUnreachable after the last
        attempt.
        """
        from pyVmomi import vim, vmodl

        logins_before = self._session.logins
        try:
            return act()
        except vim.fault.NotAuthenticated as fault:
            self._begin_anew(fault)
            self._session.login_again(logins_before)
        except vmodl.fault.ManagedObjectNotFound as fault:
            removed = [watched for watched in self._objects if fault.obj and watched._moId == fault.obj._moId]
            self._objects = tuple(watched for watched in self._objects if watched not in removed)
            self._begin_anew(fault)
            return [PropertyUpdate(str(watched._moId), {}, is_gone=True) for watched in removed]
        except vim.fault.NoPermission as fault:
            raise translate(fault) from fault
        except (vmodl.MethodFault, *network.LOST_ERRORS, *network.UNREADABLE_ERRORS) as error:
            self._begin_anew(error)  # tasks continue without this collector
        return []

    def _begin_anew(self, error: BaseException) -> None:
        """Drop the collector, and pause before the next call makes a new one.

        Raises VcenterUnreachable after the last pause.
        """
        if self._collector is not None:
            self._broken_collectors.append(self._collector)
        self._collector = self._filter = None
        self._version = ""
        if self._broken == len(PAUSES_S):
            self._broken = 0  # a later call begins with all attempts again
            kind = type(error).__name__.rpartition(".")[2]
            raise VcenterUnreachable(
                f"{self._session.target.address} breaks off every wait for its tasks: {kind}",
                hint="run the command again when vCenter is back; its tasks continue meanwhile",
            ) from error
        if PAUSES_S[self._broken]:
            self._pause(PAUSES_S[self._broken])
        self._broken += 1


def _property_updates(filter_update: Any) -> Iterator[PropertyUpdate]:
    for update in filter_update.objectSet:
        properties = {
            change.name: change.val if change.op in ("assign", "add") else None for change in update.changeSet
        }
        yield PropertyUpdate(str(update.obj._moId), properties, is_gone=update.kind == "leave")
    for missing_object in filter_update.missingSet:
        yield PropertyUpdate(str(missing_object.obj._moId), {}, is_gone=True)
