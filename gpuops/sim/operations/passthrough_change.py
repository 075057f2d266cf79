"""Does UpdatePassthruConfig: sets passthrough and hardware labels of a host's GPUs.

A change is in force at once when the host can rebind devices without a reboot, otherwise after one; `applyNow` on a
host that cannot is refused. Labels need no reboot (vSphere API, HostPciPassthruConfig; the last from memory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.operations.graphics_change import facts

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.state.host_state import HostGpu, OtherHostDevice


def update(host: HostEntity, call: Call, configs: list[Any]) -> None:
    """Apply HostPciPassthruConfigs. Raises HostConfigFault; on a fault nothing has changed."""
    changes = [(_device(host, config.id), config) for config in configs]
    for gpu, config in changes:
        _refuse(host, gpu, config)
    before = facts(host)
    for gpu, config in changes:
        if config.passthruEnabled != gpu.passthrough_enabled:
            gpu.passthrough_enabled, gpu.waits_for_maintenance = config.passthruEnabled, False
            if host.state.rebinds_without_reboot:
                gpu.passthrough_active = gpu.passthrough_enabled
        if config.hardwareLabel is not None:
            gpu.label = config.hardwareLabel or None
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def _device(host: HostEntity, pci_id: str) -> HostGpu | OtherHostDevice:
    gpu = host.state.device(pci_id)
    if gpu is None:
        raise _fault(f"Device {pci_id} of host {host.name} cannot be a passthrough device.")
    return gpu


def _refuse(host: HostEntity, gpu: HostGpu | OtherHostDevice, config: Any) -> None:
    if config.applyNow and not host.state.rebinds_without_reboot:
        raise _fault(f"Host {host.name} cannot rebind device {gpu.pci_id} without a reboot.")
    if config.passthruEnabled == gpu.passthrough_enabled:
        return
    held = {pci_id for vm in host.running_vms() for _, pci_id in vm.state.held}
    if gpu.pci_id in held or any(seat.pci_id == gpu.pci_id for seat in host.seats()):
        raise _fault(f"Device {gpu.pci_id} of host {host.name} is in use.")


def _fault(text: str) -> Exception:
    fault: Exception = vim.fault.HostConfigFault(msg=text)
    return fault
