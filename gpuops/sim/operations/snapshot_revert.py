"""Reverts a VM to a snapshot: its power and its guest are again as they were when the snapshot was taken.

What vCenter itself keeps of it, its name, folder and custom values, stays.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pyVmomi import vmodl

from gpuops.sim.operations import power
from gpuops.sim.operations.initial_placement import place
from gpuops.sim.operations.recording import recorded
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity

TAKEN_AGO: Final = timedelta(days=7)
"""How old the snapshot is."""


def revert(vm: VmEntity, call: Call, was: Power) -> None:
    """RevertToSnapshot_Task, at its end, for a snapshot that was taken when the VM was off, suspended or running.

    A running VM is restored from its memory as a suspended one is, and stays suspended where no GPU is free for it
    (from memory). A VM with a task is not reverted.
    """
    if vm.world.tasks.running(vm) is not None:
        return
    if was is Power.OFF:
        if vm.state.power is not Power.OFF:
            power.stop(vm, call, clean=False)
        return
    with recorded(vm, call):
        power.restore_checkpoint(vm, vm.world.clock.now() - TAKEN_AGO)
        if was is Power.ON:
            _resumed(vm)


def _resumed(vm: VmEntity) -> None:
    try:
        host, admitted = place(vm, vm.host())
    except vmodl.MethodFault:
        return
    power.start(vm, host.moid, admitted.seats, admitted.held)
