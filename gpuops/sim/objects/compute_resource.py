"""ComputeResource, a host without a cluster, and ClusterComputeResource, hosts under DRS and HA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim

from gpuops.sim.core.managed_object import Methods, Properties, method, prop
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

    property_table: ClassVar[Properties] = {
        "host": lambda self: self.hosts(),
        "resourcePool": lambda self: self.pool,
        "environmentBrowser": lambda self: self.browser,
        "datastore": lambda self: [
            self.world.get(moid) for moid in _union(host.state.datastores for host in self.hosts())
        ],
        "network": lambda self: [self.world.get(moid) for moid in _union(host.state.networks for host in self.hosts())],
        "configurationEx": lambda self: vim.ComputeResource.ConfigInfo(vmSwapPlacement="vmDirectory"),
        "summary": lambda self: vim.ComputeResource.Summary(**self.totals()),
    }

    method_table: ClassVar[Methods] = {"Destroy_Task": removal.destroy}

    @prop("lifecycleManaged")
    @prop("configManagerEnabled")
    def _config_managed(self) -> bool:
        # configuration profiles are had only by clusters that are managed by one image
        return self.config_managed


def _union(lists: Any) -> list[str]:
    return list(dict.fromkeys(moid for moids in lists for moid in moids))


class ClusterComputeResource(ComputeResource):
    """A cluster on the wire."""

    wsdl_name = "ClusterComputeResource"

    property_table: ClassVar[Properties] = {
        "configurationEx": lambda self: cluster.configuration_ex(self.drs),
        "configuration": lambda self: cluster.configuration(self.drs),
        "summary summaryEx": lambda self: cluster.summary(self.totals()),
    }

    method_table: ClassVar[Methods] = {
        "RecommendHostsForVm": lambda self, call, vm, **_: initial_placement.recommended_hosts(self.world.get(vm)),
        "PlaceVm": lambda self, call, placementSpec: move_trials.place(self, placementSpec),
        "ReconfigureComputeResource_Task": lambda self, call, spec, modify: cluster_change.reconfigure(
            self, call, spec, modify=modify
        ),
        "GetResourceUsage": lambda self, call: cluster.resource_usage(
            self.totals(),
            [host.usage() for host in self.hosts()],
            [self.world.get(moid) for moid in _union(host.state.datastores for host in self.hosts())],
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
    for managed_object in (compute, compute.pool, compute.browser):
        world.register(managed_object)
    HostDatastoreBrowser(compute)
