"""Finds the objects and properties that a PropertyFilterSpec means, by following its traversal specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.managed_object import UNSET, ManagedObject
from gpuops.sim.core.paths import resolve, top_level
from gpuops.sim.core.registry import is_kind_of

Find = Callable[[str], ManagedObject | None]

TraversalSpec: Final = vmodl.query.PropertyCollector.TraversalSpec


@dataclass(slots=True)
class SelectedObjects:
    """What a selection found: objects in order, the properties walked through, and references that led nowhere."""

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
        self._named: dict[str, Any] = {}
        self._paths: dict[str, tuple[str, ...] | None] = {}
        for object_spec in spec.objectSet:
            self._collect(object_spec.selectSet)
        for property_spec in spec.propSet:
            name = VmomiSupport.GetWsdlName(property_spec.type)
            for path in (
                () if property_spec.all else property_spec.pathSet
            ):  # ignored beside `all` (vSphere API, PropertySpec)
                resolve(name, path, version)

    def paths_of(self, wsdl_name: str) -> tuple[str, ...] | None:
        """The properties wanted of a type, each once; None when the spec does not name it."""
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
        """The selected objects as they stand now; `find` gives the object of a moid as this session sees it."""
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
        waiting: list[tuple[ManagedObject, bool | None, Any]] = [(start, skip, select_set)]
        while waiting:
            managed_object, skipped, selects = waiting.pop()
            if not skipped and self.paths_of(managed_object.wsdl_name) is not None:
                selected_objects.objects[managed_object.moid] = managed_object
            if not selects or (managed_object.moid, id(selects)) in visited:
                continue
            visited.add((managed_object.moid, id(selects)))
            children = [
                (child, spec.skip, spec.selectSet)
                for spec in self._traversals(managed_object, selects)
                for child in self._linked_objects(managed_object, spec.path, selected_objects, find)
            ]
            waiting.extend(reversed(children))

    def _traversals(self, managed_object: ManagedObject, selects: Any) -> Iterator[Any]:
        for select in selects:
            spec = select if isinstance(select, TraversalSpec) else self._named.get(select.name)
            if spec is None:
                raise vmodl.fault.InvalidArgument(
                    msg=f"No traversal spec is named {select.name}", invalidProperty="specSet"
                )
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

    def _collect(self, selects: Any) -> None:
        for select in selects:
            if isinstance(select, TraversalSpec):
                resolve(VmomiSupport.GetWsdlName(select.type), select.path, self.version)
                if select.name:
                    self._named[select.name] = select
                self._collect(select.selectSet)


def _target(link: Any, find: Find) -> ManagedObject | None:
    return link if isinstance(link, ManagedObject) else find(link._moId)
