"""What esxcli shows of a host, as rows of named values; `objects.esxcli` answers with them.

The columns are those that ESXi prints, less those of which the simulated host knows nothing (of a PCI device: revision,
interrupts, slot). Sources: "vSphere ML Accelerator Spectrum Deep Dive" by Frank Denneman for `graphics`, an output of
ESXi 6.7 in VMware's community (thread 947254) for `hardware pci list`, the type information in govmomi's simulator for
`software vib list`; `graphics device stats list` and `system module list` are from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.render.pci import BRIDGE, bridge_of, pci_devices
from gpuops.sim.state.host_state import HostGpu, HostState, OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.vcenter.counters import Values

Row = Mapping[str, str]
"""By the column's name without its blanks, as esxcli's XML has it."""

_TYPES: Final = {"basic": "Basic", "shared": "Shared", "sharedDirect": "SharedPassthru"}
_ACCEPTANCE: Final = {
    "vmware_certified": "VMwareCertified",
    "vmware_accepted": "VMwareAccepted",
    "partner": "PartnerSupported",
    "community": "CommunitySupported",
}
_PASSTHROUGH: Final = "VM Passthru"
_VMKERNEL: Final = "VMkernel"


def graphics_devices(host: HostEntity) -> list[Row]:
    """`graphics device list`: the GPUs of the host's graphics stack."""
    seats = host.seats()
    return [
        {
            "Address": gpu.pci_id,
            "VendorName": "NVIDIA Corporation",
            "DeviceName": gpu.board.name,
            "ModuleName": "nvidia" if host.state.driver_version else "None",
            "GraphicsType": _TYPES[gpu.graphics_type],
            "MemorySizeinKB": str(gpu.board.framebuffer_mib << 10),
            "NumberofVMs": str(len({seat.vm for seat in seats if seat.pci_id == gpu.pci_id})),
        }
        for gpu in host.state.gpus
        if gpu.listed
    ]


def graphics_stats(host: HostState, measured: Values) -> list[Row]:
    """`graphics device stats list`: what the driver says of each GPU now, as the performance counters have it."""
    return [
        {
            "Address": gpu.pci_id,
            "DriverVersion": host.driver_version,
            "GPUUtilization": f"{measured['gpu.utilization.average', gpu.pci_id] // 100}%",
            "MemoryUsed": f"{measured['gpu.mem.usage.average', gpu.pci_id] // 100}%",
            "Temperature": f"{measured['gpu.temperature.average', gpu.pci_id]}C",
        }
        for gpu in host.gpus
        if ("gpu.utilization.average", gpu.pci_id) in measured
    ]


def graphics_host(host: HostState) -> Row:
    """`graphics host get`."""
    return {
        "DefaultGraphicsType": _TYPES[host.default_graphics_type],
        "SharedPassthruAssignmentPolicy": host.policy.value.capitalize(),
    }


def pci_rows(host: HostState) -> list[Row]:
    """`hardware pci list`."""
    gpus = {gpu.pci_id: gpu for gpu in host.devices}
    nodes = {bridge_of(gpu.pci_id): gpu.numa_node for gpu in host.devices}
    rows: list[Row] = []
    nics = 0
    for device in pci_devices(host):
        gpu = gpus.get(device.id)
        node = gpu.numa_node if gpu is not None else nodes.get(device.id, 0)
        row = {**_identity(device), **_owner(host, device, gpu), "NUMANode": "-1" if node is None else str(node)}
        if gpu is None and device.classId != BRIDGE:
            row["VMkernelName"], nics = f"vmnic{nics}", nics + 1
        rows.append(row)
    return rows


def _identity(device: Any) -> dict[str, str]:
    address = PciAddress.parse(device.id)
    ids = {"VendorID": device.vendorId, "DeviceID": device.deviceId}
    ids |= {"SubVendorID": device.subVendorId, "SubDeviceID": device.subDeviceId, "DeviceClass": device.classId}
    return {
        "Address": str(address),
        "Segment": f"0x{address.segment:04x}",
        "Bus": f"0x{address.bus:02x}",
        "Slot": f"0x{address.slot:02x}",
        "Function": f"0x{address.function:x}",
        "VMkernelName": "",
        "VendorName": device.vendorName,
        "DeviceName": device.deviceName,
        **{name: f"0x{value & 0xFFFF:04x}" for name, value in ids.items()},
        "DeviceClassName": device.deviceClassName,
    }


def _owner(host: HostState, device: Any, gpu: HostGpu | OtherHostDevice | None) -> dict[str, str]:
    """Whose the device is and will be after a reboot, and the kernel module that drives it."""
    if gpu is None:
        module = "None" if device.classId == BRIDGE else "nmlx5_core"
        return {
            "ConfiguredOwner": _VMKERNEL,
            "CurrentOwner": _VMKERNEL,
            "ModuleName": module,
            "PassthruCapable": str(device.classId != BRIDGE).lower(),
        }
    driver = "nvidia" if host.driver_version and isinstance(gpu, HostGpu) else "None"
    return {
        "ConfiguredOwner": _PASSTHROUGH if gpu.passthrough_enabled else _VMKERNEL,
        "CurrentOwner": _PASSTHROUGH if gpu.passthrough_active else _VMKERNEL,
        "ModuleName": "pciPassthru" if gpu.passthrough_active else driver,
        "PassthruCapable": "true",
    }


def vib_rows(packages: Iterable[Any]) -> list[Row]:
    """`software vib list` of the host's SoftwarePackages."""
    return [
        {
            "Name": package.name,
            "Version": package.version,
            "Vendor": package.vendor,
            "AcceptanceLevel": _ACCEPTANCE[package.acceptanceLevel],
            "InstallDate": f"{package.creationDate:%Y-%m-%d}" if package.creationDate else "",
            "Platforms": "host",
        }
        for package in packages
    ]


def module_rows(modules: Iterable[Any]) -> list[Row]:
    """`system module list` of the host's KernelModuleInfos."""
    return [
        {"Name": module.name, "IsLoaded": str(module.loaded).lower(), "IsEnabled": str(module.enabled).lower()}
        for module in modules
    ]
