"""Makes and moves datacenters, clusters, hosts and resource pools, and disconnects and reconnects hosts.

The functions that make an object are parameters, because `objects`, which defines the types, imports this module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import ancestors, datacenter_of
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.entities import ComputeEntity, FolderEntity, HostEntity, PoolEntity, VmEntity
from gpuops.sim.inventory.managed_entity import enter, leave, new_moid
from gpuops.sim.operations import cluster_change
from gpuops.sim.operations.distributed_switches import with_own_ports
from gpuops.sim.operations.removal import forget
from gpuops.sim.state.drs import DrsState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.managed_entity import ManagedEntity
    from gpuops.sim.state.vm_state import VmState
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
    """CreateDatacenter: return the new datacenter with its four folders. Raises NotSupported below other folders."""
    if folder.kind != "root":
        raise faults.not_supported("Datacenters can only be made in the root folder or in a folder for datacenters.")
    datacenter = make(folder.world, folder.checked_name(name), folder.moid)
    return _enter_new_entity(folder, call, datacenter)


def create_cluster(folder: FolderEntity, call: Call, name: str, spec: Any, make: MakeCluster) -> ComputeEntity:
    """CreateClusterEx: return the new cluster, which has no hosts."""
    _require_host_folder(folder)
    cluster = make(folder.world, folder.checked_name(name), folder.moid, cluster_change.settings_of(spec))
    _enter_new_entity(folder, call, cluster)
    return cluster


def create_pool(parent: PoolEntity, call: Call, name: str, spec: Any, make: MakePool) -> PoolEntity:
    """CreateResourcePool: return the new pool."""
    refuse_limits(spec)
    name = parent.checked_name(name)
    pool = make(parent.world, new_moid(parent.world, "resgroup"), name, parent)
    parent.world.ledger.record(call, pool, before={}, after={"name": name, "parent": parent.moid})
    return pool


def refuse_limits(spec: Any) -> None:
    """Raises NotSupported for a ResourceConfigSpec with a limit, a reservation or custom shares.

    Raises InvalidArgument for a negative reservation (vSphere API, ResourcePool.UpdateConfig).
    """
    for allocation in (spec.cpuAllocation, spec.memoryAllocation):
        if (allocation.reservation or 0) < 0:
            raise faults.wrong_argument("spec.reservation")
        if (
            allocation.reservation
            or allocation.limit not in (None, -1)  # -1 = unlimited
            or (allocation.shares and allocation.shares.level == "custom")
        ):
            raise faults.not_supported(
                "The simulated vCenter supports no reservations, limits or custom shares of resource pools."
            )


def add_standalone_host(folder: FolderEntity, call: Call, spec: Any, *, connected: bool, make: MakeCompute) -> Any:
    """Return AddStandaloneHost_Task, whose result is the ComputeResource of the new host."""
    _require_host_folder(folder)

    def finish() -> ComputeEntity:
        _check_host(folder.world, spec)
        compute = make(folder.world, folder.checked_name(spec.hostName), folder.moid)
        _enter_new_entity(folder, call, compute)
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
    """Check a ConnectSpec.

    Raises InvalidArgument without a host name, InvalidLogin without an account, AlreadyConnected for a host that this
    vCenter manages.
    """
    if not spec.hostName:
        raise faults.wrong_argument("spec.hostName")
    if not spec.userName or not spec.password:
        raise vim.fault.InvalidLogin(msg="Cannot complete login due to an incorrect user name or password.")
    managed_host = next((host for host in world.by_type("HostSystem") if host.name == spec.hostName), None)
    if managed_host is not None:
        raise vim.fault.AlreadyConnected(
            msg=f"The host {managed_host.name} is already managed by this vCenter.", name=managed_host.name
        )


def _add_host(compute: ComputeEntity, call: Call, spec: Any, *, connected: bool) -> HostEntity:
    world = compute.world
    if world.new_host is None:
        raise faults.not_supported("The simulated vCenter can only add hosts if it was built from a scenario.")
    host: HostEntity = world.new_host(compute, spec.hostName)
    host.state.connection = "connected" if connected else "disconnected"
    compute.touch("host", "summary", "datastore", "network")
    compute.load_changed()
    world.ledger.record(call, host, before={}, after={"name": host.name, "parent": compute.moid})
    host.post(call, "HostAddedEvent")
    return host


def add_again(host: HostEntity, call: Call, folder_of: Callable[[VmEntity], FolderEntity]) -> HostEntity:
    """Remove a host with its VMs from the inventory and add it to its cluster again; return the new host.

    `folder_of` returns the folder in which a VM is registered again. The host and its VMs get new ids. What only
    vCenter stores about them is lost: custom attributes, tags, permissions, DRS settings. The VMs keep running, and
    they keep their instance uuids, snapshots and times.
    """
    world, compute, browser = host.world, host.compute_resource(), host.world.get(f"datastoreBrowser-{host.moid}")
    vms = [(vm, folder_of(vm)) for vm in host.vms()]
    new_host = type(host)(world, new_moid(world, "host"), copy.copy(host.state))
    new_host.state.vms, new_host.state.connection = {}, "connected"
    new_host.lingering, new_host.boot, new_host.undriven = host.lingering, host.boot, host.undriven
    world.register(new_host)
    type(browser)(new_host)  # the new host's datastore browser registers itself
    compute.host_moids.append(new_host.moid)
    for store in new_host.datastores():
        store.host_moids.append(new_host.moid)
    world.ledger.record(call, new_host, before={"moid": host.moid}, after={"moid": new_host.moid})
    for vm, folder in vms:
        _enter_again(vm, call, new_host, folder)
    forget(host)
    compute.forget(host.moid)
    compute.touch("host", "summary", "datastore", "network")
    compute.load_changed()
    new_host.post(call, "HostAddedEvent")
    return new_host


def _enter_again(vm: VmEntity, call: Call, host: HostEntity, folder: FolderEntity) -> VmEntity:
    """Register a VM again in any power state, after its host was removed and added again as `host`.

    Returns the VM under its new id, in `folder` and in the root resource pool. A running VM kept running.
    """
    world, store, state = vm.world, vm.datastore(), copy.copy(vm.state)
    snapshots = [world.get(snapshot_state.moid) for snapshot_state in state.snapshots]
    leave(vm)
    store.use(state.suspend_file_mib)  # `leave` freed the space of the suspend file, but the file is still there
    state.host, state.folder, state.attributes = host.moid, folder.moid, {}
    state.pool = None if state.is_template else host.compute_resource().pool.moid
    state.set_network_cards(with_own_ports(world, state.network_cards))
    _renumber_snapshots(world, state)
    moid = new_moid(world, "vm")
    state.seats = tuple(replace(seat, vm=moid) for seat in state.seats)
    new_vm = type(vm)(world, moid, state)
    new_vm.ignores_shutdown = vm.ignores_shutdown
    new_vm.connection = None if store.accessible else "inaccessible"
    enter(new_vm)
    for snapshot_state, snapshot in zip(state.snapshots, snapshots, strict=True):
        world.register(type(snapshot)(world, snapshot_state.moid, new_vm, snapshot.state_at_snapshot))
    world.ledger.record(call, new_vm, before={"moid": vm.moid}, after={"moid": moid})
    new_vm.post(call, "VmRegisteredEvent")
    return new_vm


def _renumber_snapshots(world: World, state: VmState) -> None:
    """Give the snapshots of a VM new ids."""
    new_moids = {snapshot_state.moid: new_moid(world, "snapshot") for snapshot_state in state.snapshots}
    state.snapshots = tuple(
        replace(
            snapshot_state,
            moid=new_moids[snapshot_state.moid],
            parent=new_moids[snapshot_state.parent] if snapshot_state.parent else None,
        )
        for snapshot_state in state.snapshots
    )
    state.current_snapshot = new_moids[state.current_snapshot] if state.current_snapshot else None


def disconnect(host: HostEntity, call: Call) -> Any:
    """DisconnectHost_Task: vCenter no longer talks to the host; its VMs keep running."""

    def begin() -> None:
        if host.state.connection == "disconnected":
            raise faults.wrong_state(f"The host {host.name} is disconnected.")

    return _change_connection(host, call, "DisconnectHost_Task", "disconnected", begin)


def reconnect(host: HostEntity, call: Call) -> Any:
    """ReconnectHost_Task. Raises InvalidState unless the host is disconnected, as the API declares it."""

    def begin() -> None:
        if host.state.connection != "disconnected":
            raise faults.wrong_state(f"The host {host.name} is not disconnected.")

    return _change_connection(host, call, "ReconnectHost_Task", "connected", begin)


def _change_connection(host: HostEntity, call: Call, task: str, connection: str, begin: Callable[[], None]) -> Any:
    def finish() -> None:
        before, host.state.connection = host.state.connection, connection
        host.world.ledger.record(call, host, before={"connection": before}, after={"connection": connection})
        host.runtime_changed()

    return host.world.tasks.start(call, task, host, CHANGE_S, begin=begin, finish=finish, exclusive=True)


def move_into(folder: FolderEntity, call: Call, members: list[Any]) -> Any:
    """MoveIntoFolder_Task: move VMs, folders, clusters and datacenters into this folder.

    Raises NotSupported for an object that this kind of folder cannot hold, InvalidFolder for this folder or one above
    it, and DuplicateName for a name that is in use here (vSphere API, Folder.MoveIntoFolder_Task).
    """
    world = folder.world

    def check_members() -> list[Any]:
        entities = [world.get(member) for member in members]
        for entity in entities:
            # types without an entry: a datacenter ("root"), and hosts and pools, which no folder holds directly
            kind = entity.kind if isinstance(entity, FolderEntity) else KIND_OF_CHILD.get(entity.wsdl_name, "root")
            if kind != folder.kind or (entity.wsdl_name in ("HostSystem", "ResourcePool")):
                raise faults.not_supported(f"The folder {folder.name} cannot hold {entity.name}.")
            if entity is folder or entity in ancestors(folder):
                raise faults.invalid_folder(folder.ref, f"{entity.name} cannot be moved into itself.")
            folder.refuse_duplicate(entity.name, entity)
        return entities

    def finish() -> None:
        for entity in check_members():  # checked again: other calls may have changed the folder while the task ran
            before = entity.parent
            if isinstance(entity, VmEntity):
                entity.move_to_folder(folder)
            else:
                reparent(entity, folder)
            world.ledger.record(call, entity, before={"folder": before}, after={"folder": folder.moid})

    return world.tasks.start(call, "MoveIntoFolder_Task", folder, CHANGE_S, begin=check_members, finish=finish)


def move_hosts_into(cluster: ComputeEntity, call: Call, members: list[Any]) -> Any:
    """MoveInto_Task: move hosts with their VMs into the cluster.

    Raises InvalidArgument for a host of another datacenter, InvalidState for a host that is in another cluster and not
    in maintenance mode (vSphere API, ClusterComputeResource.MoveInto_Task), and DuplicateName for a host that is
    already in this cluster (as in vcsim).
    """
    world = cluster.world

    def check_members() -> list[HostEntity]:
        hosts: list[HostEntity] = [world.get(member) for member in members]
        for host in hosts:
            world.authority.require(call, host, "Host.Inventory.MoveHost")
            old_compute = host.compute_resource()
            if old_compute is cluster:
                raise faults.duplicate_name(host.name, host.ref)
            if datacenter_of(old_compute) is not datacenter_of(cluster):
                raise faults.wrong_argument("host", f"The host {host.name} is in another datacenter.")
            if old_compute.wsdl_name == "ClusterComputeResource" and not host.state.in_maintenance:
                raise faults.wrong_state(f"The host {host.name} is in a cluster and not in maintenance mode.")
        return hosts

    def finish() -> None:
        for host in check_members():  # checked again: a host may have left maintenance mode while the task ran
            before = host.compute_resource()
            rehome(host, cluster)
            world.ledger.record(call, host, before={"parent": before.moid}, after={"parent": cluster.moid})

    return world.tasks.start(call, "MoveInto_Task", cluster, CHANGE_S, begin=check_members, finish=finish)


def rehome(host: HostEntity, cluster: ComputeEntity) -> None:
    """Move a host with its VMs into a cluster and its root pool; remove a standalone host's old compute resource."""
    old_compute = host.compute_resource()
    old_compute.host_moids.remove(host.moid)
    cluster.host_moids.append(host.moid)
    host.parent = host.state.parent = cluster.moid
    for vm in host.vms():
        if vm.state.pool is not None and host.world.get(vm.state.pool).owner() is old_compute:
            vm.leave_pool()
            vm.state.pool = cluster.pool.moid
            cluster.pool.add(vm)
        vm.touch("environmentBrowser")
    host.touch("parent")
    for compute in (old_compute, cluster):
        compute.touch("host", "summary", "datastore", "network")
        compute.load_changed()
    if old_compute.wsdl_name == "ComputeResource":  # it existed only for this standalone host
        forget(old_compute)


def reparent(entity: ManagedEntity, folder: FolderEntity) -> None:
    """Move a folder, a datacenter or a cluster into another folder."""
    old_folder = entity.world.get(entity.parent)
    old_folder.remove(entity)
    entity.parent = folder.moid
    folder.add(entity)
    entity.touch("parent")


def _require_host_folder(folder: FolderEntity) -> None:
    if folder.kind != "host":
        raise faults.not_supported("Hosts and clusters can only be made in a folder for hosts.")


def _enter_new_entity(folder: FolderEntity, call: Call, new_entity: ManagedEntity) -> ManagedEntity:
    folder.add(new_entity)
    folder.world.ledger.record(call, new_entity, before={}, after={"name": new_entity.name, "parent": folder.moid})
    return new_entity
