"""Clusters and hosts without a cluster as clients see them, with their resource pools, vApps, browsers and checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method, prop
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.entities import ComputeEntity, PoolEntity
from gpuops.sim.inventory.managed_entity import ManagedEntity, new_moid
from gpuops.sim.operations import cluster_change, inventory_change, removal
from gpuops.sim.operations.vms import movement
from gpuops.sim.render import cluster_config, config_target
from gpuops.sim.state.drs import DrsState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.world import World


class HostDatastoreBrowser(ManagedObject):
    """The datastore browser of one entity."""

    wsdl_name = "HostDatastoreBrowser"

    property_table: ClassVar[Properties] = {
        "datastore": lambda self: (
            [self.entity] if self.entity.wsdl_name == "Datastore" else self.entity.read("datastore")
        )
    }

    def __init__(self, entity: ManagedEntity) -> None:
        super().__init__(entity.world, f"datastoreBrowser-{entity.moid}")
        self.entity = entity
        entity.world.register(self)


class EnvironmentBrowser(ManagedObject):
    """The environment browser of one compute resource; a method with a host answers for that host alone."""

    wsdl_name = "EnvironmentBrowser"
    world: World

    property_table: ClassVar[Properties] = {
        "datastoreBrowser": lambda self: self.world.get(f"datastoreBrowser-{self.owner.moid}")
    }

    method_table: ClassVar[Methods] = {
        "QueryConfigTarget": lambda self, call, host=None: config_target.config_target(self._hosts(host)),
        "QueryConfigOptionDescriptor": lambda self, call: config_target.descriptors(
            [host.ref for host in self.owner.hosts()]
        ),
    }

    def __init__(self, moid: str, owner: ComputeEntity) -> None:
        super().__init__(owner.world, moid)
        self.owner = owner

    def _hosts(self, host: Any) -> list[HostEntity]:
        if host is None:
            return self.owner.hosts()
        host_entity: HostEntity = self.world.get(host)
        if host_entity.compute_resource() is not self.owner:
            raise faults.wrong_argument("host")
        return [host_entity]

    @method
    def QueryTargetCapabilities(self, call: Call, host: Any = None) -> Any:
        hosts = self._hosts(host)
        return hosts[0].read("capability") if hosts else None

    @method
    def QueryConfigOption(self, call: Call, key: str | None = None, host: Any = None) -> Any:
        self._hosts(host)
        return config_target.config_option(key or config_target.NEWEST)

    @method
    def QueryConfigOptionEx(self, call: Call, spec: Any = None) -> Any:
        self._hosts(spec.host if spec else None)
        key = (spec.key if spec else None) or config_target.NEWEST
        return config_target.config_option(key, frozenset(spec.guestId) if spec else frozenset())


class VirtualMachineCompatibilityChecker(ManagedObject):
    """Trials of power-on and of placement; the task succeeds, what would fail is in its result."""

    wsdl_name = "VirtualMachineCompatibilityChecker"
    world: World

    method_table: ClassVar[Methods] = {
        "CheckPowerOn_Task": lambda self, call, vm, host=None, **_: movement.check_power_on(
            self.world.get(vm), call, self.world.get(host) if host else None
        ),
        "CheckCompatibility_Task": lambda self, call, vm, host=None, pool=None, **_: movement.check_compatibility(
            self.world.get(vm), call, host, pool
        ),
    }


class VirtualMachineProvisioningChecker(ManagedObject):
    """Trials of moves."""

    wsdl_name = "VirtualMachineProvisioningChecker"
    world: World

    method_table: ClassVar[Methods] = {
        "CheckMigrate_Task": lambda self, call, vm, host=None, pool=None, state=None, **_: movement.check_migrate(
            self.world.get(vm), call, host, pool, state
        ),
        "CheckRelocate_Task": lambda self, call, vm, spec, **_: movement.check_relocate(self.world.get(vm), call, spec),
        "QueryVMotionCompatibilityEx_Task": lambda self, call, vm, host: movement.query_vmotion(
            map(self.world.get, vm), call, list(map(self.world.get, host))
        ),
    }


MIB = 1 << 20


class ResourcePool(PoolEntity):
    """A resource pool on the wire."""

    wsdl_name = "ResourcePool"

    property_table: ClassVar[Properties] = {
        "owner": lambda self: self.owner(),
        "vm": lambda self: list(self.members.values()),
        "resourcePool": lambda self: self.pools,
    }

    method_table: ClassVar[Methods] = {
        "CreateResourcePool": lambda self, call, name, spec: inventory_change.create_pool(
            self, call, name, spec, new_pool
        ),
        "DestroyChildren": removal.destroy_children,
        "Destroy_Task": removal.destroy,
    }

    @prop("config")
    def _config(self) -> Any:
        # the system reserves all that there is for the root pool (vSphere API, ResourcePool)
        totals = (
            self.owner().totals()
            if isinstance(self.parent_object(), ComputeEntity)
            else {"totalCpu": 0, "totalMemory": 0}
        )
        return vim.ResourceConfigSpec(
            entity=self.ref,
            changeVersion="1",
            cpuAllocation=_allocation(totals["totalCpu"], 4000),
            memoryAllocation=_allocation(totals["totalMemory"] // MIB, 163840),
        )

    @prop("runtime")
    def _runtime(self) -> Any:
        """Return the RuntimeInfo: capacity of the compute resource, and what the VMs of this pool reserve and use."""
        totals = self.owner().totals()
        running = [vm.state for vm in self.all_members() if vm.state.power == "poweredOn"]
        reserving = running
        if "suspended-vm-memory" in self.world.deviations:  # assumption: suspended-vm-memory
            reserving = running + [vm.state for vm in self.all_members() if vm.state.power == "suspended"]
        reserved_bytes = sum(vm.reserved_mib for vm in reserving) * MIB
        used_bytes = sum(vm.reserved_mib or vm.guest_memory_mib for vm in running) * MIB
        reserved_mhz = sum(vm.cpu_reservation_mhz for vm in running)
        return vim.ResourcePool.RuntimeInfo(
            memory=_usage(totals["totalMemory"], reserved_bytes, used_bytes),
            cpu=_usage(totals["totalCpu"], reserved_mhz, sum(vm.cpu_usage_mhz for vm in running)),
            overallStatus="green",
        )

    @prop("summary")
    def _summary(self) -> Any:
        configured = sum(vm.state.memory_mib for vm in self.all_members())
        return vim.ResourcePool.Summary(
            name=self.name, config=self._config(), runtime=self._runtime(), configuredMemoryMB=configured
        )

    @method
    def UpdateConfig(self, call: Call, name: str | None = None, config: Any = None) -> None:
        if name is not None:
            before, stored_name = self.name, self.world.get(self.parent).checked_name(name, self)
            self.rename(stored_name)
            self.world.ledger.record(call, self, before={"name": before}, after={"name": stored_name})
        if config is not None:
            inventory_change.refuse_limits(config)


def new_pool(world: World, moid: str, name: str, parent: PoolEntity) -> ResourcePool:
    """A registered resource pool below another one."""
    pool = ResourcePool(world, moid, name, parent.moid, parent.owner_moid)
    world.register(pool)
    parent.pools.append(pool)
    parent.touch("resourcePool")
    return pool


def _allocation(reservation: int, shares: int) -> Any:
    return vim.ResourceAllocationInfo(
        reservation=reservation,
        expandableReservation=True,
        limit=-1,
        shares=vim.SharesInfo(shares=shares, level="normal"),
    )


def _usage(total: int, reserved: int, used: int) -> Any:
    return vim.ResourcePool.ResourceUsage(
        reservationUsed=reserved,
        reservationUsedForVm=reserved,
        unreservedForPool=max(0, total - reserved),
        unreservedForVm=max(0, total - reserved),
        overallUsage=used,
        maxUsage=total,
    )


class VirtualApp(ResourcePool):
    """A vApp within a pool. It shows where it is and what is in it; its start order is not modelled."""

    wsdl_name = "VirtualApp"

    property_table: ClassVar[Properties] = {"parentFolder": lambda self: self.world.get(self.folder)}

    def __init__(self, world: World, moid: str, name: str, pool: ResourcePool, folder: str) -> None:
        super().__init__(world, moid, name, pool.moid, pool.owner_moid)
        self.folder = folder
        pool.pools.append(self)

    def take_in(self, vm: VmEntity) -> None:
        """Make the VM a member."""
        vm.leave_pool()
        vm.state.pool = self.moid
        self.add(vm)
        vm.touch("resourcePool", "parentVApp")


class ComputeResource(ComputeEntity):
    """A host without a cluster, on the wire."""

    wsdl_name = "ComputeResource"

    property_table: ClassVar[Properties] = {
        "host": lambda self: self.hosts(),
        "resourcePool": lambda self: self.pool,
        "environmentBrowser": lambda self: self.browser,
        "datastore": lambda self: [
            self.world.get(moid) for moid in _distinct_moids(host.state.datastores for host in self.hosts())
        ],
        "network": lambda self: [
            self.world.get(moid) for moid in _distinct_moids(host.state.networks for host in self.hosts())
        ],
        "configurationEx": lambda self: vim.ComputeResource.ConfigInfo(vmSwapPlacement="vmDirectory"),
        "summary": lambda self: vim.ComputeResource.Summary(**self.totals()),
    }

    method_table: ClassVar[Methods] = {"Destroy_Task": removal.destroy}

    @prop("lifecycleManaged")
    @prop("configManagerEnabled")
    def _config_managed(self) -> bool:
        # only clusters that are managed by one image have configuration profiles
        return self.config_managed


def _distinct_moids(lists: Any) -> list[str]:
    return list(dict.fromkeys(moid for moids in lists for moid in moids))


class ClusterComputeResource(ComputeResource):
    """A cluster on the wire."""

    wsdl_name = "ClusterComputeResource"

    property_table: ClassVar[Properties] = {
        "configurationEx": lambda self: cluster_config.configuration_ex(self.drs),
        "configuration": lambda self: cluster_config.configuration(self.drs),
        "summary summaryEx": lambda self: cluster_config.summary(self.totals()),
    }

    method_table: ClassVar[Methods] = {
        "RecommendHostsForVm": lambda self, call, vm, **_: movement.recommended_hosts(self.world.get(vm)),
        "PlaceVm": lambda self, call, placementSpec: movement.place(self, placementSpec),
        "ReconfigureComputeResource_Task": lambda self, call, spec, modify: cluster_change.reconfigure(
            self, call, spec, modify=modify
        ),
        "GetResourceUsage": lambda self, call: cluster_config.resource_usage(
            self.totals(),
            [host.usage() for host in self.hosts()],
            [self.world.get(moid) for moid in _distinct_moids(host.state.datastores for host in self.hosts())],
        ),
        "AddHost_Task": lambda self, call, spec, asConnected, **_: inventory_change.add_host(
            self, call, spec, connected=asConnected
        ),
        "MoveInto_Task": lambda self, call, host: inventory_change.move_hosts_into(self, call, host),
    }

    @method
    def ReconfigureCluster_Task(self, call: Call, spec: Any, modify: bool) -> Any:
        # the older form, which ReconfigureComputeResource_Task took the place of in API 2.5
        return cluster_change.reconfigure(self, call, spec, modify=modify)


def new_cluster(
    world: World, name: str, folder: str, drs: DrsState | None = None, moid: str | None = None
) -> ClusterComputeResource:
    """A registered cluster without hosts, with its root resource pool and its browsers. Its folder takes it in."""
    moid = moid or new_moid(world, "domain-c")
    cluster = ClusterComputeResource(world, moid, name, folder, drs or DrsState(enabled=False))
    register_with_pool_and_browsers(cluster, new_moid(world, "resgroup"))
    return cluster


def new_compute_resource(world: World, name: str, folder: str, moid: str | None = None) -> ComputeResource:
    """Return a registered compute resource for a host without a cluster, with its root resource pool and browsers."""
    compute = ComputeResource(world, moid or new_moid(world, "domain-s"), name, folder)
    register_with_pool_and_browsers(compute, new_moid(world, "resgroup"))
    return compute


def register_with_pool_and_browsers(compute: ComputeResource, pool: str) -> None:
    """Register a compute resource with its root resource pool, of that moid, and its browsers."""
    world = compute.world
    compute.pool = ResourcePool(world, pool, "Resources", compute.moid, compute.moid)
    compute.browser = EnvironmentBrowser(f"envbrowser-{compute.moid.rpartition('-')[2]}", compute)
    for managed_object in (compute, compute.pool, compute.browser):
        world.register(managed_object)
    HostDatastoreBrowser(compute)
