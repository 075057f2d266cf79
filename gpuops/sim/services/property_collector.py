"""The PropertyCollector object, for bulk reads and incremental updates, and its PropertyFilter objects.

A PropertyFilter finds what changed in its objects since the client's last update.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from pyVmomi import vmodl

from gpuops.sim.core.encoder import Encoded, Encoding, Parts
from gpuops.sim.core.fragments import ABSENT, overlaps
from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.inventory import faults
from gpuops.sim.services.bulk_reply import (
    SelectedObjects,
    Selection,
    hidden_property,
    missing_object,
    object_contents,
    read_property,
)

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
    """A filter of one client: it watches its objects and remembers which value of each property the client has."""

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
        self.sent: dict[str, dict[str, bytes]] = {}
        """moid -> path -> the fragment that was last sent to the client."""
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
        self._selection_is_stale = True
        self._is_first_selection = True

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
            self._selection_is_stale = True

    def object_removed(self, managed_object: ManagedObject) -> None:
        self._selection_is_stale = True

    # --- called by the collector ----------------------------------------------------------------------------------

    def restart(self) -> None:
        """Forget what the client was sent: it starts again from version ''."""
        self.sent.clear()
        self._ready.clear()
        self._pending = OrderedDict.fromkeys(self._objects)
        self._selection_is_stale = self._is_first_selection = True

    def take(self, limit: int, encoding: Encoding) -> tuple[list[Parts], list[Parts], bool]:
        """Return (updates of objects, missing objects, whether more updates wait), with at most `limit` updates."""
        self._refresh_views()
        if self._selection_is_stale:
            self._select_again()
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

    def _select_again(self) -> None:
        """Select the filter's objects again; mark those that entered or left as pending."""
        self._selection_is_stale = False
        selected_objects = self.selection.find(self.collector.find)
        selected_objects.objects = {
            moid: managed_object
            for moid, managed_object in selected_objects.objects.items()
            if self.collector.shows(managed_object)
        }
        removed_moids = [moid for moid in self._objects if moid not in selected_objects.objects]
        entered_moids = [moid for moid in selected_objects.objects if moid not in self._objects]
        self._pending.update(dict.fromkeys((*removed_moids, *entered_moids)))  # None: see `_pending`
        if self._is_first_selection:
            self._missing, self._is_first_selection = selected_objects.missing, False
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
        sent = self.sent.get(moid)
        if managed_object is None:
            return self._leave_update(moid, encoding)
        paths = self.selection.paths_of(managed_object.wsdl_name) or ()
        if sent is None:
            sent = self.sent[moid] = {}
            changes, missing = self._changes(managed_object, paths, sent, encoding)
            return _object_update(ENTER, managed_object.ref, changes, missing, encoding)
        if touched is not None:
            paths = tuple(
                path
                for path in paths
                if any(overlaps(_without_index(path), _without_index(touched_path)) for touched_path in touched)
            )
        changes, missing = self._changes(managed_object, paths, sent, encoding)
        return _object_update(MODIFY, managed_object.ref, changes, missing, encoding) if changes or missing else []

    def _leave_update(self, moid: str, encoding: Encoding) -> Parts:
        if self.sent.pop(moid, None) is None:
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
                fragment, absence = read_property(self.world, managed_object, path, encoding)
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


def _without_index(path: str) -> str:
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


DEFAULT_MOID: Final = "propertyCollector"
"""Every session has a collector of its own behind this one moid."""

UPDATES_PER_PAGE: Final = 100
UNLIMITED: Final = 1 << 31

Page = list[tuple[ManagedObject, tuple[str, ...]]]


