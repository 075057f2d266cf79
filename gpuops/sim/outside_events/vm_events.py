"""What other people do to a VM, and what happens to it by itself."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.core.object_store import somebody
from gpuops.sim.inventory.managed_entity import enter, enter_new, new_moid, new_uuid
from gpuops.sim.operations.host_admission import place
from gpuops.sim.operations.recording import facts, recorded
from gpuops.sim.operations.vms import power, snapshots
from gpuops.sim.operations.vms.movement import copy_state, remove_vm
from gpuops.sim.operations.vms.power import move_elsewhere
from gpuops.sim.state.vm_state import GuestUser, Power

if TYPE_CHECKING:
    from gpuops.sim.fault_injection.rule import Rule
    from gpuops.sim.inventory.entities import VmEntity

ANOTHER_NAME: Final = "{}-renamed"
COPY: Final = "{}-copy"
SOMEBODY: Final = "DESKTOPS\\somebody"
VM_SERVICE: Final = ("com.vmware.vcenter.wcp", "VirtualMachine")
"""Extension key and type of the VMs of the VM Service (vm-operator, api/v1alpha1)."""
WORKING_MHZ: Final = 5200
"""CPU use of a desktop in use, in MHz."""


def delete(vm: VmEntity, rule: Rule) -> None:
    """Another user deletes the VM with its files, whether it runs or not."""
    call = somebody(vm.world, "Destroy_Task")
    if vm.state.power is not Power.OFF:
        power.stop(vm, call, clean=False)
    remove_vm(vm, call)


def recreate(vm: VmEntity, rule: Rule) -> None:
    """The VM is deleted, and a new VM with its name, folder and host is made: off, and with new uuids."""
    delete(vm, rule)
    state = copy.copy(vm.state)
    state.uuid, state.instance_uuid = new_uuid(vm.world), new_uuid(vm.world)
    state.attributes, state.snapshots = {}, ()
    state.suspend_file_mib = 0
    new_vm = enter(type(vm)(vm.world, new_moid(vm.world, "vm"), state))
    new_vm.world.ledger.record(somebody(vm.world, "CreateVM_Task"), new_vm, before={}, after=facts(state))


def clone(vm: VmEntity, rule: Rule) -> None:
    """Another user clones the VM without its devices, and powers the clone on if the VM runs."""
    folder, call = vm.world.get(vm.state.folder), somebody(vm.world, "CloneVM_Task")
    try:
        name = folder.checked_name(COPY.format(vm.name))
    except vmodl.MethodFault:
        return  # the clone's name is in use: the VM was cloned before
    pool = vm.host().compute_resource().pool.moid
    state = copy_state(vm, name, folder.moid, vm.host(), pool, template=False)
    state.devices = ()
    new_vm = enter_new(type(vm)(vm.world, new_moid(vm.world, "vm"), state))
    new_vm.world.ledger.record(call, new_vm, before={}, after=facts(state))
    new_vm.post(call, "VmClonedEvent", sourceVm=vim.event.VmEventArgument(name=vm.name, vm=vm.ref))
    if vm.state.power is Power.ON:
        power_on(new_vm, rule)


def make_inaccessible(vm: VmEntity, rule: Rule) -> None:
    """vCenter cannot reach the VM's files: runtime.connectionState is `inaccessible` (vSphere API reference)."""
    _set_connection(vm, "inaccessible")
    if rule.for_s:
        vm.world.clock.schedule(rule.for_s, lambda: _set_connection(vm, None), background=True)


def rename(vm: VmEntity, rule: Rule) -> None:
    """Another user renames the VM."""
    before = vm.name
    vm.rename(ANOTHER_NAME.format(before))
    vm.configuration_changed(renamed=True)
    call = somebody(vm.world, "Rename_Task")
    vm.world.ledger.record(call, vm, before={"name": before}, after={"name": vm.name})


def move_to_parent_folder(vm: VmEntity, rule: Rule) -> None:
    """Another user moves the VM one folder up."""
    current_folder = vm.world.get(vm.state.folder)
    parent_folder = vm.world.get(current_folder.parent)
    if parent_folder.wsdl_name != "Folder":
        return  # it is in the topmost folder for VMs
    vm.move_to_folder(parent_folder)
    call = somebody(vm.world, "MoveIntoFolder_Task")
    vm.world.ledger.record(call, vm, before={"folder": current_folder.moid}, after={"folder": parent_folder.moid})


