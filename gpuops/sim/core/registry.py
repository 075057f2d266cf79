"""The managed objects by moid and by type, and the watchers of their changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any, Final, Protocol

from gpuops.sim.core.managed_object import ManagedObject

STRUCTURE: Final = frozenset(
    {
        "childEntity", "datastoreFolder", "hostFolder", "networkFolder", "vmFolder",
        "host", "resourcePool", "vm", "vApp", "parent",
    }
)  # fmt: skip
"""The properties that hold the inventory tree together; touching one may change what a view holds."""


class Watcher(Protocol):
    """Is called at changes of the objects that it watches."""

    def object_touched(self, managed_object: ManagedObject, paths: Collection[str]) -> None: ...

    def object_removed(self, managed_object: ManagedObject) -> None: ...


@cache
def vmomi_type(wsdl_name: str) -> Any:
    """pyVmomi's class of a managed object type. Raises KeyError for a name that the API does not have."""
    from pyVmomi import VmomiSupport

    return VmomiSupport.GetWsdlType("urn:vim25", wsdl_name)


@cache
def is_kind_of(wsdl_name: str, ancestor: str) -> bool:
    """Whether a managed object type is `ancestor` or derives from it, as the API's type tables say."""
    return issubclass(vmomi_type(wsdl_name), vmomi_type(ancestor))


class Registry:
    """Objects in the order they came; a moid names one object."""

    def __init__(self) -> None:
        self._objects: dict[str, ManagedObject] = {}
        self._types: dict[str, dict[str, ManagedObject]] = {}
        self._kinds: dict[str, tuple[str, ...]] = {}
        """Cache: type -> the types of registered objects that are this type or derive from it."""
        self._watchers: defaultdict[str, dict[Watcher, None]] = defaultdict(dict)
        self._makers: dict[str, Callable[[str], ManagedObject | None]] = {}
        self.structure_epoch = 0
        """Counts changes to the inventory tree; a view that remembers a smaller number reads its members again."""

    def __iter__(self) -> Iterator[ManagedObject]:
        return iter(tuple(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def add(self, managed_object: ManagedObject) -> None:
        if managed_object.moid in self._objects:
            raise ValueError(
                f"the id {managed_object.moid} is already used by a {self._objects[managed_object.moid].wsdl_name}"
            )
        self._objects[managed_object.moid] = managed_object
        if managed_object.wsdl_name not in self._types:
            self._types[managed_object.wsdl_name] = {}
            self._kinds.clear()
        self._types[managed_object.wsdl_name][managed_object.moid] = managed_object
        if is_kind_of(managed_object.wsdl_name, "ManagedEntity"):
            self.structure_epoch += 1

    def remove(self, managed_object: ManagedObject) -> None:
        del self._objects[managed_object.moid]
        del self._types[managed_object.wsdl_name][managed_object.moid]
        if is_kind_of(managed_object.wsdl_name, "ManagedEntity"):
            self.structure_epoch += 1
        self.notify_removed(managed_object)

    def make_on_demand(self, prefix: str, maker: Callable[[str], ManagedObject | None]) -> None:
        """Register the function that makes an object when its moid is first looked up.

        `prefix` is a complete moid, or ends in `-` and stands for all moids such as `graphicsManager-12`. `maker`
        returns None for a moid that names nothing.
        """
        self._makers[prefix] = maker

    def find(self, moid: str) -> ManagedObject | None:
        managed_object = self._objects.get(moid)
        return managed_object if managed_object is not None else self._make_on_request(moid)

    def _make_on_request(self, moid: str) -> ManagedObject | None:
        # the prefix of "graphicsManager-12" is "graphicsManager-"
        maker = self._makers.get(moid) or self._makers.get("".join(moid.rpartition("-")[:2]))
        managed_object = maker(moid) if maker is not None else None
        if managed_object is not None:
            self.add(managed_object)
        return managed_object

    def get(self, reference: Any) -> Any:
        """Return the object of a moid or pyVmomi reference. Raises vmodl.fault.ManagedObjectNotFound."""
        moid = reference if isinstance(reference, str) else reference._moId
        managed_object = self._objects.get(moid)
        if managed_object is None:
            managed_object = self._make_on_request(moid)
        # a reference that is not only a moid must also have the object's type
        if managed_object is None or (moid is not reference and not isinstance(managed_object.ref, type(reference))):
            from pyVmomi import VmomiSupport, vmodl  # only on a fault: `get` is called hundreds of thousands of times

            missing = reference if not isinstance(reference, str) else VmomiSupport.ManagedObject(moid)
            raise vmodl.fault.ManagedObjectNotFound(
                msg=f"The object '{type(missing).__name__}:{moid}' has already been deleted or has not been completely "
                "created",
                obj=missing,
            )
        return managed_object

    def by_type(self, wsdl_name: str) -> Iterator[Any]:
        kinds = self._kinds.get(wsdl_name)
        if kinds is None:
            kinds = self._kinds[wsdl_name] = tuple(name for name in self._types if is_kind_of(name, wsdl_name))
        for name in kinds:
            yield from tuple(self._types[name].values())

    def watch(self, moid: str, watcher: Watcher) -> None:
        """Tell `watcher` of every touch of this object until it is unwatched or removed."""
        self._watchers[moid][watcher] = None

    def unwatch(self, moid: str, watcher: Watcher) -> None:
        watchers = self._watchers.get(moid)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[moid]

    def notify_removed(self, managed_object: ManagedObject) -> None:
        """Tell its watchers that this object is gone."""
        for watcher in tuple(self._watchers.pop(managed_object.moid, ())):
            watcher.object_removed(managed_object)

    def notify_touched(self, managed_object: ManagedObject, paths: Collection[str]) -> None:
        """Tell the watchers of this object that these paths changed."""
        if not STRUCTURE.isdisjoint(paths):
            self.structure_epoch += 1
        watchers = self._watchers.get(managed_object.moid)
        for watcher in tuple(watchers) if watchers else ():
            watcher.object_touched(managed_object, paths)
