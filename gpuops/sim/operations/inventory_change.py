"""Datacenters, clusters, hosts and resource pools made and removed by clients, and hosts disconnected and reconnected.

`objects` hands over what makes an object of its types. What is removed must be empty: hosts of a cluster, VMs of a host
and children of a datacenter keep it in use (vcsim answers the same; the API declares no more than VimFault).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.entities import ComputeEntity, FolderEntity, HostEntity, PoolEntity, VmEntity
from gpuops.sim.inventory.registration import new_moid
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.operations import cluster_change, distributed_change, movement, registering
from gpuops.sim.state.drs import DrsState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.managed_entity import ManagedEntity
    from gpuops.sim.world import World

CHANGE_S: Final = 0.5
ADD_HOST_S: Final = 10.0
KIND_OF_CHILD: Final = {
    "VirtualMachine": "vm",
    "ComputeResource": "host",
    "ClusterComputeResource": "host",
    "Network": "network",
    "DistributedVirtualPortgroup": "network",
    "VmwareDistributedVirtualSwitch": "network",
}
"""The kind of folder that holds an object of a type."""

MakeDatacenter = Callable[["World", str, str], "ManagedEntity"]
MakeCompute = Callable[["World", str, str], ComputeEntity]
MakeCluster = Callable[["World", str, str, DrsState], ComputeEntity]
MakePool = Callable[["World", str, str, PoolEntity], PoolEntity]


def create_datacenter(folder: FolderEntity, call: Call, name: str, make: MakeDatacenter) -> ManagedEntity:
    """CreateDatacenter: the new one, with its four folders."""
    if folder.kind != "root":
        raise faults.not_supported("Datacenters are made in the root folder and in folders of datacenters.")
    made = make(folder.world, folder.checked_name(name), folder.moid)
    return _entered(folder, call, made)


def create_cluster(folder: FolderEntity, call: Call, name: str, spec: Any, make: MakeCluster) -> ComputeEntity:
    """CreateClusterEx: the new one, without hosts."""
    _holds_hosts(folder)
    made = make(folder.world, folder.checked_name(name), folder.moid, cluster_change.settings_of(spec))
    _entered(folder, call, made)
    return made


def create_pool(parent: PoolEntity, call: Call, name: str, spec: Any, make: MakePool) -> PoolEntity:
    """CreateResourcePool: the new one."""
    refuse_limits(spec)
    name = parent.checked_name(name)
    made = make(parent.world, new_moid(parent.world, "resgroup"), name, parent)
    parent.world.ledger.record(call, made, before={}, after={"name": name, "parent": parent.moid})
    return made


def refuse_limits(spec: Any) -> None:
    """Raises NotSupported for a ResourceConfigSpec that limits a pool or reserves for it.

    InvalidArgument for what is out of range (vSphere API, ResourcePool.UpdateConfig).
    """
    for each in (spec.cpuAllocation, spec.memoryAllocation):
        if (each.reservation or 0) < 0:
            raise faults.wrong_argument("spec.reservation")
        if each.reservation or each.limit not in (None, -1) or (each.shares and each.shares.level == "custom"):
            raise faults.not_supported("The simulated vCenter keeps no reservations, limits or shares of pools.")


def add_standalone_host(folder: FolderEntity, call: Call, spec: Any, *, connected: bool, make: MakeCompute) -> Any:
    """AddStandaloneHost_Task: its result is the ComputeResource of the host."""
    _holds_hosts(folder)

    def finish() -> ComputeEntity:
        _check_host(folder.world, spec)
        compute = make(folder.world, folder.checked_name(spec.hostName), folder.moid)
        _entered(folder, call, compute)
        _add_host(compute, call, spec, connected=connected)
        return compute

    return folder.world.tasks.start(call, "AddStandaloneHost_Task", folder, ADD_HOST_S, finish=finish)


def add_host(cluster: ComputeEntity, call: Call, spec: Any, *, connected: bool) -> Any:
    """AddHost_Task: its result is the host."""

    def finish() -> HostEntity:
        _check_host(cluster.world, spec)
        return _add_host(cluster, call, spec, connected=connected)

    return cluster.world.tasks.start(call, "AddHost_Task", cluster, ADD_HOST_S, finish=finish)


def _check_host(world: World, spec: Any) -> None:
    """Raises what the API declares of a ConnectSpec that names no host, one that is known, or no account."""
    if not spec.hostName:
        raise faults.wrong_argument("spec.hostName")
    if not spec.userName or not spec.password:
        raise vim.fault.InvalidLogin(msg="Cannot complete login due to an incorrect user name or password.")
    known = next((host for host in world.by_type("HostSystem") if host.name == spec.hostName), None)
    if known is not None:
        raise vim.fault.AlreadyConnected(msg=f"The host {known.name} is managed here already.", name=known.name)


def _add_host(compute: ComputeEntity, call: Call, spec: Any, *, connected: bool) -> HostEntity:
    world = compute.world
    if world.new_host is None:
        raise faults.not_supported("The simulated vCenter knows no hosts besides those that it has.")
    host: HostEntity = world.new_host(compute, spec.hostName)
    host.state.connection = "connected" if connected else "disconnected"
    compute.touch("host", "summary", "datastore", "network")
    compute.load_changed()
    world.ledger.record(call, host, before={}, after={"name": host.name, "parent": compute.moid})
    host.post(call, "HostAddedEvent")
    return host


def disconnect(host: HostEntity, call: Call) -> Any:
    """DisconnectHost_Task: vCenter no longer talks to the host, whose VMs go on."""

    def begin() -> None:
        if host.state.connection == "disconnected":
            raise faults.wrong_state(f"The host {host.name} is disconnected.")

    return _connect(host, call, "DisconnectHost_Task", "disconnected", begin)


def reconnect(host: HostEntity, call: Call) -> Any:
    """ReconnectHost_Task. Raises InvalidState unless the host is disconnected, as the API declares it."""

    def begin() -> None:
        if host.state.connection != "disconnected":
            raise faults.wrong_state(f"The host {host.name} is not disconnected.")

    return _connect(host, call, "ReconnectHost_Task", "connected", begin)


def _connect(host: HostEntity, call: Call, task: str, connection: str, begin: Callable[[], None]) -> Any:
    def finish() -> None:
        before, host.state.connection = host.state.connection, connection
        host.world.ledger.record(call, host, before={"connection": before}, after={"connection": connection})
        host.runtime_changed()

    return host.world.tasks.start(call, task, host, CHANGE_S, begin=begin, finish=finish, exclusive=True)


def destroy(entity: ManagedEntity, call: Call) -> Any:
    """Destroy_Task of anything but a VM. A folder takes what is in it along (vSphere API, Folder)."""
    world = entity.world
    world.authority.require(call, entity, DELETING[entity.wsdl_name])

    def begin() -> None:
        _may_go(entity)

    def finish() -> None:
        _may_go(entity)
        _gone(entity, call)

    return world.tasks.start(call, "Destroy_Task", entity, CHANGE_S, begin=begin, finish=finish)


DELETING: Final = {
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
"""What removing an object of each type takes (VMware vSphere Security, defined privileges)."""


def unregister_and_destroy(folder: FolderEntity, call: Call) -> Any:
    """UnregisterAndDestroy_Task: the folder and those below go, the files of its VMs stay.

    Declared faults: NotSupported for a folder that holds no VMs (vSphere API, Folder.UnregisterAndDestroy_Task).
    """
    world = folder.world
    if folder.kind != "vm":
        raise faults.not_supported("Only folders of VMs are unregistered and destroyed.")

    def begin() -> None:
        _folder_may_go(folder)

    def finish() -> None:
        _folder_may_go(folder)
        _gone(folder, call, of_vm=registering.unregister)

    return world.tasks.start(call, "UnregisterAndDestroy_Task", folder, CHANGE_S, begin=begin, finish=finish)


def _may_go(entity: Any) -> None:
    """Raises what keeps an object from being removed: of a root pool InvalidType (vSphere API, ResourcePool)."""
    match entity:
        case FolderEntity():
            _folder_may_go(entity)
        case HostEntity():
            _host_may_go(entity)
        case ComputeEntity():
            if entity.host_moids and entity.wsdl_name == "ClusterComputeResource":
                raise faults.in_use(entity)
            for host in entity.hosts():
                _host_may_go(host)
        case PoolEntity():
            if isinstance(entity.above(), ComputeEntity):
                raise faults.invalid_type("The root resource pool goes with its cluster or host.", entity)
        case DistributedSwitchEntity() | PortgroupEntity():
            distributed_change.may_go(entity)
        case _:
            if any(folder.children for folder in entity.folders.values()):
                raise faults.in_use(entity)


def _folder_may_go(folder: FolderEntity) -> None:
    if not isinstance(folder.above(), FolderEntity):
        raise faults.not_supported("The folders that vCenter makes itself are not removed.")
    for child in folder.children.values():
        if isinstance(child, VmEntity):
            movement.may_be_destroyed(child)
        else:
            _may_go(child)


def _host_may_go(host: HostEntity) -> None:
    if host.state.vms:
        raise faults.in_use(host)
    if host.state.network.proxies:
        raise faults.in_use(host.world.get(host.state.network.proxies[0].switch))
    if host.state.connection == "connected" and not host.state.in_maintenance:
        raise faults.wrong_state("The host must be disconnected or in maintenance mode.")


def _gone(entity: Any, call: Call, of_vm: Callable[[VmEntity, Call], None] = movement.gone) -> None:
    """Remove it, with what belongs to it alone; `of_vm` removes the VMs of a folder."""
    world = entity.world
    match entity:
        case FolderEntity():
            for child in list(entity.children.values()):
                if isinstance(child, VmEntity):
                    of_vm(child, call)
                elif world.find(child.moid) is child:  # a port group may have gone with its switch
                    _gone(child, call, of_vm)
        case HostEntity() if entity.compute_resource().wsdl_name == "ComputeResource":
            entity = entity.compute_resource()  # a host alone goes with its compute resource
    world.ledger.record(call, entity, before={"name": entity.name}, after={})
    forget(entity)


def forget(entity: Any) -> None:
    """Take an object, and the objects that are parts of it, out of the inventory."""
    world = entity.world
    match entity:
        case DistributedSwitchEntity() | PortgroupEntity():
            distributed_change.forget(entity)
        case HostEntity():
            _forget_host(entity)
        case ComputeEntity():
            _forget_compute(entity)
        case PoolEntity():
            _hand_over(entity)
            world.unregister(entity)
        case FolderEntity():
            world.unregister(entity)
        case _:
            for folder in entity.folders.values():
                world.unregister(folder)
            world.unregister(entity)
    above = world.find(entity.parent)
    if isinstance(above, FolderEntity):
        above.remove(entity)


def _forget_compute(compute: ComputeEntity) -> None:
    world = compute.world
    for host in compute.hosts():
        _forget_host(host)
    for pool in list(compute.pool.pools):
        forget(pool)
    for part in (world.get(f"datastoreBrowser-{compute.moid}"), compute.browser, compute.pool, compute):
        world.unregister(part)


def _forget_host(host: HostEntity) -> None:
    world, compute = host.world, host.compute_resource()
    compute.host_moids.remove(host.moid)
    for moid in host.state.datastores:
        store = world.get(moid)
        store.host_moids.remove(host.moid)
        store.touch("host", "summary")
    for made in (*host.managers.values(), world.get(f"datastoreBrowser-{host.moid}")):
        world.unregister(made)
    host.managers.clear()
    world.unregister(host)
    compute.touch("host", "datastore", "network")
    compute.load_changed()


def _hand_over(pool: PoolEntity) -> None:
    """What is in a pool that goes moves to the pool above (vSphere API, ResourcePool.Destroy_Task)."""
    above: PoolEntity = pool.world.get(pool.parent)
    above.pools.remove(pool)
    for child in pool.pools:
        child.parent = above.moid
        above.pools.append(child)
        child.touch("parent")
    for vm in list(pool.members.values()):
        vm.leave_pool()
        vm.state.pool = above.moid
        above.add(vm)
    above.touch("resourcePool")


def destroy_children(pool: PoolEntity, call: Call) -> None:
    """DestroyChildren: the pools below go, and their VMs come into this one."""
    while pool.pools:
        _gone(pool.pools[0], call)


def move_into(folder: FolderEntity, call: Call, members: list[Any]) -> Any:
    """MoveIntoFolder_Task: VMs, folders, clusters and datacenters come in.

    Raises NotSupported for what a folder of this kind does not hold, InvalidFolder for one that this folder is in, and
    DuplicateName (vSphere API, Folder.MoveIntoFolder_Task).
    """
    world = folder.world

    def found() -> list[Any]:
        entities = [world.get(member) for member in members]
        for entity in entities:
            kind = entity.kind if isinstance(entity, FolderEntity) else KIND_OF_CHILD.get(entity.wsdl_name, "root")
            if kind != folder.kind or (entity.wsdl_name in ("HostSystem", "ResourcePool")):
                raise faults.not_supported(f"The folder {folder.name} does not hold {entity.name}.")
            if entity is folder or entity in ancestors(folder):
                raise faults.invalid_folder(folder.ref, f"{entity.name} is moved into itself.")
            folder.refuse_duplicate(entity.name, entity)
        return entities

    def finish() -> None:
        for entity in found():
            before = entity.parent
            if isinstance(entity, VmEntity):
                entity.move_to_folder(folder)
            else:
                reparent(entity, folder)
            world.ledger.record(call, entity, before={"folder": before}, after={"folder": folder.moid})

    return world.tasks.start(call, "MoveIntoFolder_Task", folder, CHANGE_S, begin=found, finish=finish)


def move_hosts_into(cluster: ComputeEntity, call: Call, members: list[Any]) -> Any:
    """MoveInto_Task: hosts come into the cluster, with their VMs.

    They are of the same datacenter, and in maintenance mode if they are in another cluster (vSphere API,
    ClusterComputeResource.MoveInto_Task). Of a host that is in this one: DuplicateName, as vcsim answers.
    """
    world = cluster.world

    def found() -> list[HostEntity]:
        hosts: list[HostEntity] = [world.get(member) for member in members]
        for host in hosts:
            world.authority.require(call, host, "Host.Inventory.MoveHost")
            old = host.compute_resource()
            if old is cluster:
                raise faults.duplicate_name(host.name, host.ref)
            if _datacenter(old) is not _datacenter(cluster):
                raise faults.wrong_argument("host", f"The host {host.name} is in another datacenter.")
            if old.wsdl_name == "ClusterComputeResource" and not host.state.in_maintenance:
                raise faults.wrong_state(f"The host {host.name} is in a cluster and not in maintenance mode.")
        return hosts

    def finish() -> None:
        for host in found():
            before = host.compute_resource()
            rehome(host, cluster)
            world.ledger.record(call, host, before={"parent": before.moid}, after={"parent": cluster.moid})

    return world.tasks.start(call, "MoveInto_Task", cluster, CHANGE_S, begin=found, finish=finish)


def _datacenter(entity: ManagedEntity) -> Any:
    return next(each for each in ancestors(entity) if each.wsdl_name == "Datacenter")


def rehome(host: HostEntity, cluster: ComputeEntity) -> None:
    """Move a host into a cluster, and its VMs into the root pool there; a compute resource without a host goes."""
    old = host.compute_resource()
    old.host_moids.remove(host.moid)
    cluster.host_moids.append(host.moid)
    host.parent = host.state.parent = cluster.moid
    for vm in host.vms():
        if vm.state.pool is not None and host.world.get(vm.state.pool).owner() is old:
            vm.leave_pool()
            vm.state.pool = cluster.pool.moid
            cluster.pool.add(vm)
        vm.touch("environmentBrowser")
    host.touch("parent")
    for compute in (old, cluster):
        compute.touch("host", "summary", "datastore", "network")
        compute.load_changed()
    if old.wsdl_name == "ComputeResource":
        forget(old)


def reparent(entity: ManagedEntity, folder: FolderEntity) -> None:
    """Move a folder, a datacenter or a cluster into another folder."""
    old = entity.world.get(entity.parent)
    old.remove(entity)
    entity.parent = folder.moid
    folder.add(entity)
    entity.touch("parent")


def _holds_hosts(folder: FolderEntity) -> None:
    if folder.kind != "host":
        raise faults.not_supported("Hosts and clusters are made in folders of hosts.")


def _entered(folder: FolderEntity, call: Call, made: ManagedEntity) -> ManagedEntity:
    folder.add(made)
    folder.world.ledger.record(call, made, before={}, after={"name": made.name, "parent": folder.moid})
    return made
