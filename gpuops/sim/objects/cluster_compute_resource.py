"""ClusterComputeResource: hosts under DRS and HA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.compute_resource import ComputeResource
from gpuops.sim.operations import cluster_change, trial
from gpuops.sim.render import cluster

if TYPE_CHECKING:
    from gpuops.sim.call import Call


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
        return trial.recommended_hosts(self.world.get(vm))

    @method
    def ReconfigureComputeResource_Task(self, call: Call, spec: Any, modify: bool) -> Any:
        return cluster_change.reconfigure(self, call, spec, modify=modify)
