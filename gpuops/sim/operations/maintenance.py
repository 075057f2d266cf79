"""Maintenance mode and reboot of a host.

Entering waits until no VM runs there: in a cluster whose DRS moves VMs by itself those that can be migrated leave,
VMs with a vGPU only if the cluster option `VgpuMMAutomationTimeoutSecs` says so (VMware KB 88271). Suspended VMs do not
block it (from memory). VMs of vSphere Cluster Services are vCenter's own affair (VMware vSphere docs, vCLS). A reboot
puts pending passthrough, graphics and kernel module settings in force.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.object_store import somebody
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.entities import ENTER_MAINTENANCE_S
from gpuops.sim.operations.device_settings import enter_maintenance
from gpuops.sim.operations.host_admission import admission
from gpuops.sim.operations.recording import recorded
from gpuops.sim.operations.vms.movement import require_migratable
from gpuops.sim.operations.vms.power import move_elsewhere, power_on, stop
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import STAYS_AFTER_BOOT, Boot
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.state.host_state import HostGpu

HA_RESTART_AFTER_S: Final = 60.0
"""How long after a host failure its suspended VMs are resumed elsewhere, with the deviation `ha-suspended-vms`."""
EXIT_MAINTENANCE_S: Final = 2.0
SHUTDOWN_S: Final = 30.0
LONGEST_WAIT_S: Final = 3600.0
"""After how long a task with timeout 0 ("wait for ever") fails, so that every simulation ends."""


def enter(host: HostEntity, call: Call, timeout_s: int, spec: Any = None) -> Any:
    """Return EnterMaintenanceMode_Task. It fails with Timedout if VMs still run after `timeout_s` (0 = the default).

    DRS moves VMs away if it can; agent VMs are stopped.
    """
    vsan_action = spec.vsanMode.objectAction if spec is not None and spec.vsanMode is not None else None

    def begin() -> None:
        _require_connected(host)
        if host.state.in_maintenance:
            raise faults.wrong_state("The host is already in maintenance mode.")
        for vm in host.running_vms():
            if is_agent(vm):
                stop(vm, somebody(host.world, "PowerOffVM_Task"), clean=True)
            else:
                _evacuate(vm, host, call)

    def finish() -> None:
        _require_connected(host)
        if host.running_vms():
            raise vim.fault.Timedout(msg=f"Virtual machines still run on host {host.name}.")
        _set_maintenance(host, call, on=True, vsan_action=vsan_action)

    host.entering = host.world.tasks.start(
        call,
        "EnterMaintenanceMode_Task",
        host,
        # while VMs run that DRS does not move, the task waits until its timeout
        (float(timeout_s) or LONGEST_WAIT_S) if _has_blocking_vms(host) else ENTER_MAINTENANCE_S,
        begin=begin,
        finish=finish,
        exclusive=True,
        cancelable=True,
    )
    return host.entering


def leave(host: HostEntity, call: Call) -> Any:
    """ExitMaintenanceMode_Task: also starts the agent VMs that are off."""

    def begin() -> None:
        _require_connected(host)
        if not host.state.in_maintenance:
            raise faults.wrong_state("The host is not in maintenance mode.")

    def finish() -> None:
        _require_connected(host)
        _set_maintenance(host, call, on=False)
        for vm in host.vms():
            if is_agent(vm) and vm.state.power is Power.OFF:
                power_on(vm, somebody(host.world, "PowerOnVM_Task"), None)

    return host.world.tasks.start(
        call, "ExitMaintenanceMode_Task", host, EXIT_MAINTENANCE_S, begin=begin, finish=finish, exclusive=True
    )


def reboot(host: HostEntity, call: Call, *, force: bool) -> Any:
    """RebootHost_Task: ends when the reboot has begun; the host responds again after `host.boot.takes_s` seconds."""

    def begin() -> None:
        _require_connected(host)
        if not force and not host.state.in_maintenance:
            raise faults.wrong_state("The host must be in maintenance mode, or the reboot forced.")

    return host.world.tasks.start(
        call,
        "RebootHost_Task",
        host,
        SHUTDOWN_S,
        begin=begin,
        finish=lambda: go_down(host, call, host.boot.takes_s),
        exclusive=True,
    )


def go_down(host: HostEntity, call: Call, back_after_s: float | None) -> None:
    """Stop the host and its VMs, and boot it again after `back_after_s` seconds (None = never)."""
    for vm in host.running_vms():
        stop(vm, call, clean=False)
    if "ha-suspended-vms" in host.world.deviations:  # assumption: ha-suspended-vms
        for vm in [vm for vm in host.vms() if vm.state.power is Power.SUSPENDED]:
            host.world.clock.schedule(HA_RESTART_AFTER_S, partial(_resume_elsewhere, vm, host, call), background=True)
    host.state.connection = "notResponding"
    host.world.ledger.record(call, host, before={"connection": "connected"}, after={"connection": "notResponding"})
    host.runtime_changed()
    if back_after_s is not None:
        host.world.clock.schedule(back_after_s, lambda: boot(host, call))


def _resume_elsewhere(vm: VmEntity, failed: HostEntity, call: Call) -> None:
    """Let vSphere HA move a suspended VM of the failed host to another host and power it on there."""
    if vm.is_registered and vm.state.power is Power.SUSPENDED and vm.host() is failed:
        move_elsewhere(vm)
        if vm.host() is not failed:
            power_on(vm, call, None)


def boot(host: HostEntity, call: Call) -> None:
    """Bring a host back after a reboot; the settings that waited for the reboot are active."""
    state, scripted_boot = host.state, host.boot
    host.boot = Boot()  # a scripted boot (late driver, lost MIG mode) is for one boot only
    profiles = [profile.module_options for profile in host.world.by_type("HostProfile") if profile.holds(host)]
    for options in (*profiles, scripted_boot.options):
        if options is not None:
            state.module_options = options
    pending = {  # the settings that this boot activates, for the ledger
        "passthrough": [
            device.pci_id for device in state.devices if device.passthrough_active != device.passthrough_enabled
        ],
        "graphics": [gpu.pci_id for gpu in state.gpus if gpu.graphics_type != gpu.configured_type],
        "module_options": state.module_options,
        "sriov": [port.pci_id for port in state.ports if port.functions != port.next_functions],
        "mig": [gpu.pci_id for gpu in state.gpus if gpu.next_mode not in (None, gpu.mode)],
    }
    for device in state.others:
        device.passthrough_active = device.passthrough_enabled
    for port in state.ports:
        port.functions = port.next_functions
    # assumption: mig-mode-after-boot
    forgets_mig = scripted_boot.forgets_mig or "mig-mode-after-boot" in host.world.deviations
    for gpu in state.gpus:
        _boot_gpu(gpu, forgets_mig=forgets_mig)
    if scripted_boot.driver_late_s != 0:
        host.set_driver_loaded(loaded=False)
        if scripted_boot.driver_late_s is not None:  # None = the driver never starts
            host.world.clock.schedule(scripted_boot.driver_late_s, lambda: host.set_driver_loaded(loaded=True))
    state.loaded_module_options = state.module_options
    state.connection, state.boot_time = "connected", host.world.clock.now()
    host.world.ledger.record(
        call, host, before={"connection": "notResponding"}, after={"connection": "connected", **pending}
    )
    host.graphics_changed()
    host.runtime_changed()


def _boot_gpu(gpu: HostGpu, *, forgets_mig: bool) -> None:
    """Put the configured settings of a GPU in force; with `forgets_mig`, the GPU comes up without MIG mode."""
    gpu.passthrough_active, gpu.waits_for_maintenance = gpu.passthrough_enabled, False
    gpu.graphics_type, gpu.ecc = gpu.configured_type, gpu.next_ecc
    # the configured mode if there is one, else the current one; a forgotten MIG mode is skipped
    modes = (gpu.next_mode, gpu.mode, GpuMode.SAME_SIZE)
    skipped_mode = GpuMode.MULTI_INSTANCE if forgets_mig else None
    gpu.mode = next(mode for mode in modes if mode not in (None, skipped_mode))
    gpu.next_mode = None
    gpu.faults &= STAYS_AFTER_BOOT


def _require_connected(host: HostEntity) -> None:
    """Raises HostNotConnected if vCenter has no connection to the host, which carries out the call (vSphere API)."""
    if host.state.connection != "connected":
        raise faults.host_not_connected(host.name)


def _set_maintenance(host: HostEntity, call: Call, *, on: bool, vsan_action: str | None = None) -> None:
    host.state.in_maintenance = on
    if on:
        enter_maintenance(host)
    facts = {"in_maintenance": on, **({"vsan_mode": str(vsan_action)} if vsan_action is not None else {})}
    host.world.ledger.record(call, host, before={"in_maintenance": not on}, after=facts)
    host.runtime_changed()
    host.post(call, "EnteredMaintenanceModeEvent" if on else "ExitMaintenanceModeEvent")


def is_agent(vm: VmEntity) -> bool:
    """Whether it is a VM of vSphere Cluster Services, which vCenter stops for maintenance and starts again."""
    return vm.name.startswith("vCLS-")


def _has_blocking_vms(host: HostEntity) -> bool:
    return any(_evacuation_host(vm, host) is None and not is_agent(vm) for vm in host.running_vms())


def _evacuate(vm: VmEntity, host: HostEntity, call: Call) -> None:
    """Move a VM off the host as DRS does, if DRS can move it."""
    target = _evacuation_host(vm, host)
    if target is None:
        return
    with recorded(vm, call):
        admitted = admission(vm, target)
        vm.state.seats, vm.state.held = admitted.seats, admitted.held
        vm.register_on(target.moid)
        vm.power_changed()


def _evacuation_host(vm: VmEntity, host: HostEntity) -> HostEntity | None:
    """Return the host to which DRS moves a VM of `host` by itself; None = it does not move the VM."""
    cluster = host.compute_resource()
    if not cluster.moves(vm.moid) or (vm.state.vgpus and not cluster.evacuates_vgpus):
        return None
    for target in cluster.hosts():
        if target is host:
            continue
        try:
            require_migratable(vm, target)
            admission(vm, target)
        except vmodl.MethodFault:
            continue
        return target
    return None
