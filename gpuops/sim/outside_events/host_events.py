"""What happens to hosts and their GPUs, to storage, to vCenter itself, and to the permissions of its users."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, uuid5

from pyVmomi import vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.core.inventory_tree import datacenter_of
from gpuops.sim.core.object_store import somebody
from gpuops.sim.inventory.entities import FolderEntity
from gpuops.sim.operations import inventory_change, maintenance
from gpuops.sim.operations.inventory_change import add_again
from gpuops.sim.operations.vms import power
from gpuops.sim.operations.vms.creation import create_folder
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import REBOOT_S, GpuFault
from gpuops.sim.vcenter.authority import READ_ONLY

if TYPE_CHECKING:
    from gpuops.sim.fault_injection.rule import Rule
    from gpuops.sim.inventory.entities import DatastoreEntity, HostEntity, VmEntity
    from gpuops.sim.inventory.managed_entity import ManagedEntity
    from gpuops.sim.world import World

OTHER_SCHEDULER: Final = "NVreg_RegistryDwords=RmPVMRL=0x11"
"""Fixed share (NVIDIA vGPU documentation, RmPVMRL)."""
UNFILED: Final = "Discovered virtual machine"
HOST_DOWN_S: Final = 600.0
"""How long a crashed host is down unless the rule sets `for_s`: a server needs ten minutes to boot."""


def fail_gpu(host: HostEntity, rule: Rule) -> None:
    """The host's first GPU fails: the VMs that use it stop, and vCenter no longer lists it."""
    if not host.state.gpus:
        return
    lost_gpu, call = host.state.gpus[0], _outside_call(host, "XidError")
    for vm in host.running_vms():
        has_vgpu_on_it = any(seat.pci_id == lost_gpu.pci_id for seat in vm.state.seats)
        if has_vgpu_on_it or any(pci_id == lost_gpu.pci_id for _, pci_id in vm.state.held):
            power.stop(vm, call, clean=False)
    host.state.gpus = host.state.gpus[1:]
    host.world.ledger.record(call, host, before={"gpu": lost_gpu.pci_id}, after={"gpu": None})
    host.touch("hardware", "config", "summary")
    host.graphics_changed()
    host.load_changed()


def lose_gpu(host: HostEntity, rule: Rule) -> None:
    """The host's first GPU fails: the VMs with a vGPU on it stop. vCenter still lists it; nvidia-smi says "lost"."""
    if not host.state.gpus:
        return
    if "lost-gpu-listed" in host.world.deviations:  # assumption: lost-gpu-listed
        fail_gpu(host, rule)
        return
    gpu, call = host.state.gpus[0], _outside_call(host, "XidError")
    for vm in host.running_vms():
        if any(seat.pci_id == gpu.pci_id for seat in vm.state.seats):
            power.stop(vm, call, clean=False)
    gpu.faults |= {GpuFault.LOST}
    host.world.ledger.record(call, host, before={"gpu": gpu.pci_id}, after={"gpu": "lost"})
    host.graphics_changed()
    host.load_changed()


def crash(host: HostEntity, rule: Rule) -> None:
    """The host and its VMs stop at once; after `for_s` the host is back, and the VMs stay off."""
    if host.state.connection != "connected":
        return
    maintenance.go_down(host, _outside_call(host, "HostCrash"), rule.for_s or HOST_DOWN_S)


def disconnect(host: HostEntity, rule: Rule) -> None:
    """vCenter loses the connection to the host for `for_s`; its VMs keep running."""
    _set_connection(host, "notResponding")
    if rule.for_s:
        host.world.clock.schedule(rule.for_s, lambda: _set_connection(host, "connected"), background=True)


def stay_down_after_reboot(host: HostEntity, rule: Rule) -> None:
    """The host does not come back from its next reboot, or with `for_s` it takes that much longer."""
    host.boot.takes_s = REBOOT_S + rule.for_s if rule.for_s else None


def revert_module_options(host: HostEntity, rule: Rule) -> None:
    """At the host's next boot a host profile sets the module options back to those that are loaded now."""
    host.boot.options = host.state.loaded_module_options


