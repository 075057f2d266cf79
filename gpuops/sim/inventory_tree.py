"""The inventory tree, read from the objects' own properties: ancestors, and what stands at a path."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.sim.managed_object import ManagedObject


def ancestors(obj: ManagedObject) -> Iterator[ManagedObject]:
    """The parents of an object up to the root folder, nearest first."""
    seen = {obj.moid}
    above = obj.above()
    while above is not None and above.moid not in seen:
        yield above
        seen.add(above.moid)
        above = above.above()


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
        yield from obj.linked(path)


def child_named(obj: ManagedObject, name: str) -> ManagedObject | None:
    """The child of that name; names are compared with vSphere's escapes (`%2f` for a slash) undone."""
    wanted = unescaped(name)
    return next((child for child in children(obj) if unescaped(child.display_name) == wanted), None)


def at_path(root: ManagedObject, path: str) -> ManagedObject | None:
    """The object at an inventory path such as `DC0/vm/desktops/vdi-001`; the root folder for an empty one."""
    obj: ManagedObject | None = root
    for name in filter(None, path.split("/")):
        obj = child_named(obj, name) if obj is not None else None
    return obj


def unescaped(name: str) -> str:
    """A name with `%2f`, `%5c` and `%25` as the characters they stand for."""
    return name.replace("%2f", "/").replace("%5c", "\\").replace("%25", "%")
