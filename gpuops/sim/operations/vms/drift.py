"""Moves of VMs that no client asked for: by DRS while a VM runs, by vSphere HA while it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.operations.admission.host_admission import Admission, admission
from gpuops.sim.operations.recording import recorded
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity, VmEntity

AFTER_S: Final = 60.0
"""How long after a suspend or a start a VM is moved in a vCenter that deviates so."""


def drift(vm: VmEntity) -> None:
    """Put it on the first other host of its cluster that can take it, if there is one."""
    call, source = Call(method="MigrateVM_Task", version=vm.world.api_version), vm.host()
    for target in vm.host().compute_resource().hosts():
        admitted = _admission_on(vm, target)
        if admitted is not None:
            with recorded(vm, call):
                vm.state.seats, vm.state.held = admitted.seats, admitted.held
                vm.register_on(target.moid)
                vm.power_changed()
            if vm.state.power is Power.ON:
                came_from = vim.event.HostEventArgument(name=source.name, host=source.ref)
                vm.post(call, "DrsVmMigratedEvent", sourceHost=came_from)
            return


def drift_if_deviating(vm: VmEntity) -> None:
    """Move a VM that was suspended or started a minute later, in a vCenter whose DRS or HA does that.

    assumption: suspended-vm-host, assumption: drs-vgpu-vms
    """
    power = vm.state.power
    deviation = "suspended-vm-host" if power is Power.SUSPENDED else "drs-vgpu-vms"

    def later() -> None:
        if vm.is_registered and vm.state.power is power:
            drift(vm)

    if deviation in vm.world.deviations and vm.state.vgpus:
        vm.world.clock.schedule(AFTER_S, later, background=True)


def _admission_on(vm: VmEntity, target: HostEntity) -> Admission | None:
    if target is vm.host() or vm.state.datastore not in target.state.datastores or not target.state.usable:
        return None
    if vm.state.power is not Power.ON:
        return Admission()
    try:
        return admission(vm, target)
    except vmodl.MethodFault:
        return None