class PropertyCollector(ManagedObject):
    """One session's collector, with its filters and unfinished retrievals."""

    wsdl_name = "PropertyCollector"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {"filter": lambda self: list(self._filters.values())}

    method_table: ClassVar[Methods] = {
        "WaitForUpdates": lambda self, call, version: self._updates(call, version or "", None, UNLIMITED),
        "CheckForUpdates": lambda self, call, version: self._updates(call, version or "", 0, UNLIMITED),
    }

    def __init__(self, world: World, moid: str, session: ClientSession) -> None:
        super().__init__(world, moid)
        self.session = session
        self._filters: dict[str, PropertyFilter] = {}
        self._retrievals: dict[str, Page] = {}
        self._version = 0
        self._last: tuple[str, Encoding, Parts] | None = None
        self._cancels = 0
        self._discarded = False

    def find(self, moid: str) -> ManagedObject | None:
        """The object of a moid, as this session sees it."""
        return self.session.objects.find(moid) or self.world.find(moid)

    # --- bulk reads -----------------------------------------------------------------------------------------------

    @method
    def RetrieveProperties(self, call: Call, specSet: Any) -> Encoded:
        contents = object_contents(
            self.world, self._select_objects(specSet, call), call.encoding, "returnval", call.user
        )
        return Encoded(call.encoding.listing(contents))

    @method
    def RetrievePropertiesEx(self, call: Call, specSet: Any, options: Any) -> Encoded | None:
        selected = self._select_objects(specSet, call)
        return self._page(selected, options.maxObjects, call) if selected else None

    @method
    def ContinueRetrievePropertiesEx(self, call: Call, token: str) -> Encoded:
        number, _, size = token.partition(":")
        remaining_page = self._retrievals.pop(number, None)
        if remaining_page is None:
            raise faults.wrong_argument("token", "The retrieval token is not valid.")
        return self._page([item for item in remaining_page if self.find(item[0].moid) is item[0]], int(size), call)

    @method
    def CancelRetrievePropertiesEx(self, call: Call, token: str) -> None:
        if self._retrievals.pop(token.partition(":")[0], None) is None:
            raise faults.wrong_argument("token", "The retrieval token is not valid.")

    def _select_objects(self, specs: Any, call: Call) -> Page:
        selected = self._find_objects(specs, call)
        # polling moves virtual time, and an action that becomes due may make or remove objects
        return (
            self._find_objects(specs, call) if self.world.tasks.pass_polling_time(_read_tasks(selected)) else selected
        )

    def _find_objects(self, specs: Any, call: Call) -> Page:
        selected: Page = []
        for spec in specs:
            selection = Selection(spec, call.version)
            selected_objects = selection.find(self.find)
            if selected_objects.missing and not spec.reportMissingObjectsInResults:
                self.world.get(selected_objects.missing[0])
            for managed_object in selected_objects.objects.values():
                if self.shows(managed_object):
                    selected.append((managed_object, selection.paths_of(managed_object.wsdl_name) or ()))
        return selected

    def shows(self, managed_object: ManagedObject) -> bool:
        """Whether this session's user may know of the object; vCenter leaves others out of its replies."""
        return self.world.authority.may(self.session.user, managed_object, "System.View")

    def _page(self, selected: Page, max_objects: int | None, call: Call) -> Encoded:
        """Return a RetrieveResult with the first page; its token is the key of the rest, which is read later."""
        limits = [limit for limit in (max_objects, self.world.page_limit) if limit]
        size = min(limits) if limits else len(selected)
        page, remaining_page = selected[:size], selected[size:]
        members: list[Parts] = []
        if remaining_page:
            retrieval_id = str(self.world.next_number())
            self._retrievals[retrieval_id] = remaining_page
            members.append(call.encoding.member("token", f"{retrieval_id}:{size}", str))
        contents = object_contents(self.world, page, call.encoding, "objects", call.user)
        members.append(call.encoding.repeated("objects", contents))
        return Encoded(call.encoding.structure("returnval", "RetrieveResult", members))

    # --- filters --------------------------------------------------------------------------------------------------

    @method
    def CreateFilter(self, call: Call, spec: Any, partialUpdates: bool) -> PropertyFilter:
        """Create a filter. Raises ManagedObjectNotFound for a missing start object, unless the spec allows that."""
        selection = Selection(spec, call.version)
        missing = [] if spec.reportMissingObjectsInResults else selection.find(self.find).missing
        if missing:
            self.world.get(missing[0])  # raises ManagedObjectNotFound
        created = PropertyFilter(
            self.world, self.session.unique_moid(), self, selection, partial_updates=partialUpdates
        )
        self._filters[created.moid] = created
        self.session.add(created)
        self.world.changed.notify_all()
        return created

    def drop_filter(self, dropped: PropertyFilter) -> None:
        self._filters.pop(dropped.moid, None)
        dropped.discard()
        self.session.remove(dropped)

    # --- updates --------------------------------------------------------------------------------------------------

    @method
    def WaitForUpdatesEx(self, call: Call, version: str | None, options: Any) -> Encoded | None:
        limit = (options and options.maxObjectUpdates) or UPDATES_PER_PAGE
        return self._updates(call, version or "", None if options is None else options.maxWaitSeconds, limit)

    @method
    def CancelWaitForUpdates(self, call: Call) -> None:
        self._cancels += 1
        self.world.changed.notify_all()

    def _updates(self, call: Call, version: str, timeout_s: int | None, limit: int) -> Encoded | None:
        """Wait for changes since `version` (empty: all is new) and return an UpdateSet; None = timeout."""
        if (
            version
            and self._last is not None
            and (version, call.encoding) == self._last[:2]
            and version != str(self._version)
        ):
            return Encoded(self._last[2])  # the reply to this request was lost; vCenter repeats it
        if version not in ("", str(self._version)):
            raise vmodl.query.InvalidCollectorVersion(msg="The collector version is not valid.")
        if not version:
            for property_filter in self._filters.values():
                property_filter.restart()
        cancels = self._cancels

        def ready() -> Parts | None:
            if self._cancels != cancels:
                raise vmodl.fault.RequestCanceled(msg="The request was canceled.")
            if self._discarded:
                raise vmodl.fault.ManagedObjectNotFound(msg="The property collector has been destroyed.", obj=self.ref)
            return self._update_set(limit, call.encoding)

        update_set = self.world.wait(ready, timeout_s)
        # a client that polls a task moves virtual time, and may thereby cause a change
        if update_set is None and timeout_s is not None and self.world.tasks.pass_polling_time(self._watched_tasks()):
            update_set = ready()
        if update_set is None:
            return None
        self._last = (version, call.encoding, update_set)
        return Encoded(update_set)

    def _watched_tasks(self) -> Iterator[ManagedObject]:
        for property_filter in self._filters.values():
            yield from _read_tasks(property_filter.watched())

    def _update_set(self, limit: int, encoding: Encoding) -> Parts | None:
        """Return an encoded UpdateSet of the changes with a new collector version; None = nothing changed."""
        filter_sets: list[Parts] = []
        truncated = False
        for property_filter in list(self._filters.values()):
            updates, missing, truncated = property_filter.take(max(0, limit), encoding)
            if updates or missing:
                members = [encoding.reference("filter", property_filter.wsdl_name, property_filter.moid)]
                members += [encoding.repeated("objectSet", updates)] if updates else []
                members += [encoding.repeated("missingSet", missing)] if missing else []
                filter_sets.append(encoding.structure("filterSet", "PropertyFilterUpdate", members))
            limit -= len(updates)
            if truncated:
                break
        if not filter_sets:
            return None
        self._version += 1
        members_of_set = [
            encoding.member("version", str(self._version), str),
            encoding.repeated("filterSet", filter_sets),
        ]
        members_of_set += [encoding.member("truncated", True, bool)] if truncated else []
        return encoding.structure("returnval", "UpdateSet", members_of_set)

    # --- life -----------------------------------------------------------------------------------------------------

    @method
    def CreatePropertyCollector(self, call: Call) -> PropertyCollector:
        created = PropertyCollector(self.world, self.session.unique_moid(), self.session)
        self.session.add(created)
        return created

    @method
    def DestroyPropertyCollector(self, call: Call) -> None:
        if self.moid == DEFAULT_MOID:
            raise faults.not_supported("The session's own property collector cannot be destroyed.")
        self.discard()
        self.session.remove(self)

    def discard(self) -> None:
        """Drop all filters and end the calls that wait for updates."""
        self._discarded = True
        for property_filter in list(self._filters.values()):
            self.drop_filter(property_filter)
        self._retrievals.clear()
        self.world.changed.notify_all()


def _read_tasks(read: Iterable[tuple[ManagedObject, tuple[str, ...]]]) -> Iterator[ManagedObject]:
    """Return the tasks among these objects whose state is read (`info`)."""
    return (
        managed_object
        for managed_object, paths in read
        if managed_object.wsdl_name == "Task" and any(path.startswith("info") for path in paths)
    )
