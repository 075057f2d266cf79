"""Removes inventory objects other than VMs: folders, datacenters, clusters, hosts, pools, distributed switches.

What is removed must be empty: hosts of a cluster, VMs of a host and children of a datacenter keep it in use (vcsim
answers the same; the API declares no more than VimFault).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.entities import ComputeEntity, FolderEntity, HostEntity, PoolEntity, VmEntity
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.operations import distributed_switches
from gpuops.sim.operations.vms import movement

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.managed_entity import ManagedEntity

REMOVAL_S: Final = 0.5
REMOVAL_PRIVILEGES: Final = {
    "Folder": "Folder.Delete",
    "Datacenter": "Datacenter.Delete",
    "ClusterComputeResource": "Host.Inventory.DeleteCluster",
    "ComputeResource": "Host.Inventory.RemoveHostFromCluster",
    "HostSystem": "Host.Inventory.RemoveHostFromCluster",
    "ResourcePool": "Resource.DeletePool",
    "VirtualApp": "VApp.Delete",
    "VmwareDistributedVirtualSwitch": "DVSwitch.Delete",
    "DistributedVirtualPortgroup": "DVPortgroup.Delete",
}
"""The privilege to remove an object of each type (VMware vSphere Security, defined privileges)."""


def destroy(entity: ManagedEntity, call: Call) -> Any:
    """Destroy_Task of an object other than a VM. A folder is removed with its content (vSphere API, Folder)."""
    world = entity.world
    world.authority.require(call, entity, REMOVAL_PRIVILEGES[entity.wsdl_name])

    def begin() -> None:
        _refuse_removal(entity)

    def finish() -> None:
        _refuse_removal(entity)  # checked again: a VM may have been started on it while the task ran
        _remove_entity(entity, call)

    return world.tasks.start(call, "Destroy_Task", entity, REMOVAL_S, begin=begin, finish=finish)


def _refuse_removal(entity: Any) -> None:
    """Raises ResourceInUse for an object that is in use, InvalidType for a root pool (vSphere API, ResourcePool)."""
    match entity:
        case FolderEntity():
            _refuse_folder_removal(entity)
        case HostEntity():
            _refuse_host_removal(entity)
        case ComputeEntity():
            if entity.host_moids and entity.wsdl_name == "ClusterComputeResource":
                raise faults.in_use(entity)
            for host in entity.hosts():
                _refuse_host_removal(host)
        case PoolEntity():
            if isinstance(entity.parent_object(), ComputeEntity):
                raise faults.invalid_type("The root resource pool is only removed with its cluster or host.", entity)
        case DistributedSwitchEntity() | PortgroupEntity():
            distributed_switches.require_removable(entity)
        case _:  # a datacenter
            if any(folder.children for folder in entity.folders.values()):
                raise faults.in_use(entity)


def _refuse_folder_removal(folder: FolderEntity) -> None:
    if not isinstance(folder.parent_object(), FolderEntity):
        raise faults.not_supported("Folders that vCenter made itself cannot be removed.")
    for child in folder.children.values():
        if isinstance(child, VmEntity):
            movement.require_destroyable(child)
        else:
            _refuse_removal(child)


def _refuse_host_removal(host: HostEntity) -> None:
    if host.state.vms:
        raise faults.in_use(host)
    if host.state.network.proxies:
        raise faults.in_use(host.world.get(host.state.network.proxies[0].switch))
    if host.state.connection == "connected" and not host.state.in_maintenance:
        raise faults.wrong_state("The host must be disconnected or in maintenance mode.")


def _remove_entity(entity: Any, call: Call) -> None:
    """Remove an object: a folder with its content, a standalone host with its compute resource."""
    world = entity.world
    match entity:
        case FolderEntity():
            for child in list(entity.children.values()):
                if isinstance(child, VmEntity):
                    movement.remove_vm(child, call)
                elif world.find(child.moid) is child:  # a port group may have gone with its switch
                    _remove_entity(child, call)
        case HostEntity() if entity.compute_resource().wsdl_name == "ComputeResource":
            entity = entity.compute_resource()  # a host alone goes with its compute resource
    world.ledger.record(call, entity, before={"name": entity.name}, after={})
    forget(entity)


def forget(entity: Any) -> None:
    """Take an object, and the objects that are parts of it, out of the inventory."""
    world = entity.world
    match entity:
        case DistributedSwitchEntity() | PortgroupEntity():
            distributed_switches.forget(entity)
        case HostEntity():
            _forget_host(entity)
        case ComputeEntity():
            _forget_compute(entity)
        case PoolEntity():
            _move_members_up(entity)
            world.unregister(entity)
        case FolderEntity():
            world.unregister(entity)
        case _:  # a datacenter
            for folder in entity.folders.values():
                world.unregister(folder)
            world.unregister(entity)
    parent = world.find(entity.parent)
    if isinstance(parent, FolderEntity):
        parent.remove(entity)


def _forget_compute(compute: ComputeEntity) -> None:
    world = compute.world
    for host in compute.hosts():
        _forget_host(host)
    for pool in list(compute.pool.pools):
        forget(pool)
    for part in (world.get(f"datastoreBrowser-{compute.moid}"), compute.browser, compute.pool, compute):
        world.unregister(part)


def _forget_host(host: HostEntity) -> None:
    """Unregister a host, its managers and its datastore browser."""
    world, compute = host.world, host.compute_resource()
    compute.host_moids.remove(host.moid)
    for moid in host.state.datastores:
        store = world.get(moid)
        store.host_moids.remove(host.moid)
        store.touch("host", "summary")
    for managed in (*host.managers.values(), world.get(f"datastoreBrowser-{host.moid}")):
        world.unregister(managed)
    host.managers.clear()
    world.unregister(host)
    compute.touch("host", "datastore", "network")
    compute.load_changed()


def _move_members_up(pool: PoolEntity) -> None:
    """Move the VMs and pools of a removed pool to the pool above it (vSphere API, ResourcePool.Destroy_Task)."""
    parent_pool: PoolEntity = pool.world.get(pool.parent)
    parent_pool.pools.remove(pool)
    for child in pool.pools:
        child.parent = parent_pool.moid
        parent_pool.pools.append(child)
        child.touch("parent")
    for vm in list(pool.members.values()):
        vm.leave_pool()
        vm.state.pool = parent_pool.moid
        parent_pool.add(vm)
    parent_pool.touch("resourcePool")


def destroy_children(pool: PoolEntity, call: Call) -> None:
    """DestroyChildren: remove the pools below this one; their VMs move into this one."""
    while pool.pools:  # the pools below a removed pool move up and are removed next
        _remove_entity(pool.pools[0], call)
