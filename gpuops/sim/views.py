"""Views: which inventory objects a ContainerView holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.sim.managed_object import ManagedObject
from gpuops.sim.registry import is_kind_of

# What a ContainerView of each kind of container holds (vSphere API reference, ContainerView): the properties that lead
# to its children. VMs are reached through folders, and through a pool or host only when that is the container itself.
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
    """The objects in a container by moid, in inventory order; of any of these types, or all when there are none."""
    found: dict[str, ManagedObject] = {}
    within_pool = is_kind_of(container.wsdl_name, "ResourcePool") or is_kind_of(container.wsdl_name, "ComputeResource")
    waiting: list[ManagedObject] = list(_children(container, first=True, within_pool=within_pool))[::-1]
    seen: set[str] = set()
    while waiting:
        obj = waiting.pop()
        if obj.moid in seen:
            continue
        seen.add(obj.moid)
        if not types or any(is_kind_of(obj.wsdl_name, wanted) for wanted in types):
            found[obj.moid] = obj
        if recursive and obj.wsdl_name != "VirtualMachine":
            waiting.extend(list(_children(obj, first=False, within_pool=within_pool))[::-1])
    return found


def _children(obj: ManagedObject, *, first: bool, within_pool: bool) -> Iterator[ManagedObject]:
    for path in _paths(obj.wsdl_name, first=first, within_pool=within_pool):
        yield from obj.linked(path)


def _paths(wsdl_name: str, *, first: bool, within_pool: bool) -> tuple[str, ...]:
    if first or (within_pool and is_kind_of(wsdl_name, "ResourcePool")):
        for kind, paths in OF_CONTAINER:
            if is_kind_of(wsdl_name, kind):
                return paths
    return next((paths for kind, paths in CHILDREN if is_kind_of(wsdl_name, kind)), ())
