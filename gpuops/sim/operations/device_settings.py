"""Sets graphics, passthrough, hardware labels, virtual functions and DirectPath modes of a host's devices.

UpdateGraphicsConfig replaces the whole configuration; a device left out takes the host's default (vSphere API,
HostGraphicsManager). A graphics type takes effect at the next boot; it cannot change while VMs run on the host's GPUs;
the vGPU mode only on an empty GPU that has it, and never in MIG mode (NVIDIA AI Enterprise docs, vSphere API 8.0.3).
The fault kinds are from memory: the API declares none.

UpdatePassthruConfig and UpdateAssignableHardwareConfig are in force at once when the host can rebind devices without a
reboot, otherwise after one; `applyNow` on a host that cannot is refused (vSphere API, HostPciPassthruConfig). No
document says when hardware labels take effect: here it is at once, from memory.

Modes are set by the configure call of vSphere 9.1 (vSphere Automation API 9.1,
vcenter.host.hardware.direct_path_devices; vSphere API 9.1, HostPciPassthruInfoDirectPathState). Not documented, and
chosen here: a vGPU size is in force at once. Whether VMs or the host have a GPU changes in maintenance mode if the host
can rebind devices (at once if it is in it already), and otherwise after a reboot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.inventory import faults
from gpuops.sim.render.host_graphics import HARDWARE_LABEL
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.direct_path import DIRECT_PATH, HOST, SIZES, configurable_modes, configured_mode
from gpuops.sim.state.gpu_admission import VgpuPolicy
from gpuops.sim.state.host_state import SHARED_DIRECT, HostGpu, OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.state.host_state import NetworkPort

GRAPHICS_TYPES: Final = ("basic", "shared", "direct", SHARED_DIRECT)


def update_graphics(host: HostEntity, call: Call, config: Any) -> None:
    """Apply a HostGraphicsConfig. Raises InvalidArgument, ResourceInUse; on a fault nothing has changed.

    A GPU that the config does not name gets the host's default graphics type.
    """
    default, policy = config.hostDefaultGraphicsType, config.sharedPassthruAssignmentPolicy
    if default not in ("shared", SHARED_DIRECT):
        raise faults.wrong_argument("config.hostDefaultGraphicsType")
    if policy not in list(VgpuPolicy):
        raise faults.wrong_argument("config.sharedPassthruAssignmentPolicy")
    requested_devices = {device.deviceId.lower(): device for device in config.deviceType}
    unknown = [pci_id for pci_id in requested_devices if host.state.gpu(pci_id) is None]
    if unknown:
        raise faults.wrong_argument("config.deviceType", f"Host {host.name} has no GPU {unknown[0]}.")
    changes = [
        (gpu, *_requested_setting(host, gpu, requested_devices.get(gpu.pci_id), default))
        for gpu in host.state.gpus
        if gpu.listed  # other GPUs have no graphics settings
    ]
    before = facts(host)
    for gpu, graphics_type, mode in changes:
        gpu.configured_type = graphics_type
        if "vgpu-mode-change" in host.world.deviations and mode is not gpu.mode:  # assumption: vgpu-mode-change
            gpu.next_mode = mode
        else:
            gpu.mode = mode
    host.state.default_graphics_type, host.state.policy = default, VgpuPolicy(policy)
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def facts(host: HostEntity) -> dict[str, Any]:
    """Return what the ledger records about a host's GPUs, other devices and the virtual functions of its ports."""
    return {
        "default_graphics_type": host.state.default_graphics_type,
        "policy": host.state.policy.value,
        "gpus": {
            gpu.pci_id: {
                "type": gpu.graphics_type,
                "configured_type": gpu.configured_type,
                "mode": gpu.mode.value,
                "passthrough_enabled": gpu.passthrough_enabled,
                "passthrough_active": gpu.passthrough_active,
                "label": gpu.label,
            }
            for gpu in host.state.gpus
        },
        "other_devices": {
            device.pci_id: {
                "passthrough_enabled": device.passthrough_enabled,
                "passthrough_active": device.passthrough_active,
                "label": device.label,
            }
            for device in host.state.others
        },
        "functions": {port.pci_id: [port.functions, port.next_functions] for port in host.state.ports},
    }