def forget_mig(host: HostEntity, rule: Rule) -> None:
    """After the host's next boot no GPU is in MIG mode: on some systems that mode does not survive a reboot."""
    host.boot.forgets_mig = True


def boot_without_driver(host: HostEntity, rule: Rule) -> None:
    """After the host's next boot its GPU driver does not load, or with `for_s` it loads that much later."""
    host.boot.driver_late_s = rule.for_s or None


def change_scheduler(host: HostEntity, rule: Rule) -> None:
    """Another user sets another vGPU scheduler, which is pending until the next boot."""
    before, host.state.module_options = host.state.module_options, OTHER_SCHEDULER
    call = somebody(host.world, "UpdateModuleOptionString")
    host.world.ledger.record(
        call, host, before={"module_options": before}, after={"module_options": host.state.module_options}
    )
    host.touch("summary")


def turn_mixed_size_off(host: HostEntity, rule: Rule) -> None:
    """The host crashes and boots; from then on its GPUs in mixed-size mode are in same-size mode."""
    crash(host, rule)
    for gpu in host.state.gpus:
        if gpu.mode is GpuMode.MIXED_SIZE:
            gpu.mode = GpuMode.SAME_SIZE
    host.graphics_changed()


def turn_mixed_size_on(host: HostEntity, rule: Rule) -> None:
    """The host crashes and boots; from then on each same-size GPU that supports it is in mixed-size mode."""
    crash(host, rule)
    for gpu in host.state.gpus:
        if gpu.mode is GpuMode.SAME_SIZE and gpu.board.mixed_size:
            gpu.mode = GpuMode.MIXED_SIZE
    host.graphics_changed()


def remove_and_add_again(host: HostEntity, rule: Rule) -> None:
    """Another user removes the host from the inventory and adds it again; its VMs keep running. All get new ids.

    Its VMs lose their custom attributes, and are in the folder for discovered VMs (name from memory).
    """
    if host.state.connection != "connected":
        return  # it could not be added again
    call = somebody(host.world, "AddHost_Task")
    inventory_change.add_again(host, call, lambda vm: _unfiled_folder(vm, call))


def _unfiled_folder(vm: VmEntity, call: Call) -> FolderEntity:
    root: FolderEntity = datacenter_of(vm).folders["vm"]
    folders = (child for child in root.children.values() if isinstance(child, FolderEntity))
    existing = next((folder for folder in folders if folder.name == UNFILED), None)
    return existing if existing is not None else create_folder(root, call, UNFILED)


def replace_driver(host: HostEntity, rule: Rule) -> None:
    """The host reboots with a driver that lacks the vGPU types of its VMs; after `for_s` the old driver is back."""
    removed_types = {vgpu.type_name for vm in host.vms() for vgpu in vm.state.vgpus}
    before = [(gpu, gpu.board) for gpu in host.state.gpus]
    crash(host, replace(rule, for_s=0.0))
    for gpu, board in before:
        gpu.board = replace(board, types=tuple(type_ for type_ in board.types if type_.name not in removed_types))
    host.graphics_changed()

    def restore_driver() -> None:
        for gpu, board in before:
            gpu.board = board
        host.graphics_changed()

    if rule.for_s:
        host.world.clock.schedule(rule.for_s, restore_driver, background=True)


def enter_maintenance(host: HostEntity, rule: Rule) -> None:
    """Another user puts the host into maintenance mode; the host waits for the VMs that run there."""
    try:
        maintenance.enter(host, somebody(host.world, "EnterMaintenanceMode_Task"), 0)
    except vmodl.MethodFault:
        return  # it is in maintenance mode, or entering it


def _set_connection(host: HostEntity, state: str) -> None:
    before, host.state.connection = host.state.connection, state
    call = _outside_call(host, "HostConnection")
    host.world.ledger.record(call, host, before={"connection": before}, after={"connection": state})
    host.runtime_changed()


def _outside_call(host: HostEntity, method: str) -> Call:
    return Call(method=method, version=host.world.api_version)


VCENTER_DOWN_S: Final = 300.0
"""How long vCenter does not answer unless the rule sets `for_s`: five minutes."""
CHANGED_SUFFIX: Final = " changed"
"""The suffix of a changed password."""
FREEZE_S: Final = 90.0
"""How long old values are shown unless the rule sets `for_s`."""


