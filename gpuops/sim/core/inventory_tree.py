"""The inventory tree, read from the objects' own properties: ancestors, objects at a path, members of a view."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.registry import is_kind_of


def ancestors(managed_object: ManagedObject) -> Iterator[ManagedObject]:
    """The parents of an object up to the root folder, nearest first."""
    visited = {managed_object.moid}
    parent = managed_object.parent_object()
    while parent is not None and parent.moid not in visited:
        yield parent
        visited.add(parent.moid)
        parent = parent.parent_object()


def datacenter_of(managed_object: ManagedObject) -> Any:
    """Return the datacenter that an object is in."""
    return next(ancestor for ancestor in ancestors(managed_object) if ancestor.wsdl_name == "Datacenter")


CHILD_PATHS = {
    "Folder": ("childEntity",),
    "StoragePod": ("childEntity",),
    "Datacenter": ("vmFolder", "hostFolder", "datastoreFolder", "networkFolder"),
    "ComputeResource": ("host", "resourcePool"),
    "ClusterComputeResource": ("host", "resourcePool"),
    "ResourcePool": ("resourcePool", "vm"),
    "VirtualApp": ("resourcePool", "vm"),
}
"""The properties in which SearchIndex.FindChild looks for a child, by type of the parent."""


def children(managed_object: ManagedObject) -> Iterator[ManagedObject]:
    """The objects directly below one in the inventory."""
    for path in CHILD_PATHS.get(managed_object.wsdl_name, ()):
        yield from managed_object.linked(path)


def child_named(managed_object: ManagedObject, name: str) -> ManagedObject | None:
    """The child of that name; names are compared with vSphere's escapes (`%2f` for a slash) undone."""
    plain_name = unescaped(name)
    return next((child for child in children(managed_object) if unescaped(child.display_name) == plain_name), None)


def at_path(root: ManagedObject, path: str) -> ManagedObject | None:
    """The object at an inventory path such as `DC0/vm/desktops/vdi-001`; the root folder for an empty one."""
    managed_object: ManagedObject | None = root
    for name in filter(None, path.split("/")):
        managed_object = child_named(managed_object, name) if managed_object is not None else None
    return managed_object


_PLAIN: Final = re.compile(r"[^%/\\]*\Z")


def escaped(name: str) -> str:
    """A name as vCenter keeps it: `/` and `\\` escaped, and `%` where it begins no escape (vSphere API,
    ManagedEntity.name)."""
    if _PLAIN.match(name):
        return name
    marked = re.sub(r"%(?!2f|5c|25)", "%25", name, flags=re.IGNORECASE)
    return marked.replace("/", "%2f").replace("\\", "%5c")


_CHARACTERS: Final = {"2f": "/", "5c": "\\", "25": "%"}
_ESCAPE: Final = re.compile("%(2f|5c|25)", re.IGNORECASE)


def unescaped(name: str) -> str:
    """A name with `%2f`, `%5c` and `%25` as the characters they stand for."""
    return _ESCAPE.sub(lambda escape: _CHARACTERS[escape[1].lower()], name)


# What a ContainerView of each kind of container holds (vSphere API reference, ContainerView): the properties that lead
# to its children. VMs are reached through folders, and through pools and hosts only below a container that has no
# folder of VMs: a pool, a host, a cluster, or a folder of hosts (where community.vmware looks for a datacenter's VMs).
CHILDREN: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Folder", ("childEntity",)),
    ("Datacenter", ("vmFolder", "hostFolder", "datastoreFolder", "networkFolder")),
    ("ComputeResource", ("host", "resourcePool")),
    ("VirtualApp", ("resourcePool", "vm")),
    ("ResourcePool", ("resourcePool",)),
)
OF_CONTAINER: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("ComputeResource", ("host", "resourcePool")),
    ("ResourcePool", ("resourcePool", "vm")),
    ("HostSystem", ("vm",)),
)


def members(container: ManagedObject, types: tuple[str, ...], *, recursive: bool) -> dict[str, ManagedObject]:
    """Return the objects of these types (empty: all types) in a container, by moid in inventory order.

    Without `recursive` only its direct children are returned.
    """
    members_by_moid: dict[str, ManagedObject] = {}
    through_pools = _is_below_datacenter(container)
    # children are pushed in reverse, so that they leave the stack in inventory order
    waiting: list[ManagedObject] = list(_children(container, is_container=True, through_pools=through_pools))[::-1]
    visited: set[str] = set()
    while waiting:
        managed_object = waiting.pop()
        if managed_object.moid in visited:
            continue
        visited.add(managed_object.moid)
        if not types or any(is_kind_of(managed_object.wsdl_name, type_name) for type_name in types):
            members_by_moid[managed_object.moid] = managed_object
        if recursive and managed_object.wsdl_name != "VirtualMachine":
            waiting.extend(list(_children(managed_object, is_container=False, through_pools=through_pools))[::-1])
    return members_by_moid


def _is_below_datacenter(container: ManagedObject) -> bool:
    """Return whether the container has no VM folder below it, so that its VMs are reached through pools."""
    if any(is_kind_of(container.wsdl_name, kind) for kind in ("ResourcePool", "ComputeResource")):
        return True
    return any(parent.wsdl_name == "Datacenter" for parent in ancestors(container))


def _children(managed_object: ManagedObject, *, is_container: bool, through_pools: bool) -> Iterator[ManagedObject]:
    for path in _paths(managed_object.wsdl_name, is_container=is_container, through_pools=through_pools):
        yield from managed_object.linked(path)


def _paths(wsdl_name: str, *, is_container: bool, through_pools: bool) -> tuple[str, ...]:
    """Return the properties that lead to the children; `is_container` is True for the view's own container."""
    if is_container or (through_pools and is_kind_of(wsdl_name, "ResourcePool")):
        for kind, paths in OF_CONTAINER:
            if is_kind_of(wsdl_name, kind):
                return paths
    return next((paths for kind, paths in CHILDREN if is_kind_of(wsdl_name, kind)), ())
