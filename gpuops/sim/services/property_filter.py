"""The PropertyFilter object: finds what changed of its objects since the client's last update."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from pyVmomi import vmodl

from gpuops.sim.core.encoder import Encoding, Parts
from gpuops.sim.core.fragments import ABSENT, overlaps
from gpuops.sim.core.managed_object import ManagedObject, Properties, method
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.services.bulk_reply import SelectedObjects, Selection, hidden_property, missing_object, readable

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World

ENTER: Final = "enter"
MODIFY: Final = "modify"
LEAVE: Final = "leave"


class FilterOwner(Protocol):
    """What a filter needs of its property collector."""

    @property
    def session(self) -> ClientSession: ...

    def find(self, moid: str) -> ManagedObject | None:
        """The object of a moid, as the session sees it."""

    def shows(self, managed_object: ManagedObject) -> bool:
        """Whether the session's user may know of the object."""

    def drop_filter(self, dropped: PropertyFilter) -> None:
        """Forget a filter."""


class PropertyFilter(ManagedObject):
    """One CreateFilter: it watches its objects and keeps what its client was sent of each property."""

    wsdl_name = "PropertyFilter"
    world: World

    property_table: ClassVar[Properties] = {
        "spec": lambda self: self.selection.spec,
        "partialUpdates": lambda self: self.partial_updates,
    }

    def __init__(
        self, world: World, moid: str, collector: FilterOwner, selection: Selection, *, partial_updates: bool
    ) -> None:
        super().__init__(world, moid)
        self.collector = collector
        self.selection = selection
        self.partial_updates = partial_updates
        self.told: dict[str, dict[str, bytes]] = {}
        """moid -> path -> the fragment that the client has."""
        self._objects: dict[str, ManagedObject] = {}
        self._walked: dict[str, set[str]] = {}
        """By moid the property paths that the selection follows there: a change of one may change the selection."""
        self._pending: OrderedDict[str, set[str] | None] = OrderedDict()
        """moid -> touched paths; None = the client has to learn that the object entered or left the selection."""
        self._types: dict[str, str] = {}
        """moid -> type of each object that the client knows, kept after the object is gone."""
        self._ready: list[Parts] = []
        """Updates made and not yet sent: one more than a page, to know whether there is more."""
        self._missing: list[Any] = []
        self._unsettled = True
        self._starting = True

    def watched(self) -> Iterator[tuple[ManagedObject, tuple[str, ...]]]:
        """Each object that it reports, with the paths."""
        for managed_object in self._objects.values():
            yield managed_object, self.selection.paths_of(managed_object.wsdl_name) or ()

    # --- changes ---------------------------------------------------------------------------------------------------

    def object_touched(self, managed_object: ManagedObject, paths: Collection[str]) -> None:
        if managed_object.moid in self._objects:
            pending_paths = self._pending.get(managed_object.moid, set())
            if pending_paths is not None:
                self._pending[managed_object.moid] = pending_paths.union(paths)
        walked = self._walked.get(managed_object.moid)
        if walked and any(overlaps(path, touched) for path in walked for touched in paths):
            self._unsettled = True

    def object_removed(self, managed_object: ManagedObject) -> None:
        self._unsettled = True

    # --- called by the collector ----------------------------------------------------------------------------------

    def restart(self) -> None:
        """Forget what the client was sent: it starts again from version ''."""
        self.told.clear()
        self._ready.clear()
        self._pending = OrderedDict.fromkeys(self._objects)
        self._unsettled = self._starting = True

    def take(self, limit: int, encoding: Encoding) -> tuple[list[Parts], list[Parts], bool]:
        """Return (updates of objects, missing objects, whether more updates wait), with at most `limit` updates."""
        self._refresh_views()
        if self._unsettled:
            self._settle()
        while len(self._ready) <= limit and self._pending:
            moid, touched = self._pending.popitem(last=False)
            update = self._update(moid, touched, encoding)
            if update:
                self._ready.append(update)
        updates, self._ready = self._ready[:limit], self._ready[limit:]
        return updates, self._take_missing(encoding), bool(self._ready)

    def discard(self) -> None:
        """Stop watching."""
        for moid in {*self._objects, *self._walked}:
            self.world.registry.unwatch(moid, self)
        self._objects.clear()
        self._walked.clear()

    # --- selection ------------------------------------------------------------------------------------------------

    def _refresh_views(self) -> None:
        for moid in self._walked:
            walked = self.collector.find(moid)
            if walked is not None:
                walked.refresh()

    def _settle(self) -> None:
        """Select the filter's objects again; mark those that entered or left as pending."""
        self._unsettled = False
        selected_objects = self.selection.find(self.collector.find)
        selected_objects.objects = {
            moid: managed_object
            for moid, managed_object in selected_objects.objects.items()
            if self.collector.shows(managed_object)
        }
        removed_moids = [moid for moid in self._objects if moid not in selected_objects.objects]
        entered_moids = [moid for moid in selected_objects.objects if moid not in self._objects]
        self._pending.update(dict.fromkeys((*removed_moids, *entered_moids)))  # None: see `_pending`
        if self._starting:
            self._missing, self._starting = selected_objects.missing, False
        self._watch(selected_objects)
        self._objects, self._walked = selected_objects.objects, selected_objects.walked

    def _watch(self, selected_objects: SelectedObjects) -> None:
        before = {*self._objects, *self._walked}
        after = {*selected_objects.objects, *selected_objects.walked}
        for moid in before - after:
            self.world.registry.unwatch(moid, self)
        for moid in after - before:
            self.world.registry.watch(moid, self)

    # --- updates --------------------------------------------------------------------------------------------------

    def _update(self, moid: str, touched: set[str] | None, encoding: Encoding) -> Parts:
        """Return the update of an object: enter, leave or modify; empty if no touched path has a new value."""
        managed_object = self._objects.get(moid)
        sent = self.told.get(moid)
        if managed_object is None:
            return self._leave_update(moid, encoding)
        paths = self.selection.paths_of(managed_object.wsdl_name) or ()
        if sent is None:
            sent = self.told[moid] = {}
            changes, missing = self._changes(managed_object, paths, sent, encoding)
            return _object_update(ENTER, managed_object.ref, changes, missing, encoding)
        if touched is not None:
            paths = tuple(
                path for path in paths if any(overlaps(_stem(path), _stem(touched_path)) for touched_path in touched)
            )
        changes, missing = self._changes(managed_object, paths, sent, encoding)
        return _object_update(MODIFY, managed_object.ref, changes, missing, encoding) if changes or missing else []

    def _leave_update(self, moid: str, encoding: Encoding) -> Parts:
        if self.told.pop(moid, None) is None:
            return []
        return _object_update(LEAVE, vmomi_type(self._types.pop(moid))(moid), [], [], encoding)

    def _changes(
        self, managed_object: ManagedObject, paths: Collection[str], sent: dict[str, bytes], encoding: Encoding
    ) -> tuple[list[Parts], list[Parts]]:
        """Return (changed properties, properties that cannot be read), and note the new values in `sent`."""
        self._types[managed_object.moid] = managed_object.wsdl_name
        fragments = self.world.fragments.of(managed_object.moid) if not managed_object.volatile else {}
        hidden = self.world.authority.hidden(self.collector.session.user, managed_object, paths)
        changes: list[Parts] = []
        missing = [hidden_property(managed_object, path, encoding) for path in paths if path in hidden]
        for path in paths:
            if path in hidden:
                continue
            fragment = fragments.get((path, encoding))
            if fragment is None:
                fragment, absence = readable(self.world, managed_object, path, encoding)
                if absence:
                    missing.append(absence)
                    continue
                fragments[path, encoding] = fragment
            if sent.get(path, ABSENT) != fragment:
                changes.append(_change(path, fragment, encoding))
                sent[path] = fragment
        return changes, missing

    def _take_missing(self, encoding: Encoding) -> list[Parts]:
        refs, self._missing = self._missing, []
        return [missing_object(ref, vmodl.fault.ManagedObjectNotFound(obj=ref), encoding) for ref in refs]

    # --- the object on the wire -----------------------------------------------------------------------------------

    @method
    def DestroyPropertyFilter(self, call: Call) -> None:
        self.collector.drop_filter(self)


def _stem(path: str) -> str:
    return path.split("[", 1)[0]


def _change(path: str, fragment: bytes, encoding: Encoding) -> Parts:
    members = [encoding.member("name", path, str), encoding.member("op", "assign" if fragment else "remove", str)]
    if fragment:
        members.append(encoding.value_member(fragment))
    return encoding.structure("changeSet", "PropertyChange", members)


def _object_update(kind: str, ref: Any, changes: list[Parts], missing: list[Parts], encoding: Encoding) -> Parts:
    members = [encoding.member("kind", kind, str), encoding.member("obj", ref, type(ref))]
    if changes:
        members.append(encoding.repeated("changeSet", changes))
    if missing:
        members.append(encoding.repeated("missingSet", missing))
    return encoding.structure("objectSet", "ObjectUpdate", members)
