"""ComputeResource: a host without a cluster, and what clusters share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import prop
from gpuops.sim.objects.managed_entity import ManagedEntity

if TYPE_CHECKING:
    from gpuops.sim.objects.environment_browser import EnvironmentBrowser
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.objects.resource_pool import ResourcePool
    from gpuops.sim.world import World


class ComputeResource(ManagedEntity):
    """Hosts behind one root resource pool; `pool` and `browser` are set when it is built."""

    wsdl_name = "ComputeResource"

    def __init__(self, world: World, moid: str, name: str, parent: str) -> None:
        super().__init__(world, moid, name, parent)
        self.host_moids: list[str] = []
        self.config_managed = False
        """Whether it keeps the configuration of its hosts (vSphere Configuration Profiles)."""
        self.pool: ResourcePool
        self.browser: EnvironmentBrowser

    def hosts(self) -> list[HostSystem]:
        return [self.world.get(moid) for moid in self.host_moids]

    def places(self, vm: str) -> bool:
        """Whether it chooses the host of a VM that is powered on."""
        return False

    def moves(self, vm: str) -> bool:
        """Whether it moves a running VM to another host by itself."""
        return False

    @property
    def evacuates_vgpus(self) -> bool:
        """Whether VMs with a vGPU leave a host that enters maintenance mode."""
        return False

    def rules_allow(self, vm: str, host: str) -> bool:
        """Whether no binding rule keeps a VM off a host."""
        return True

    def forget(self, vm: str) -> None:
        """Drop what is configured for a VM that is gone."""

    def load_changed(self) -> None:
        """Tell everyone who shows what its hosts can still take."""
        self.touch("summary")
        self.pool.touch("runtime", "summary")

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

    def totals(self) -> dict[str, Any]:
        """The numbers of ComputeResourceSummary."""
        hosts = self.hosts()
        usable = [host.state for host in hosts if host.state.usable]
        return {
            "totalCpu": sum(host.state.model.capacity_mhz for host in hosts),
            "totalMemory": sum(host.state.model.memory_mib << 20 for host in hosts),
            "numCpuCores": sum(host.state.model.cores for host in hosts),
            "numCpuThreads": sum(host.state.model.threads for host in hosts),
            "effectiveCpu": sum(state.model.capacity_mhz for state in usable),
            "effectiveMemory": sum(state.model.memory_mib for state in usable),
            "numHosts": len(hosts),
            "numEffectiveHosts": len(usable),
            "overallStatus": "green",
        }


def _union(lists: Any) -> list[str]:
    return list(dict.fromkeys(moid for moids in lists for moid in moids))