def hand_over(vm: VmEntity, rule: Rule) -> None:
    """Another product manages the VM from now on: the VM Service registers it in a namespace."""
    call = somebody(vm.world, "ReconfigVM_Task")
    with recorded(vm, call):
        vm.state.managed_by = VM_SERVICE
        vm.configuration_changed(renamed=False)


def power_off(vm: VmEntity, rule: Rule) -> None:
    """Another user powers the VM off; a suspended VM loses its suspended state."""
    if vm.state.power is not Power.OFF:
        power.stop(vm, somebody(vm.world, "PowerOffVM_Task"), clean=False)


def revert_to_off(vm: VmEntity, rule: Rule) -> None:
    """Another user reverts the VM to a snapshot that was taken while it was off, or without its memory."""
    snapshots.revert(vm, somebody(vm.world, "RevertToSnapshot_Task"), Power.OFF)


def revert_to_suspended(vm: VmEntity, rule: Rule) -> None:
    """Another user reverts the VM to a snapshot that was taken while it was suspended."""
    snapshots.revert(vm, somebody(vm.world, "RevertToSnapshot_Task"), Power.SUSPENDED)


def revert_to_running(vm: VmEntity, rule: Rule) -> None:
    """Another user reverts the VM to a snapshot that was taken, with its memory, while it ran."""
    snapshots.revert(vm, somebody(vm.world, "RevertToSnapshot_Task"), Power.ON)


def power_on(vm: VmEntity, rule: Rule) -> None:
    """Another user powers the VM on, or resumes it; the request can be refused as any other."""
    _ignore_refusal(lambda call: power.power_on(vm, call, None), somebody(vm.world, "PowerOnVM_Task"))


def suspend(vm: VmEntity, rule: Rule) -> None:
    """Another user suspends the VM."""
    _ignore_refusal(lambda call: power.suspend(vm, call), somebody(vm.world, "SuspendVM_Task"))


def move_to_another_host(vm: VmEntity, rule: Rule) -> None:
    """The VM is on another host of its cluster: DRS moved it while it ran, or HA registered it there while off."""
    move_elsewhere(vm)


def restart_by_ha(vm: VmEntity, rule: Rule) -> None:
    """vSphere HA restarts the VM, without a task, on a host that admits it; if no host does, the VM stays off."""
    if vm.state.power is not Power.ON:
        return
    call = Call(method="FailOver", version=vm.world.api_version)
    power.stop(vm, call, clean=False)
    try:
        chosen, admitted = place(vm, None)
    except vmodl.MethodFault:
        return
    with recorded(vm, call):
        power.start(vm, chosen.moid, admitted.seats, admitted.held)


def ignore_shutdowns(vm: VmEntity, rule: Rule) -> None:
    """The guest ignores requests to shut down, for `for_s` seconds or forever."""
    vm.ignores_shutdown = True

    def obey_again() -> None:
        vm.ignores_shutdown = False

    if rule.for_s:
        vm.world.clock.schedule(rule.for_s, obey_again, background=True)


def start_task(vm: VmEntity, rule: Rule) -> None:
    """A task of another client runs on the VM for `for_s`: other tasks are queued, or refused with TaskInProgress."""
    call = somebody(vm.world, "ReconfigVM_Task")
    _ignore_refusal(lambda call: vm.world.tasks.start(call, "ReconfigVM_Task", vm, rule.for_s or 60.0), call)


def use_desktop(vm: VmEntity, rule: Rule) -> None:
    """A user works with the VM by remote desktop, for `for_s` seconds or forever: only its CPU use shows that."""
    idle_mhz = vm.state.cpu_usage_mhz
    _set_use(vm, WORKING_MHZ, (GuestUser(SOMEBODY, vm.world.clock.now(), vm.state.boot_time),))
    if rule.for_s:
        vm.world.clock.schedule(rule.for_s, lambda: _set_use(vm, idle_mhz, ()), background=True)


def _set_use(vm: VmEntity, mhz: int, users: tuple[GuestUser, ...]) -> None:
    vm.state.cpu_usage_mhz, vm.state.guest_users = mhz, users
    vm.touch("summary")


def _ignore_refusal(act: object, call: Call) -> None:
    """Do an act of another client. If it is refused, only that client gets the fault."""
    assert callable(act)
    try:
        act(call)
    except vmodl.MethodFault:
        return


def _set_connection(vm: VmEntity, state: str | None) -> None:
    vm.connection = state
    vm.touch("runtime", "summary")
