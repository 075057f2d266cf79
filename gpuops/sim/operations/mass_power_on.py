"""PowerOnMultiVM_Task: each VM gets a task of its own; the result names them, and the VMs that were not tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.operations import faults
from gpuops.sim.operations.power import power_on
from gpuops.sim.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.objects.managed_entity import ManagedEntity

DECIDES_S: Final = 1.0


def power_on_all(datacenter: ManagedEntity, call: Call, references: list[Any]) -> Any:
    """The task whose result is a ClusterPowerOnVmResult; its sub-tasks are waited for one by one."""

    def finish() -> Any:
        result = vim.cluster.PowerOnVmResult()
        for reference in references:
            try:
                vm = datacenter.world.get(reference)
                if vm.state.power is Power.ON:
                    raise faults.wrong_power_state(Power.ON, Power.OFF)
                refused = datacenter.world.injector.refusal("PowerOnVM_Task", vm)
                if refused is not None:
                    raise refused
                task = power_on(vm, call, None)
            except vmodl.MethodFault as fault:
                result.notAttempted.append(vim.cluster.NotAttemptedVmInfo(vm=reference, fault=fault))
            else:
                result.attempted.append(vim.cluster.AttemptedVmInfo(vm=reference, task=task.ref))
        return result

    return datacenter.world.tasks.start(call, "PowerOnMultiVM_Task", datacenter, DECIDES_S, finish=finish)