def _requested_setting(host: HostEntity, gpu: HostGpu, device: Any, default: str) -> tuple[str, GpuMode]:
    graphics_type = default if device is None else device.graphicsType
    if graphics_type not in GRAPHICS_TYPES:
        raise faults.wrong_argument("config.deviceType.graphicsType")
    mode = gpu.mode if device is None or not device.vgpuMode else _checked_vgpu_mode(gpu, device.vgpuMode)
    if graphics_type != gpu.configured_type and host.seats():
        raise faults.resource_in_use(
            host.name, f"No graphics type can change while vGPUs run on host {host.name}.", None
        )
    if mode is not gpu.mode and any(seat.pci_id == gpu.pci_id for seat in host.seats()):
        raise faults.resource_in_use(
            gpu.pci_id, f"The vGPU mode cannot change while vGPUs run on GPU {gpu.pci_id}.", None
        )
    return graphics_type, mode


def _checked_vgpu_mode(gpu: HostGpu, text: str) -> GpuMode:
    if text not in (GpuMode.SAME_SIZE, GpuMode.MIXED_SIZE):
        raise faults.wrong_argument("config.deviceType.vgpuMode")
    impossible = gpu.mode is GpuMode.MULTI_INSTANCE or (text == GpuMode.MIXED_SIZE and not gpu.board.mixed_size)
    if impossible:
        raise faults.wrong_argument("config.deviceType.vgpuMode", f"GPU {gpu.pci_id} cannot be set to {text}.")
    return GpuMode(text)


NO_IMPACT: Final = "NONE"
MAINTENANCE: Final = "HOST_MAINTENANCE_MODE_REQUIRED"
REBOOT: Final = "HOST_REBOOT_REQUIRED"


def set_direct_path_mode(host: HostEntity, call: Call, pci_id: str, mode: str | None) -> list[str]:
    """Set the DirectPath mode of a device and return the impacts of the change.

    None, or the mode that is already configured, changes nothing. Raises NotFound for an unknown device,
    InvalidArgument for a mode that it does not have, HostConfigFault for a device in use; then nothing has changed.
    """
    device = host.state.device(pci_id)
    if device is None:
        raise faults.not_found(f"Host {host.name} has no device {pci_id} whose mode can be set.")
    if mode is None or mode == configured_mode(device):
        return [NO_IMPACT]
    if mode not in configurable_modes(device):
        raise vmodl.fault.InvalidArgument(msg=f"Device {pci_id} cannot be configured to {mode}.")
    held_pci_ids = host.held_pci_ids()
    if device.pci_id in held_pci_ids or any(seat.pci_id == device.pci_id for seat in host.seats()):
        raise faults.host_config(f"Device {pci_id} of host {host.name} is in use.")
    before = facts(host)
    _set_mode(device, mode)
    impact = _apply_where_possible(host, device)
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))
    return [impact]


def _set_mode(gpu: HostGpu | OtherHostDevice, mode: str) -> None:
    gpu.passthrough_enabled = mode == DIRECT_PATH
    if isinstance(gpu, OtherHostDevice):
        return
    if mode == HOST:
        gpu.configured_type = "shared"
    elif mode in SIZES:
        gpu.configured_type = SHARED_DIRECT
        gpu.mode = gpu.mode if gpu.mode is GpuMode.MULTI_INSTANCE else SIZES[mode]


def _apply_where_possible(host: HostEntity, gpu: HostGpu | OtherHostDevice) -> str:
    """Put a changed mode in force if that is possible now; return what it takes to put the rest in force."""
    rebinds = gpu.passthrough_enabled != gpu.passthrough_active and host.state.rebinds_without_reboot
    gpu.waits_for_maintenance = rebinds and not host.state.in_maintenance
    if gpu.waits_for_maintenance:
        return MAINTENANCE
    if rebinds:
        gpu.passthrough_active = gpu.passthrough_enabled
    in_force = gpu.passthrough_enabled == gpu.passthrough_active
    if isinstance(gpu, HostGpu):
        in_force = in_force and gpu.configured_type == gpu.graphics_type
    return NO_IMPACT if in_force else REBOOT


