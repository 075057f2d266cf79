"""Graphics and passthrough of a host: configuration, offered vGPU types, and the vGPUs that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.sim.render.pci import bridge_of, device_name, network_ports
from gpuops.sim.state.board import GpuMode, Sharing, VgpuType
from gpuops.sim.state.direct_path import configurable_modes, configured_mode
from gpuops.sim.state.gpu_admission import GpuLoad, RunningVgpu, offered_types, supported_types
from gpuops.sim.state.host_state import HostGpu, HostState, NetworkPort, OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity

STUN_SECONDS_PER_GIB: Final = 1.4
"""Stun of a vMotion at 10 Gbit/s per GiB of frame buffer in use (VMware vSphere 7.0, vMotion of vGPU VMs)."""

HARDWARE_LABEL: Final = "hardwareLabel"
"""The attribute of assignable hardware that a label overrides."""


def stun_s(type_: VgpuType) -> int | None:
    """Return vCenter's estimate in stun_time_s of a vMotion's stun for one vGPU; None for types other than C and Q.

    Source: VMware vSphere 8.0 docs, vMotion stun time limit.
    """
    return max(1, round((type_.framebuffer_mib >> 10) * STUN_SECONDS_PER_GIB)) if type_.series in "CQ" else None


def graphics_info(host: HostState, seats: tuple[RunningVgpu, ...]) -> list[Any]:
    """`config.graphicsInfo`: every GPU of the host's graphics stack, with the VMs that use it now."""
    return [
        vim.host.GraphicsInfo(
            deviceName=device_name(gpu),
            vendorName="NVIDIA",
            pciId=gpu.pci_id,
            graphicsType=gpu.graphics_type,
            vgpuMode=gpu.mode.value if gpu.serves_vgpus else GpuMode.NONE.value,
            memorySizeInKB=gpu.board.framebuffer_mib << 10,
            vm=[vim.VirtualMachine(vm) for vm in dict.fromkeys(seat.vm for seat in seats if seat.pci_id == gpu.pci_id)],
        )
        for gpu in host.gpus
        if gpu.listed
    ]


def graphics_config(host: HostState) -> Any:
    """`config.graphicsConfig`: the configured settings; graphicsInfo has the active ones."""
    return vim.host.GraphicsConfig(
        hostDefaultGraphicsType=host.default_graphics_type,
        sharedPassthruAssignmentPolicy=host.policy.value,
        deviceType=[
            vim.host.GraphicsConfig.DeviceType(
                deviceId=gpu.pci_id,
                graphicsType=gpu.configured_type,
                # MIG mode has no value here: it is switched on the host, not through the API.
                vgpuMode=None
                if gpu.mode is GpuMode.MULTI_INSTANCE
                else (gpu.next_mode if gpu.next_mode in (GpuMode.SAME_SIZE, GpuMode.MIXED_SIZE) else gpu.mode).value,
            )
            for gpu in host.gpus
            if gpu.listed
        ],
    )


def offered(gpus: list[GpuLoad]) -> list[str]:
    """`config.sharedPassthruGpuTypes`: the types the host offers now."""
    return list(offered_types(gpus))


def capabilities(host: HostState, gpus: list[GpuLoad]) -> list[Any]:
    """`config.sharedGpuCapabilities` of every vGPU type that the GPUs support in their current modes."""
    return [
        vim.host.SharedGpuCapabilities(
            vgpu=type_.name,
            diskSnapshotSupported=True,
            memorySnapshotSupported=type_.name not in host.no_suspend,
            suspendSupported=type_.name not in host.no_suspend,
            migrateSupported=type_.name not in host.no_suspend,
        )
        for type_ in supported_types(gpus)
    ]


def passthrough_info(host: HostState) -> list[Any]:
    """`config.pciPassthruInfo`: configured and active passthrough; they differ while the host waits for a reboot."""
    nics = [passthrough for port in network_ports(host) for passthrough in _port_passthrough(port)]
    bridges = [
        vim.host.PciPassthruInfo(
            id=bridge_of(device.pci_id),
            dependentDevice=bridge_of(device.pci_id),
            passthruEnabled=False,
            passthruCapable=False,
            passthruActive=False,
        )
        for device in host.devices
    ]
    return nics + bridges + [_device_passthrough(device) for device in host.devices]


