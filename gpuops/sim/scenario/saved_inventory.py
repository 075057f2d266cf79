"""The part of a saved state about folders, datacenters, clusters, hosts and resource pools: made, moved and removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.inventory.entities import ComputeEntity, HostEntity
from gpuops.sim.inventory.folder_entity import FolderEntity
from gpuops.sim.objects.compute_resource import ClusterComputeResource, ComputeResource, furnish
from gpuops.sim.objects.folder import Folder, new_datacenter
from gpuops.sim.objects.resource_pool import new_pool
from gpuops.sim.operations.inventory_change import rehome, reparent
from gpuops.sim.operations.removal import forget
from gpuops.sim.scenario.hosts import enter_host
from gpuops.sim.scenario.saved_values import adapter, dump
from gpuops.sim.state.host_state import HostState

if TYPE_CHECKING:
    from gpuops.sim.inventory.managed_entity import ManagedEntity
    from gpuops.sim.world import World

KINDS: Final = ("Folder", "Datacenter", "ComputeResource", "ClusterComputeResource", "HostSystem", "ResourcePool")


def _entities(world: World) -> Iterator[Any]:
    """All of these kinds, in the order they were made; what vCenter makes with another one is not listed."""
    for managed_object in world.registry:
        if managed_object.wsdl_name in KINDS and not _is_part(world, managed_object):
            yield managed_object


def _is_part(world: World, managed_object: Any) -> bool:
    """Whether it is a folder of a datacenter, or the root pool of a compute resource."""
    above = world.find(managed_object.parent) if managed_object.parent else None
    if managed_object.wsdl_name == "ResourcePool":
        return isinstance(above, ComputeEntity)
    return managed_object.wsdl_name == "Folder" and not isinstance(above, FolderEntity)


def made(world: World, untouched: World) -> list[dict[str, Any]]:
    """What was made since, each after what it is in now: it may have moved into something that was made later."""
    new = [entity for entity in _entities(world) if untouched.find(entity.moid) is None]
    return [_entity_to_json(entity) for entity in sorted(new, key=lambda entity: len(list(ancestors(entity))))]


def _entity_to_json(entity: Any) -> dict[str, Any]:
    described = {"type": entity.wsdl_name, "moid": entity.moid, "name": entity.name, "parent": entity.parent}
    match entity:
        case FolderEntity():
            return {**described, "kind": entity.kind}
        case HostEntity():
            return {**described, "state": {**dump(entity.state), "vms": {}}}
        case ComputeEntity():
            return {**described, "pool": entity.pool.moid}
        case _ if entity.wsdl_name == "Datacenter":
            return {**described, "folders": [folder.moid for folder in entity.folders.values()]}
        case _:
            return described


def restore_made(world: World, saved: dict[str, Any]) -> None:
    """Make it again, with the ids that it had."""
    moid, name, parent = saved["moid"], saved["name"], saved["parent"]
    match saved["type"]:
        case "Folder":
            folder = Folder(world, moid, name, parent, saved["kind"])
            world.register(folder)
            world.get(parent).add(folder)
        case "Datacenter":
            world.get(parent).add(new_datacenter(world, name, parent, [moid, *saved["folders"]]))
        case "HostSystem":
            enter_host(world, moid, adapter(HostState).validate_python(saved["state"]))
        case "ResourcePool":
            new_pool(world, moid, name, world.get(parent))
        case kind:
            compute = (ClusterComputeResource if kind == "ClusterComputeResource" else ComputeResource)(
                world, moid, name, parent
            )
            furnish(compute, saved["pool"])
            world.get(parent).add(compute)


def places(world: World) -> Iterator[tuple[str, list[str | None]]]:
    """(moid, [name, parent]) of each."""
    for entity in _entities(world):
        yield entity.moid, [entity.name, entity.parent]


def restore_place(entity: ManagedEntity, place: list[str]) -> None:
    """Give it the name and the parent that it had."""
    name, parent = place
    if entity.name != name:
        entity.rename(name)
    above = entity.world.get(parent) if parent is not None else None
    if entity.parent == parent:
        return
    if isinstance(above, FolderEntity):
        reparent(entity, above)
    elif isinstance(above, ComputeEntity) and isinstance(entity, HostEntity):
        rehome(entity, above)


def removed(world: World, untouched: World) -> dict[str, list[str]]:
    """The moids of what is gone; of the others than VMs, those made last come first."""
    vms = [vm.moid for vm in untouched.by_type("VirtualMachine") if world.find(vm.moid) is None]
    new_moids = [entity.moid for entity in _entities(untouched) if world.find(entity.moid) is None]
    return {"vms": vms, "others": new_moids[::-1]}


def restore_removed(world: World, moid: str) -> None:
    """Remove it, unless it went with another one."""
    entity_found = world.find(moid)
    if entity_found is not None:
        forget(entity_found)
