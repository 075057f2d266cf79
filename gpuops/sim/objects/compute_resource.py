"""ComputeResource: a host without a cluster, and what clusters share with it."""

from __future__ import annotations

from typing import Any

from gpuops.sim.entities import ComputeEntity
from gpuops.sim.managed_object import prop


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


def _union(lists: Any) -> list[str]:
    return list(dict.fromkeys(moid for moids in lists for moid in moids))
