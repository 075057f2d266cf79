"""Trials: what a power-on would be answered, for one host or for each of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.operations import faults
from gpuops.sim.operations.host_admission import admission
from gpuops.sim.operations.initial_placement import refuse_against_rules
from gpuops.sim.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.entities import HostEntity, VmEntity

TRIAL_S: Final = 1.0
BEST_RATING: Final = 5


def check_power_on(vm: VmEntity, call: Call, host: HostEntity | None) -> Any:
    """CheckPowerOn_Task: a result for the host asked for, or for each host of the VM's cluster."""
    hosts = [host] if host is not None else vm.host().compute_resource().hosts()

    def finish() -> Any:
        results = VmomiSupport.GetVmodlType("vim.vm.check.Result[]")
        return results([_result(vm, each) for each in hosts])

    return vm.world.tasks.start(call, "CheckPowerOn_Task", vm, TRIAL_S, finish=finish, exclusive=False)


def recommended_hosts(vm: VmEntity) -> list[Any]:
    """RecommendHostsForVm: the hosts that would take it, those with the fewest running VMs rated best."""
    takers = [host for host in vm.host().compute_resource().hosts() if _refusal(vm, host) is None]
    ranked = sorted(takers, key=lambda host: (len(host.running_vms()), host.name))
    return [
        vim.cluster.HostRecommendation(host=host.ref, rating=max(1, BEST_RATING - place))
        for place, host in enumerate(ranked)
    ]


def _result(vm: VmEntity, host: HostEntity) -> Any:
    refusal = _refusal(vm, host)
    return vim.vm.check.Result(vm=vm.ref, host=host.ref, error=[refusal] if refusal else [])


def _refusal(vm: VmEntity, host: HostEntity) -> Any:
    try:
        if vm.state.power is Power.ON:
            raise faults.wrong_power_state(Power.ON, Power.OFF)
        refuse_against_rules(vm, host)
        admission(vm, host)
    except vmodl.MethodFault as refusal:
        return refusal
    return None