def enter_maintenance(host: HostEntity) -> None:
    """Put the passthrough settings in force that waited for maintenance mode."""
    waiting = [device for device in host.state.devices if device.waits_for_maintenance]
    for device in waiting:
        device.passthrough_active, device.waits_for_maintenance = device.passthrough_enabled, False
    if waiting:
        host.graphics_changed()


def update_passthrough(host: HostEntity, call: Call, configs: list[Any]) -> None:
    """Apply HostPciPassthruConfigs. Raises HostConfigFault; on a fault nothing has changed."""
    port_changes = [(_port(host, config), config) for config in configs if isinstance(config, vim.host.SriovConfig)]
    device_changes = [
        (_device(host, config.id), config) for config in configs if not isinstance(config, vim.host.SriovConfig)
    ]
    for device, config in device_changes:
        _refuse_passthrough(host, device, config)
    before = facts(host)
    for port, config in port_changes:
        port.next_functions = config.numVirtualFunction if config.sriovEnabled else 0
        if host.state.rebinds_without_reboot:
            port.functions = port.next_functions
    for device, config in device_changes:
        if config.passthruEnabled != device.passthrough_enabled:
            device.passthrough_enabled, device.waits_for_maintenance = config.passthruEnabled, False
            if host.state.rebinds_without_reboot:
                device.passthrough_active = device.passthrough_enabled
        if config.hardwareLabel is not None:
            device.label = config.hardwareLabel or None
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def update_labels(host: HostEntity, call: Call, config: Any) -> None:
    """UpdateAssignableHardwareConfig: these overrides replace all hardware labels of the host.

    Raises HostConfigFault for an unknown device or attribute.
    """
    labels = {}
    for override in config.attributeOverride:
        if override.name != HARDWARE_LABEL:
            raise faults.host_config(
                f"The simulated vCenter supports no override of {override.name}, only of {HARDWARE_LABEL}."
            )
        labels[_device(host, override.instanceId.removeprefix("pcie-")).pci_id] = override.value or None
    before = facts(host)
    for device in host.state.devices:
        device.label = labels.get(device.pci_id)
    host.graphics_changed()
    host.world.ledger.record(call, host, before=before, after=facts(host))


def _port(host: HostEntity, config: Any) -> NetworkPort:
    """Return the network port of a HostSriovConfig. Raises HostConfigFault where the config cannot be applied."""
    port = next((candidate for candidate in host.state.ports if candidate.pci_id == config.id.lower()), None)
    if port is None or not port.max_functions:
        raise faults.host_config(f"Device {config.id} of host {host.name} has no SR-IOV.")
    if config.sriovEnabled and not 0 < config.numVirtualFunction <= port.max_functions:
        raise faults.host_config(
            f"Device {config.id} of host {host.name} has at most {port.max_functions} virtual functions."
        )
    if config.applyNow and not host.state.rebinds_without_reboot:
        raise faults.host_config(
            f"Host {host.name} cannot change the virtual functions of device {config.id} without a reboot."
        )
    held_pci_ids = host.held_pci_ids()
    if held_pci_ids.intersection(port.function_ids()):
        raise faults.host_config(f"Virtual functions of device {config.id} of host {host.name} are in use.")
    return port


def _device(host: HostEntity, pci_id: str) -> HostGpu | OtherHostDevice:
    device = host.state.device(pci_id)
    if device is None:
        raise faults.host_config(f"Device {pci_id} of host {host.name} does not exist or cannot be passed through.")
    return device


def _refuse_passthrough(host: HostEntity, device: HostGpu | OtherHostDevice, config: Any) -> None:
    if config.applyNow and not host.state.rebinds_without_reboot:
        raise faults.host_config(f"Host {host.name} cannot rebind device {device.pci_id} without a reboot.")
    if config.passthruEnabled == device.passthrough_enabled:
        return
    held_pci_ids = host.held_pci_ids()
    if device.pci_id in held_pci_ids or any(seat.pci_id == device.pci_id for seat in host.seats()):
        raise faults.host_config(f"Device {device.pci_id} of host {host.name} is in use.")
