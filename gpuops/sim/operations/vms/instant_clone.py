"""InstantClone_Task: a copy of a running VM that runs on with its memory, on the same host.

vSphere API, VirtualMachineInstantCloneSpec: `location` may say folder, datastore, resource pool and edits of network
cards, and nothing else; the clone is on the host of its source (vSphere Web Services SDK Programming Guide,
"Limitations of Instant Clones"). From memory: every passthrough device, a vGPU too, rules it out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.registration import enter_new, leave, new_moid
from gpuops.sim.operations import permissions
from gpuops.sim.operations.admission.host_admission import admission
from gpuops.sim.operations.admission.initial_placement import refuse_over_failover
from gpuops.sim.operations.recording import facts
from gpuops.sim.operations.vms import power
from gpuops.sim.operations.vms.movement import blocked, copied, holds_vms, root_folder, target_of
from gpuops.sim.operations.vms.reconfigure import changed_state
from gpuops.sim.state.vm_state import Power, merged_options

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity

INSTANT_CLONE_S: Final = 2.0
SAID_OF_LOCATION: Final = ("folder", "datastore", "pool", "host", "deviceChange")


def instant_clone(vm: VmEntity, call: Call, spec: Any) -> Any:
    """The task; its result is the clone, which runs."""
    world, location = vm.world, spec.location
    _supported(vm, location)
    folder = world.get(location.folder) if location.folder else root_folder(vm)
    store = world.get(location.datastore) if location.datastore else vm.datastore()
    _, pool = target_of(vm, location.host, location.pool)
    permissions.to_instant_clone(vm, call, folder, pool or vm.state.pool, store)

    def begin() -> None:
        vm.refuse_while_asked()
        holds_vms(folder)
        folder.checked_name(spec.name)
        if vm.state.power is not Power.ON:
            raise faults.wrong_power_state(vm.state.power, Power.ON)
        if vm.state.devices:
            raise blocked("A virtual machine with a passthrough device has no instant clones.")
        if store.moid not in vm.host().state.datastores:
            raise vim.fault.InvalidDatastore(msg=f"Invalid datastore '{store.name}'.", name=store.name)

    def finish() -> VmEntity:
        begin()
        state = copied(
            vm, folder.checked_name(spec.name), folder.moid, vm.host(), pool or vm.state.pool, template=False
        )
        state.uuid = spec.biosUuid or state.uuid
        state.datastore, state.template = store.moid, replace(state.template, datastore=store.name)
        state.extra_config = merged_options(state.extra_config, {each.key: str(each.value) for each in spec.config})
        made = enter_new(type(vm)(world, new_moid(world, "vm"), state))
        try:
            refuse_over_failover(made, vm.host())
            admission(made, vm.host())
            made.state = changed_state(made, vim.vm.ConfigSpec(deviceChange=location.deviceChange))
        except Exception:
            leave(made)
            raise
        made.state.power, made.state.boot_time = Power.ON, vm.state.boot_time
        if vm.state.guest_boots:
            power.boot(made)
        made.power_changed()
        world.ledger.record(call, made, before={}, after=facts(made.state))
        made.post(call, "VmClonedEvent", sourceVm=vim.event.VmEventArgument(name=vm.name, vm=vm.ref))
        return made

    return world.tasks.start(call, "InstantClone_Task", vm, INSTANT_CLONE_S, begin=begin, finish=finish)


def _supported(vm: VmEntity, location: Any) -> None:
    """Raises NotSupported or InvalidArgument for a location that an instant clone cannot have."""
    for name in {each.name for each in location._GetPropertyList()}.difference(SAID_OF_LOCATION):
        if getattr(location, name):
            raise faults.not_supported(f"An instant clone has no location.{name}.")
    if location.host and location.host._moId != vm.state.host:
        raise faults.wrong_argument("spec.location.host", "An instant clone is on the host of its source.")
    for change in location.deviceChange:
        card = isinstance(change.device, vim.vm.device.VirtualEthernetCard)
        if change.operation != "edit" or not card:
            raise faults.not_supported("Of the devices of an instant clone network cards alone are edited.")
