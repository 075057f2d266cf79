"""Finds the objects that a PropertyFilterSpec selects, and joins their encoded properties to a bulk read's reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.encoder import Encoding, Parts
from gpuops.sim.core.fragments import ABSENT, FragmentKey, resolve, top_level
from gpuops.sim.core.managed_object import UNSET, ManagedObject
from gpuops.sim.core.registry import is_kind_of
from gpuops.sim.inventory import faults
from gpuops.sim.vcenter.authority import reading_privilege, refusal

if TYPE_CHECKING:
    from gpuops.sim.world import World


@lru_cache(maxsize=4096)
def _heads(paths: tuple[str, ...], encoding: Encoding) -> tuple[tuple[FragmentKey, bytes], ...]:
    """The cache key of each property, and what stands before its value."""
    return tuple(((path, encoding), encoding.property_head(path)) for path in paths)


def object_contents(
    world: World, selected: Iterable[tuple[ManagedObject, tuple[str, ...]]], encoding: Encoding, tag: str, user: str
) -> list[Parts]:
    """Return one encoded ObjectContent for each object; properties that `user` may not read are in its missingSet."""
    contents: list[Parts] = []
    tail = encoding.property_tail
    for managed_object, paths in selected:
        fragments = world.fragments.of(managed_object.moid) if not managed_object.volatile else {}
        hidden = world.authority.hidden(user, managed_object, paths)
        missing = (
            [hidden_property(managed_object, path, encoding) for path in paths if path in hidden] if hidden else []
        )
        if world.injector.may_hide_properties:
            hidden_by_rules = _hidden_properties(world, managed_object, paths)
            missing += [
                missing_property(path, fault, encoding) for path, fault in hidden_by_rules.items() if fault is not None
            ]
            hidden = hidden.union(hidden_by_rules)
        visible_paths = tuple(path for path in paths if path not in hidden) if hidden else paths
        parts: Parts = []
        for key, head in _heads(visible_paths, encoding):
            fragment = fragments.get(key)
            if fragment is None:
                fragment, absence = read_property(world, managed_object, *key)
                if absence:
                    missing.append(absence)
                else:
                    fragments[key] = fragment
            if fragment is not ABSENT:
                parts += head, fragment, tail
        members = [encoding.reference("obj", managed_object.wsdl_name, managed_object.moid)]
        if parts:
            members.append(encoding.properties(parts))
        if missing:
            members.append(encoding.repeated("missingSet", missing))
        contents.append(encoding.structure(tag, "ObjectContent", members))
    return contents


def _hidden_properties(world: World, managed_object: ManagedObject, paths: tuple[str, ...]) -> dict[str, Any]:
    """Return the properties that fault rules hide from this read; each has a fault for missingSet, or None."""
    call = world.current_call
    return world.injector.hidden(managed_object, paths, call.method if call is not None else "")


def read_property(world: World, managed_object: ManagedObject, path: str, encoding: Encoding) -> tuple[bytes, Parts]:
    """Return (fragment, []) of a property, or (ABSENT, its encoded MissingProperty) if reading it raises a fault.

    Raises InvalidProperty: it is the fault of the whole request. Any other exception is recorded as a bug.
    """
    try:
        return world.fragments.render(managed_object, path, encoding), []
    except vmodl.query.InvalidProperty:
        raise
    except vmodl.MethodFault as fault:
        reason = fault
    except Exception as bug:
        world.record_bug(bug)
        reason = vmodl.fault.SystemError(msg=str(bug), reason=f"{type(bug).__name__}: {bug}")
    return ABSENT, missing_property(path, reason, encoding)


def hidden_property(managed_object: ManagedObject, path: str, encoding: Encoding) -> Parts:
    """Return the MissingProperty of a property for which the user lacks a privilege."""
    return missing_property(path, refusal(managed_object, reading_privilege(managed_object.wsdl_name, path)), encoding)


def missing_property(path: str, fault: Any, encoding: Encoding) -> Parts:
    """Return the MissingProperty of a property that could not be read."""
    members = encoding.member("path", path, str), encoding.member("fault", fault, vmodl.MethodFault)
    return encoding.structure("missingSet", "MissingProperty", members)


def missing_object(ref: Any, fault: Any, encoding: Encoding) -> Parts:
    """Return the MissingObject of an object that does not exist."""
    members = encoding.member("obj", ref, type(ref)), encoding.member("fault", fault, vmodl.MethodFault)
    return encoding.structure("missingSet", "MissingObject", members)


Find = Callable[[str], ManagedObject | None]

TraversalSpec: Final = vmodl.query.PropertyCollector.TraversalSpec


@dataclass(slots=True)
class SelectedObjects:
    """The result of a selection: objects in order, the properties followed, and references to missing objects."""

    objects: dict[str, ManagedObject] = field(default_factory=dict)
    walked: dict[str, set[str]] = field(default_factory=dict)
    """moid -> traversed property paths; a change there may change which objects are selected."""
    missing: list[Any] = field(default_factory=list)


class Selection:
    """A filter spec, checked against the type tables of one API version.

    Raises vmodl.query.InvalidProperty for a path that its type does not have.
    """

    def __init__(self, spec: Any, version: str) -> None:
        self.spec = spec
        self.version = version
        self._traversals_by_name: dict[str, Any] = {}
        self._paths: dict[str, tuple[str, ...] | None] = {}
        for object_spec in spec.objectSet:
            self._check_traversals(object_spec.selectSet)
        for property_spec in spec.propSet:
            name = VmomiSupport.GetWsdlName(property_spec.type)
            # `pathSet` is ignored if `all` is set (vSphere API, PropertySpec)
            for path in () if property_spec.all else property_spec.pathSet:
                resolve(name, path, version)

    def paths_of(self, wsdl_name: str) -> tuple[str, ...] | None:
        """Return the requested properties of a type, each once; None if the spec does not name the type."""
        if wsdl_name not in self._paths:
            self._paths[wsdl_name] = self._paths_of(wsdl_name)
        return self._paths[wsdl_name]

    def _paths_of(self, wsdl_name: str) -> tuple[str, ...] | None:
        specs = [spec for spec in self.spec.propSet if is_kind_of(wsdl_name, VmomiSupport.GetWsdlName(spec.type))]
        if not specs:
            return None
        paths: dict[str, None] = {}
        for spec in specs:
            paths.update(dict.fromkeys(top_level(wsdl_name, self.version) if spec.all else spec.pathSet))
        return tuple(paths)

    def find(self, find: Find) -> SelectedObjects:
        """Select the objects now; `find` returns the object of a moid as this session sees it."""
        selected_objects = SelectedObjects()
        visited: set[tuple[str, int]] = set()
        for object_spec in self.spec.objectSet:
            start = find(object_spec.obj._moId)
            if start is None or not isinstance(start.ref, type(object_spec.obj)):
                selected_objects.missing.append(object_spec.obj)
                continue
            self._visit(start, object_spec.skip, object_spec.selectSet, selected_objects, visited, find)
        return selected_objects

    def _visit(
        self,
        start: ManagedObject,
        skip: bool | None,
        select_set: Any,
        selected_objects: SelectedObjects,
        visited: set[tuple[str, int]],
        find: Find,
    ) -> None:
        """Add the objects that the traversal specs reach from `start`, depth first; `skip` leaves out `start`."""
        waiting: list[tuple[ManagedObject, bool | None, Any]] = [(start, skip, select_set)]
        while waiting:
            managed_object, skipped, selects = waiting.pop()
            if not skipped and self.paths_of(managed_object.wsdl_name) is not None:
                selected_objects.objects[managed_object.moid] = managed_object
            # an object may be visited once with each select set
            if not selects or (managed_object.moid, id(selects)) in visited:
                continue
            visited.add((managed_object.moid, id(selects)))
            children = [
                (child, spec.skip, spec.selectSet)
                for spec in self._traversals(managed_object, selects)
                for child in self._linked_objects(managed_object, spec.path, selected_objects, find)
            ]
            waiting.extend(reversed(children))  # the stack returns them in the order of the property

    def _traversals(self, managed_object: ManagedObject, selects: Any) -> Iterator[Any]:
        for select in selects:
            spec = select if isinstance(select, TraversalSpec) else self._traversals_by_name.get(select.name)
            if spec is None:
                raise faults.wrong_argument("specSet", f"No traversal spec is named {select.name}")
            if is_kind_of(managed_object.wsdl_name, VmomiSupport.GetWsdlName(spec.type)):
                yield spec

    def _linked_objects(
        self, managed_object: ManagedObject, path: str, selected_objects: SelectedObjects, find: Find
    ) -> Iterable[ManagedObject]:
        selected_objects.walked.setdefault(managed_object.moid, set()).add(path)
        resolve(managed_object.wsdl_name, path, self.version)
        value = managed_object.read(path)
        if value is UNSET or value is None:
            return ()
        links = value if isinstance(value, (list, tuple)) else (value,)
        return [target for link in links if (target := _target(link, find)) is not None]

    def _check_traversals(self, selects: Any) -> None:
        """Check the paths of all traversal specs, and note the named ones, which others refer to by name."""
        for select in selects:
            if isinstance(select, TraversalSpec):
                resolve(VmomiSupport.GetWsdlName(select.type), select.path, self.version)
                if select.name:
                    self._traversals_by_name[select.name] = select
                self._check_traversals(select.selectSet)


def _target(link: Any, find: Find) -> ManagedObject | None:
    return link if isinstance(link, ManagedObject) else find(link._moId)
