"""Powers off and removes VMs that gpuops made, as steps of the executor: each intent is in the journal before it is
sent, and a step that a killed run left in flight is settled before the next one is sent.

A VM is recognised by the instance UUID that the plan saw, and by the name and notes that gpuops gave it. Name and notes
are read once more directly before each request.
"""

from __future__ import annotations

from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.steps import PowerOffForRemoval, RemovalStep, RemoveVm


def next_removal_step(vm: Vm, notes: str) -> RemovalStep:
    """Return the step that brings the VM closer to its removal: it is powered off first."""
    if vm.power is PowerState.OFF:
        return RemoveVm(vm.ref, vm.name, notes)
    return PowerOffForRemoval(vm.ref, vm.name, notes)
