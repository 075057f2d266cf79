"""Reverts a VM to a snapshot: its power and its guest are again as they were when the snapshot was taken.

What vCenter itself keeps of it, its name, folder and custom values, stays.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.operations.admission.initial_placement import place
from gpuops.sim.operations.networks.port_connection import with_own_ports
from gpuops.sim.operations.recording import recorded
from gpuops.sim.operations.vms import power
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity

REVERT_S: Final = 3.0
TAKEN_AGO: Final = timedelta(days=7)
"""How old the snapshot is."""


CONFIGURED: Final = (
    "cpus",
    "cores_per_socket",
    "memory_mib",
    "hardware_version",
    "firmware",
    "boot",
    "annotation",
    "guest_id",
    "cpu_reservation_mhz",
    "memory_reservation_mib",
    "memory_locked",
    "cpu_hot_add",
    "memory_hot_add",
    "nested_virtualization",
    "cores_per_numa_node",
    "vnuma_on_hot_add",
    "passthrough_hot_plug",
    "latency",
    "hardware",
    "devices",
    "groups",
    "extra_config",
)
"""What of a VM is as it was in the snapshot."""


def revert_to(vm: VmEntity, call: Call, method: str, moid: str | None, *, suppress_power_on: bool) -> Any:
    """The task of RevertToSnapshot_Task and RevertToCurrentSnapshot_Task. Raises NotFound without a snapshot."""
    snapshot = next((candidate for candidate in vm.state.snapshots if candidate.moid == moid), None)
    if snapshot is None:
        raise vim.fault.NotFound(msg="The virtual machine has no current snapshot.")

    def finish() -> None:
        then = vm.world.get(snapshot.moid).taken
        if vm.state.power is not Power.OFF:
            power.stop(vm, call, clean=False)
        cards = vm.state.network_cards
        with recorded(vm, call):
            for name in CONFIGURED:
                setattr(vm.state, name, getattr(then, name))
            vm.state.set_network_cards(with_own_ports(vm.world, vm.state.network_cards, besides=vm.moid))
            vm.state.change, vm.state.changed_at = vm.state.change + 1, vm.world.clock.now()
            vm.state.current_snapshot = snapshot.moid
            if snapshot.power is not Power.OFF:
                power.restore_checkpoint(vm, snapshot.created_at)
            if snapshot.power is Power.ON and not suppress_power_on:
                _finish_resume(vm)
        vm.configuration_changed()
        vm.touch("snapshot", "layout", "layoutEx", "storage")
        vm.networks_changed(cards)

    return vm.world.tasks.start(call, method, vm, REVERT_S, begin=vm.refuse_while_asked, finish=finish)


def revert(vm: VmEntity, call: Call, power_before: Power) -> None:
    """Do the revert of another client, at its end, to a snapshot of the VM when it was off, suspended or running.

    A running VM is restored from its memory as a suspended one is, and stays suspended where no GPU is free for it
    (from memory). A VM with a task is not reverted.
    """
    if vm.world.tasks.running(vm) is not None:
        return
    if power_before is Power.OFF:
        if vm.state.power is not Power.OFF:
            power.stop(vm, call, clean=False)
        return
    with recorded(vm, call):
        power.restore_checkpoint(vm, vm.world.clock.now() - TAKEN_AGO)
        if power_before is Power.ON:
            _finish_resume(vm)


def _finish_resume(vm: VmEntity) -> None:
    try:
        host, admitted = place(vm, vm.host())
    except vmodl.MethodFault:
        return
    power.start(vm, host.moid, admitted.seats, admitted.held)
