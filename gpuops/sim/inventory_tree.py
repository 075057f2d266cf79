"""The inventory tree, read from the objects' own properties: ancestors, and what stands at a path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import UNSET, ManagedObject
from gpuops.sim.objects.managed_entity import ManagedEntity

if TYPE_CHECKING:
    from gpuops.sim.world import World


def linked(obj: ManagedObject, path: str) -> list[ManagedObject]:
    """The objects that a property of references leads to; those that exist."""
    try:
        value: Any = obj.read(path)
    except LookupError as undeclared:
        if type(undeclared) is not LookupError:
            raise
        return []
    if value is UNSET or value is None:
        return []
    links = value if isinstance(value, (list, tuple)) else (value,)
    found = (link if isinstance(link, ManagedObject) else obj.world.find(link._moId) for link in links)
    return [target for target in found if target is not None]


def ancestors(obj: ManagedObject) -> Iterator[ManagedObject]:
    """The parents of an object up to the root folder, nearest first."""
    seen = {obj.moid}
    above = _parent(obj)
    while above is not None and above.moid not in seen:
        yield above
        seen.add(above.moid)
        above = _parent(above)


def _parent(obj: ManagedObject) -> ManagedObject | None:
    if isinstance(obj, ManagedEntity):  # its own word, not the property made of it: every call and event asks for it
        return obj.world.find(obj.parent) if obj.parent is not None else None
    return next(iter(linked(obj, "parent")), None)


CHILD_PATHS = {
    "Folder": ("childEntity",),
    "StoragePod": ("childEntity",),
    "Datacenter": ("vmFolder", "hostFolder", "datastoreFolder", "networkFolder"),
    "ComputeResource": ("host", "resourcePool"),
    "ClusterComputeResource": ("host", "resourcePool"),
    "ResourcePool": ("resourcePool", "vm"),
    "VirtualApp": ("resourcePool", "vm"),
}
"""What SearchIndex.FindChild looks through, by type."""


def children(obj: ManagedObject) -> Iterator[ManagedObject]:
    """The objects directly below one in the inventory."""
    for path in CHILD_PATHS.get(obj.wsdl_name, ()):
        yield from linked(obj, path)


def child_named(obj: ManagedObject, name: str) -> ManagedObject | None:
    """The child of that name; names are compared with vSphere's escapes (`%2f` for a slash) undone."""
    wanted = unescaped(name)
    return next((child for child in children(obj) if unescaped(child.display_name) == wanted), None)


def at_path(world: World, root: ManagedObject, path: str) -> ManagedObject | None:
    """The object at an inventory path such as `DC0/vm/desktops/vdi-001`; the root folder for an empty one."""
    obj: ManagedObject | None = root
    for name in filter(None, path.split("/")):
        obj = child_named(obj, name) if obj is not None else None
    return obj


def unescaped(name: str) -> str:
    """A name with `%2f`, `%5c` and `%25` as the characters they stand for."""
    return name.replace("%2f", "/").replace("%5c", "\\").replace("%25", "%")