def _port_passthrough(port: NetworkPort) -> list[Any]:
    """Return a network port and its virtual functions; passthrough of the functions is always active (from memory)."""
    fields = {"id": port.pci_id, "dependentDevice": port.pci_id}
    flags = {"passthruEnabled": False, "passthruCapable": True, "passthruActive": False}
    if not port.max_functions:
        return [vim.host.PciPassthruInfo(**fields, **flags)]
    sriov_port = vim.host.SriovInfo(
        **fields,
        **flags,
        sriovCapable=True,
        sriovEnabled=port.next_functions > 0,
        sriovActive=port.functions > 0,
        numVirtualFunctionRequested=port.next_functions,
        numVirtualFunction=port.functions,
        maxVirtualFunctionSupported=port.max_functions,
    )
    function_flags = {"passthruEnabled": True, "passthruCapable": True, "passthruActive": True}
    return [
        sriov_port,
        *(vim.host.PciPassthruInfo(id=id_, dependentDevice=id_, **function_flags) for id_ in port.function_ids()),
    ]


def _device_passthrough(device: HostGpu | OtherHostDevice) -> Any:
    return vim.host.PciPassthruInfo(
        id=device.pci_id,
        dependentDevice=device.pci_id,
        passthruEnabled=device.passthrough_enabled,
        passthruCapable=True,
        passthruActive=device.passthrough_active,
        hardwareLabel=device.label,
        directPathState=vim.host.PciPassthruInfo.DirectPathState(
            mode=configured_mode(device), configurableModes=configurable_modes(device)
        ),
    )


def hardware_labels(host: HostState) -> Any:
    """`config.assignableHardwareConfig`: the hardware labels of devices. The name of the attribute is from memory."""
    return vim.host.AssignableHardwareConfig(
        attributeOverride=[
            vim.host.AssignableHardwareConfig.AttributeOverride(
                instanceId=f"pcie-{device.pci_id}", name=HARDWARE_LABEL, value=device.label
            )
            for device in host.devices
            if device.label is not None
        ]
    )


def bindings(host: HostEntity) -> list[Any]:
    """`config.assignableHardwareBinding`: which running VM holds which DirectPath device."""
    return [
        vim.host.AssignableHardwareBinding(instanceId=f"pcie-{pci_id}", vm=vm.ref, pciId=pci_id, deviceKey=key)
        for vm in host.running_vms()
        for key, pci_id in vm.state.held
    ]


def vgpu_devices(host: HostState) -> list[Any]:
    """RetrieveVgpuDeviceInfo, and `vgpuDeviceInfo` of the config target: one per GPU model that serves vGPUs."""
    models = {gpu.board.name: gpu for gpu in host.gpus if gpu.serves_vgpus}
    return [
        vim.vm.VgpuDeviceInfo(
            name=name,
            deviceName=name,
            deviceVendorId=vendor_and_device(gpu),
            maxFbSizeInGib=gpu.board.framebuffer_mib >> 10,
            timeSlicedCapable=bool(gpu.board.types_in(GpuMode.SAME_SIZE)),
            migCapable=bool(gpu.board.types_in(GpuMode.MULTI_INSTANCE)),
            computeProfileCapable=any(type_.series == "C" for type_ in gpu.board.types),
            quadroProfileCapable=any(type_.series == "Q" for type_ in gpu.board.types),
        )
        for name, gpu in models.items()
    ]


def vgpu_profiles(host: HostState) -> list[Any]:
    """RetrieveVgpuProfileInfo, and `vgpuProfileInfo` of the config target."""
    models = {gpu.board.name: gpu for gpu in host.gpus if gpu.serves_vgpus}
    # a GPU model offers the types of each mode that at least one GPU of this model is in
    modes = {(gpu.board.name, gpu.mode): gpu for gpu in host.gpus if gpu.serves_vgpus}
    types = {
        type_.name: (type_, models[name]) for (name, mode), gpu in modes.items() for type_ in gpu.board.types_in(mode)
    }
    return [_profile(type_, gpu) for type_, gpu in types.values()]


def vendor_and_device(gpu: HostGpu) -> int:
    """`deviceVendorId`: the device id above the vendor id (vSphere API, VirtualMachineVgpuProfileInfo)."""
    return gpu.board.device_id << 16 | NVIDIA_VENDOR_ID


def _profile(type_: VgpuType, gpu: HostGpu) -> Any:
    size_gib = type_.framebuffer_mib >> 10
    stun_time_s = stun_s(type_)
    estimates = [vim.vm.VMotionStunTimeInfo(name="", migrationBW=10_000, stunTime=stun_time_s)] if stun_time_s else []
    return vim.vm.VgpuProfileInfo(
        name=type_.name,
        profileName=type_.name,
        deviceVendorId=vendor_and_device(gpu),
        fbSizeInGib=size_gib,
        profileSharing=(Sharing.MIG if type_.instance else Sharing.TIME_SLICED).value,
        profileClass="compute" if type_.series == "C" else "quadro",
        stunTimeEstimates=estimates,
    )
