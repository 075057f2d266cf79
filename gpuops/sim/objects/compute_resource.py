"""ComputeResource, a host without a cluster, and ClusterComputeResource, hosts under DRS and HA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.core.managed_object import method, prop
from gpuops.sim.inventory.entities import ComputeEntity
from gpuops.sim.inventory.registration import new_moid
from gpuops.sim.objects.environment import EnvironmentBrowser, HostDatastoreBrowser
from gpuops.sim.objects.resource_pool import ResourcePool
from gpuops.sim.operations import cluster_change, inventory_change, removal
from gpuops.sim.operations.admission import initial_placement
from gpuops.sim.operations.vms import move_trials
from gpuops.sim.render import cluster
from gpuops.sim.state.drs import DrsState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World


class ComputeResource(ComputeEntity):
    """A host without a cluster, on the wire."""

    wsdl_name = "ComputeResource"

    @prop("host")
    def _hosts(self) -> Any:
        return self.hosts()

    @prop("resourcePool")
    def _resource_pool(self) -> Any:
        return self.pool

    @prop("environmentBrowser")
    def _environment_browser(self) -> Any:
        return self.browser

    @prop("datastore")
    def _datastores(self) -> Any:
        return [self.world.get(moid) for moid in _union(host.state.datastores for host in self.hosts())]

    @prop("network")
    def _networks(self) -> Any:
        return [self.world.get(moid) for moid in _union(host.state.networks for host in self.hosts())]

    @prop("configurationEx")
    def _configuration_ex(self) -> Any:
        from pyVmomi import vim

        return vim.ComputeResource.ConfigInfo(vmSwapPlacement="vmDirectory")

    @prop("lifecycleManaged")
    @prop("configManagerEnabled")
    def _config_managed(self) -> bool:
        # configuration profiles are had only by clusters that are managed by one image
        return self.config_managed

    @prop("summary")
    def _summary(self) -> Any:
        from pyVmomi import vim

        return vim.ComputeResource.Summary(**self.totals())

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return removal.destroy(self, call)


def _union(lists: Any) -> list[str]:
    return list(dict.fromkeys(moid for moids in lists for moid in moids))


class ClusterComputeResource(ComputeResource):
    """A cluster on the wire."""

    wsdl_name = "ClusterComputeResource"

    @prop("configurationEx")
    def _configuration_ex(self) -> Any:
        return cluster.configuration_ex(self.drs)

    @prop("configuration")
    def _configuration(self) -> Any:
        return cluster.configuration(self.drs)

    @prop("summary")
    @prop("summaryEx")
    def _summary(self) -> Any:
        return cluster.summary(self.totals())

    @method
    def RecommendHostsForVm(self, call: Call, vm: Any, pool: Any = None) -> Any:
        return initial_placement.recommended_hosts(self.world.get(vm))

    @method
    def PlaceVm(self, call: Call, placementSpec: Any) -> Any:
        return move_trials.place(self, placementSpec)

    @method
    def ReconfigureComputeResource_Task(self, call: Call, spec: Any, modify: bool) -> Any:
        return cluster_change.reconfigure(self, call, spec, modify=modify)

    @method
    def ReconfigureCluster_Task(self, call: Call, spec: Any, modify: bool) -> Any:
        # the older form, which ReconfigureComputeResource_Task took the place of in API 2.5
        return cluster_change.reconfigure(self, call, spec, modify=modify)

    @method
    def GetResourceUsage(self, call: Call) -> Any:
        return cluster.resource_usage(
            self.totals(),
            [host.usage() for host in self.hosts()],
            [self.world.get(moid) for moid in _union(host.state.datastores for host in self.hosts())],
        )

    @method
    def AddHost_Task(
        self, call: Call, spec: Any, asConnected: bool, resourcePool: Any = None, license: str | None = None
    ) -> Any:
        return inventory_change.add_host(self, call, spec, connected=asConnected)

    @method
    def MoveInto_Task(self, call: Call, host: Any) -> Any:
        return inventory_change.move_hosts_into(self, call, host)


def new_cluster(
    world: World, name: str, folder: str, drs: DrsState | None = None, moid: str | None = None
) -> ClusterComputeResource:
    """A registered cluster without hosts, with its root resource pool and its browsers. Its folder takes it in."""
    moid = moid or new_moid(world, "domain-c")
    cluster = ClusterComputeResource(world, moid, name, folder, drs or DrsState(enabled=False))
    furnish(cluster, new_moid(world, "resgroup"))
    return cluster


def new_compute_resource(world: World, name: str, folder: str, moid: str | None = None) -> ComputeResource:
    """The same for a host without a cluster."""
    compute = ComputeResource(world, moid or new_moid(world, "domain-s"), name, folder)
    furnish(compute, new_moid(world, "resgroup"))
    return compute


def furnish(compute: ComputeResource, pool: str) -> None:
    """Register a compute resource with its root resource pool, of that moid, and its browsers."""
    world = compute.world
    compute.pool = ResourcePool(world, pool, "Resources", compute.moid, compute.moid)
    compute.browser = EnvironmentBrowser(f"envbrowser-{compute.moid.rpartition('-')[2]}", compute)
    for obj in (compute, compute.pool, compute.browser):
        world.register(obj)
    HostDatastoreBrowser(compute)
