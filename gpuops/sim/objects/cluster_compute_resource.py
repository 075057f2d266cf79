"""ClusterComputeResource: hosts under DRS and HA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.drs import Behavior, DrsState
from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.compute_resource import ComputeResource
from gpuops.sim.operations import cluster_change, trial
from gpuops.sim.render import cluster

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World


class ClusterComputeResource(ComputeResource):
    """A cluster; `drs` is what it does by itself."""

    wsdl_name = "ClusterComputeResource"

    def __init__(self, world: World, moid: str, name: str, parent: str, drs: DrsState) -> None:
        super().__init__(world, moid, name, parent)
        self.drs = drs

    def places(self, vm: str) -> bool:
        return self.drs.behavior_for(vm) in (Behavior.PARTIAL, Behavior.FULL)

    def moves(self, vm: str) -> bool:
        return self.drs.behavior_for(vm) is Behavior.FULL

    @property
    def evacuates_vgpus(self) -> bool:
        return self.drs.options.get("VgpuMMAutomationTimeoutSecs") == "-1"

    def rules_allow(self, vm: str, host: str) -> bool:
        return self.drs.allows(vm, host)

    def forget(self, vm: str) -> None:
        self.drs.forget(vm)
        self.touch("configurationEx", "configuration")

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
