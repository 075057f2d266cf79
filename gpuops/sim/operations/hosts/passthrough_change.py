"""Does UpdatePassthruConfig and UpdateAssignableHardwareConfig: sets passthrough and hardware labels of a host's GPUs,
and the virtual functions (SR-IOV) of its network ports.

A change is in force at once when the host can rebind devices without a reboot, otherwise after one; `applyNow` on a
host that cannot is refused (vSphere API, HostPciPassthruConfig). No document says when hardware labels take effect:
here it is at once, from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.operations.hosts.graphics_change import facts
from gpuops.sim.render.host_graphics import HARDWARE_LABEL

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.state.host_state import HostGpu, OtherHostDevice
    from gpuops.sim.state.network_port import NetworkPort


def update(host: HostEntity, call: Call, configs: list[Any]) -> None:
    """Apply HostPciPassthruConfigs. Raises HostConfigFault; on a fault nothing has changed."""
    divided = [(_port(host, config), config) for config in configs if isinstance(config, vim.host.SriovConfig)]
    changes = [(_device(host, change.id), change) for change in configs if not isinstance(change, vim.host.SriovConfig)]
    for gpu, config in changes:
        _refuse(host, gpu, config)
    before = facts(host)
    for port, config in divided:
        port.next_functions = config.numVirtualFunction if config.sriovEnabled else 0
        if host.state.rebinds_without_reboot:
            port.functions = port.next_functions
    for gpu, config in changes:
        if config.passthruEnabled != gpu.passthrough_enabled:
            gpu.passthrough_enabled, gpu.waits_for_maintenance = config.passthruEnabled, False
            if host.state.rebinds_without_reboot:
                gpu.passthrough_active = gpu.passthrough_enabled
        if config.hardwareLabel is not None:
            gpu.label = config.hardwareLabel or None
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def update_labels(host: HostEntity, call: Call, config: Any) -> None:
    """UpdateAssignableHardwareConfig: the overrides are all that there are then. Raises HostConfigFault."""
    labels = {}
    for override in config.attributeOverride:
        if override.name != HARDWARE_LABEL:
            raise _fault(f"The simulated vCenter keeps no override of {override.name}.")
        labels[_device(host, override.instanceId.removeprefix("pcie-")).pci_id] = override.value or None
    before = facts(host)
    for device in host.state.devices:
        device.label = labels.get(device.pci_id)
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def _port(host: HostEntity, config: Any) -> NetworkPort:
    """The network port that a HostSriovConfig can be given to."""
    port = next((candidate for candidate in host.state.ports if candidate.pci_id == config.id.lower()), None)
    if port is None or not port.max_functions:
        raise _fault(f"Device {config.id} of host {host.name} has no SR-IOV.")
    if config.sriovEnabled and not 0 < config.numVirtualFunction <= port.max_functions:
        raise _fault(f"Device {config.id} of host {host.name} has {port.max_functions} virtual functions at the most.")
    if config.applyNow and not host.state.rebinds_without_reboot:
        raise _fault(f"Host {host.name} cannot divide device {config.id} without a reboot.")
    held_pci_ids = {pci_id for vm in host.running_vms() for _, pci_id in vm.state.held}
    if held_pci_ids.intersection(port.function_ids()):
        raise _fault(f"Virtual functions of device {config.id} of host {host.name} are in use.")
    return port


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
    held_pci_ids = {pci_id for vm in host.running_vms() for _, pci_id in vm.state.held}
    if gpu.pci_id in held_pci_ids or any(seat.pci_id == gpu.pci_id for seat in host.seats()):
        raise _fault(f"Device {gpu.pci_id} of host {host.name} is in use.")


def _fault(text: str) -> Exception:
    fault: Exception = vim.fault.HostConfigFault(msg=text)
    return fault
