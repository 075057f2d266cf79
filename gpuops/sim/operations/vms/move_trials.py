"""Trials of power-ons and moves, which report for each host why it would refuse the VM, and change nothing.

vSphere API, VirtualMachineProvisioningChecker and ClusterComputeResource.PlaceVm. No document describes, and from
memory is: CheckMigrate_Task and CheckRelocate_Task check free GPU slots too; QueryVMotionCompatibilityEx_Task does not
look at what runs on the host; PlaceVm prefers the host with the fewest VMs. gpuops calls none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.inventory import faults
from gpuops.sim.operations.host_admission import admission, load_of, refuse_against_rules
from gpuops.sim.operations.vms.movement import refuse_move, require_migratable, target_of
from gpuops.sim.render.defaults import default
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import ComputeEntity, DatastoreEntity, HostEntity, VmEntity

TRIAL_S: Final = 1.0
BEST_RATING: Final = 5

Judge = Callable[["VmEntity", "HostEntity"], None]
"""Raises the fault with which the host refuses the VM."""


def check_power_on(vm: VmEntity, call: Call, host: HostEntity | None) -> Any:
    """CheckPowerOn_Task: a result for the host asked for, or for each host of the VM's cluster."""
    hosts = [host] if host is not None else vm.host().compute_resource().hosts()
    return _report(call, [(vm, candidate) for candidate in hosts], judge_power_on)


def judge_power_on(vm: VmEntity, host: HostEntity) -> None:
    """Raises the fault in which a power-on there would end, now."""
    if vm.state.power is Power.ON:
        raise faults.wrong_power_state(Power.ON, Power.OFF)
    refuse_against_rules(vm, host)
    admission(vm, host)


def recommended_hosts(vm: VmEntity) -> list[Any]:
    """RecommendHostsForVm: the hosts that would take it, those with the fewest running VMs rated best."""
    hosts = vm.host().compute_resource().hosts()
    takers = sorted((host for host in hosts if _refusal(vm, host, judge_power_on) is None), key=load_of)
    return [
        vim.cluster.HostRecommendation(host=host.ref, rating=max(1, BEST_RATING - place))
        for place, host in enumerate(takers)
    ]


def check_migrate(vm: VmEntity, call: Call, host: Any, pool: Any, state: Any) -> Any:
    """CheckMigrate_Task: a result for the host, or for each host of the resource pool's cluster or of the VM's."""
    if state is not None and str(state) != vm.state.power.value:
        raise faults.wrong_power_state(vm.state.power, Power(str(state)))
    target, _ = target_of(vm, host, pool)
    hosts = [target] if host is not None else target.compute_resource().hosts()
    return _report(call, [(vm, candidate) for candidate in hosts], judge_move)


def check_relocate(vm: VmEntity, call: Call, spec: Any) -> Any:
    """CheckRelocate_Task: a result for the host that RelocateVM_Task would move the VM to."""
    target, _ = target_of(vm, spec.host, spec.pool)
    store = vm.world.get(spec.datastore) if spec.datastore else None
    return _report(call, [(vm, target)], lambda vm, host: judge_move(vm, host, store))


def check_compatibility(vm: VmEntity, call: Call, host: Any, pool: Any) -> Any:
    """CheckCompatibility_Task: whether the hosts reach the VM's files; whether it can run there is no part of it."""
    target, _ = target_of(vm, host, pool)
    hosts = [target] if host is not None else target.compute_resource().hosts()
    return _report(call, [(vm, candidate) for candidate in hosts], refuse_move)


def query_vmotion(vms: Iterable[VmEntity], call: Call, hosts: Iterable[HostEntity]) -> Any:
    """QueryVMotionCompatibilityEx_Task: a result for each VM and host, whatever their state.

    Raises InvalidArgument without a VM or without a host.
    """
    pairs = [(vm, host) for vm in vms for host in hosts]
    if not pairs:
        raise faults.wrong_argument("vm")
    return _report(call, pairs, require_migratable)


def judge_move(vm: VmEntity, host: HostEntity, store: DatastoreEntity | None = None) -> None:
    """Raises the fault in which a move there would end, now."""
    refuse_move(vm, host, store)
    if vm.state.power is Power.ON and host is not vm.host():
        admission(vm, host)


def place(cluster: ComputeEntity, spec: Any) -> Any:
    """PlaceVm for an existing VM: recommend each host that accepts it, the host with the fewest VMs first.

    If no host accepts it, `drsFault` holds the faults of all hosts.
    """
    if spec.vm is None or spec.placementType not in (None, "relocate", "reconfigure"):
        raise faults.not_supported("The simulated vCenter places only virtual machines that exist.")
    vm: VmEntity = cluster.world.get(spec.vm)
    hosts = [cluster.world.get(host) for host in spec.hosts] or cluster.hosts()
    refusals = {host.moid: _refusal(vm, host, judge_move) for host in hosts}
    takers = sorted((host for host in hosts if refusals[host.moid] is None), key=load_of)
    if not takers:
        vm_faults = vim.cluster.DrsFaults.FaultsByVm(vm=vm.ref, fault=list(refusals.values()))
        return vim.cluster.PlacementResult(drsFault=vim.cluster.DrsFaults(reason="placement", faultsByVm=[vm_faults]))
    return vim.cluster.PlacementResult(
        recommendations=[_recommendation(cluster, vm, host, number) for number, host in enumerate(takers)]
    )


def _recommendation(cluster: ComputeEntity, vm: VmEntity, host: HostEntity, number: int) -> Any:
    action = vim.cluster.PlacementAction(
        type="PlacementV1",
        target=vm.ref,
        vm=vm.ref,
        targetHost=host.ref,
        relocateSpec=vim.vm.RelocateSpec(host=host.ref),
    )
    return default(
        "ClusterRecommendation",
        key=str(number),
        time=cluster.world.clock.now(),
        rating=max(1, BEST_RATING - number),
        action=[action],
        target=host.ref,
    )


def _report(call: Call, pairs: list[tuple[VmEntity, HostEntity]], judge: Judge) -> Any:
    """Start the task whose result is a check.Result of each pair."""
    vm = pairs[0][0]

    def finish() -> Any:
        results = VmomiSupport.GetVmodlType("vim.vm.check.Result[]")
        return results([_result(*pair, judge) for pair in pairs])

    return vm.world.tasks.start(call, call.method, vm, TRIAL_S, finish=finish, exclusive=False)


def _result(vm: VmEntity, host: HostEntity, judge: Judge) -> Any:
    refusal = _refusal(vm, host, judge)
    return vim.vm.check.Result(vm=vm.ref, host=host.ref, error=[] if refusal is None else [refusal])


def _refusal(vm: VmEntity, host: HostEntity, judge: Judge) -> Any:
    try:
        judge(vm, host)
    except vmodl.MethodFault as refusal:
        return refusal
    return None