def fill_datastore(store: DatastoreEntity, rule: Rule) -> None:
    """Another user fills the datastore completely, for `for_s` seconds or forever."""
    filled_mib = store.free_mib
    store.use(filled_mib)
    if rule.for_s:
        store.world.clock.schedule(rule.for_s, lambda: store.use(-filled_mib), background=True)


def lose_datastore(store: DatastoreEntity, rule: Rule) -> None:
    """All paths to the datastore are down, for `for_s` seconds or forever: its VMs are inaccessible."""
    _set_accessible(store, accessible=False)
    if rule.for_s:
        store.world.clock.schedule(rule.for_s, lambda: _set_accessible(store, accessible=True), background=True)


def restart_vcenter(world: World, rule: Rule) -> None:
    """vCenter restarts: it does not answer for a while, then all sessions have ended and no old task is known.

    The hosts complete their running tasks meanwhile.
    """
    if "sessions-after-restart" not in world.deviations:  # assumption: sessions-after-restart
        for session in world.sessions:
            world.sessions.close(session)
        for task in world.tasks.readable():
            world.tasks.forget(task)
    world.down_until = world.clock.now() + timedelta(seconds=rule.for_s or VCENTER_DOWN_S)


def rebuild_vcenter(world: World, rule: Rule) -> None:
    """vCenter is reinstalled and the hosts are added again: a new instance uuid, no custom attributes, no history.

    Hosts and VMs get new ids. The VMs keep their instance uuids and power states and are in the same folders as before.
    """
    for session in world.sessions:
        world.sessions.close(session)
    world.get("ServiceInstance").instance_uuid = str(uuid5(NAMESPACE_URL, f"gpuops-sim:rebuilt:{world.clock.now()}"))
    call = somebody(world, "AddHost_Task")
    for host in list(world.by_type("HostSystem")):
        add_again(host, call, lambda vm: world.get(vm.state.folder))
    world.custom_fields.load([])
    world.tasks.forget_history()


def lose_vcenter(world: World, rule: Rule) -> None:
    """The network to vCenter is down for a while. vCenter itself keeps running."""
    world.down_until = world.clock.now() + timedelta(seconds=rule.for_s or VCENTER_DOWN_S)


def revoke_permissions(world: World, rule: Rule) -> None:
    """All users have read-only permissions from now on, or for `for_s` seconds."""
    users = list(world.sessions.passwords)
    for user in users:
        world.authority.permit(user, READ_ONLY)

    def restore_permissions() -> None:
        for user in users:
            world.authority.withdraw(user, "group-d1")  # the root folder

    if rule.for_s:
        world.clock.schedule(rule.for_s, restore_permissions, background=True)


def change_passwords(world: World, rule: Rule) -> None:
    """All users get another password, and the old one again after `for_s` seconds; open sessions stay valid."""
    before = dict(world.sessions.passwords)
    world.sessions.passwords.update({user: f"{password}{CHANGED_SUFFIX}" for user, password in before.items()})
    if rule.for_s:
        world.clock.schedule(rule.for_s, lambda: world.sessions.passwords.update(before), background=True)


def freeze_properties(entity: ManagedEntity, rule: Rule) -> None:
    """For `for_s` seconds vCenter shows the properties of the object as they were last read, although they change."""
    world, moid = entity.world, entity.moid
    world.fragments.freeze(moid)
    world.clock.schedule(rule.for_s or FREEZE_S, lambda: world.fragments.thaw(moid), background=True)


def change_certificate(world: World, rule: Rule) -> None:
    """The server shows a certificate of another authority from now on, and every connection ends."""
    if world.change_certificate is not None:
        world.change_certificate()


def skew_clock(world: World, rule: Rule) -> None:
    """vCenter's clock is ahead by `delay_s` seconds from now on."""
    world.skew = timedelta(seconds=rule.delay_s)


def _set_accessible(store: DatastoreEntity, *, accessible: bool) -> None:
    store.accessible = accessible
    store.touch("summary", "host")
    for vm in store.vms.values():
        vm.connection = None if accessible else "inaccessible"
        vm.touch("runtime", "summary")
