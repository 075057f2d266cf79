"""Sets the mode of a DirectPath device of a host, as the configure call of vSphere 9.1 does, and says what that takes.

Sources: vSphere Automation API 9.1, vcenter.host.hardware.direct_path_devices; vSphere API 9.1,
HostPciPassthruInfoDirectPathState. Not documented, and chosen here: a vGPU size is in force at once; who has a GPU,
VMs or the host, changes in maintenance mode where the host can rebind devices, and after a reboot where it cannot; in
maintenance mode already the first is in force at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyVmomi import vim, vmodl

from gpuops.sim.operations.hosts.graphics_change import facts
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.device_mode import DIRECT_PATH, HOST, SIZES, configurable_modes, configured_mode
from gpuops.sim.state.host_state import SHARED_DIRECT, HostGpu, OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity

NO_IMPACT: Final = "NONE"
MAINTENANCE: Final = "HOST_MAINTENANCE_MODE_REQUIRED"
REBOOT: Final = "HOST_REBOOT_REQUIRED"


def configure(host: HostEntity, call: Call, pci_id: str, mode: str | None) -> list[str]:
    """The impacts of the change; a mode that is not given, or is there already, changes nothing.

    Raises NotFound, InvalidArgument, HostConfigFault; on a fault nothing has changed.
    """
    gpu = host.state.device(pci_id)
    if gpu is None:
        raise vim.fault.NotFound(msg=f"Host {host.name} has no device {pci_id} whose mode can be set.")
    if mode is None or mode == configured_mode(gpu):
        return [NO_IMPACT]
    if mode not in configurable_modes(gpu):
        raise vmodl.fault.InvalidArgument(msg=f"Device {pci_id} cannot be configured to {mode}.")
    held_pci_ids = {held_id for vm in host.running_vms() for _, held_id in vm.state.held}
    if gpu.pci_id in held_pci_ids or any(seat.pci_id == gpu.pci_id for seat in host.seats()):
        raise vim.fault.HostConfigFault(msg=f"Device {pci_id} of host {host.name} is in use.")
    before = facts(host)
    _set(gpu, mode)
    impact = _impact(host, gpu)
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))
    return [impact]


def _set(gpu: HostGpu | OtherHostDevice, mode: str) -> None:
    gpu.passthrough_enabled = mode == DIRECT_PATH
    if isinstance(gpu, OtherHostDevice):
        return
    if mode == HOST:
        gpu.configured_type = "shared"
    elif mode in SIZES:
        gpu.configured_type = SHARED_DIRECT
        gpu.mode = gpu.mode if gpu.mode is GpuMode.MULTI_INSTANCE else SIZES[mode]


def _impact(host: HostEntity, gpu: HostGpu | OtherHostDevice) -> str:
    rebinds = gpu.passthrough_enabled != gpu.passthrough_active and host.state.rebinds_without_reboot
    gpu.waits_for_maintenance = rebinds and not host.state.in_maintenance
    if rebinds and not gpu.waits_for_maintenance:
        gpu.passthrough_active = gpu.passthrough_enabled
    if gpu.waits_for_maintenance:
        return MAINTENANCE
    in_force = gpu.passthrough_enabled == gpu.passthrough_active
    if isinstance(gpu, HostGpu):
        in_force = in_force and gpu.configured_type == gpu.graphics_type
    return NO_IMPACT if in_force else REBOOT


def enter_maintenance(host: HostEntity) -> None:
    """What waited for maintenance mode is in force."""
    waiting = [device for device in host.state.devices if device.waits_for_maintenance]
    for device in waiting:
        device.passthrough_active, device.waits_for_maintenance = device.passthrough_enabled, False
    if waiting:
        host.graphics_changed()
