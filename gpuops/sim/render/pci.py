"""PCI devices of a host, and its vendor device groups: vGPUs on GPUs that NVLink connects.

Ids of devices are signed shorts, as the API sends them. Names and rules of groups: `Nvidia:2@grid_a100d-80c%NVLink`,
full-frame-buffer types only, GPUs out of MIG mode (NVIDIA AI Enterprise docs, "vGPU for Compute"; vSphere API,
VirtualMachineVendorDeviceGroupInfo).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyVmomi import vim

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.sim.render.defaults import default, filled
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import HostGpu, HostState, NetworkPort, OtherHostDevice

INTEL: Final = 0x8086
MELLANOX: Final = 0x15B3
NIC_DEVICE: Final = 0x101D
FUNCTION_DEVICE: Final = 0x101E
ROOT_PORT: Final = 0x347A
DISPLAY_3D: Final = 0x0302
ETHERNET: Final = 0x0200
BRIDGE: Final = 0x0604
FIRST_NIC_BUS: Final = 0x31
NIC_NAME: Final = "MT2892 Family [ConnectX-6 Dx]"
FUNCTION_NAME: Final = "ConnectX Family mlx5Gen Virtual Function"
"""Names and ids: PCI ID Repository."""


def signed_short(value: int) -> int:
    """A 16-bit id as the API sends it: ids of 0x8000 and above are negative."""
    return value - 0x10000 if value >= 0x8000 else value


def _signed_byte(value: int) -> int:
    return value - 0x100 if value >= 0x80 else value


def pci_devices(host: HostState) -> list[Any]:
    """`hardware.pciDevice`: what lspci would list, in order of address."""
    nics = [
        device for port in network_ports(host) for device in (_nic(port.pci_id), *map(_function, port.function_ids()))
    ]
    return nics + [device for gpu in host.devices for device in (_root_port(gpu), pci_device(gpu))]


def network_ports(host: HostState) -> list[NetworkPort]:
    """Return the ports of the host's network cards; their order gives the names vmnic0, vmnic1 and so on.

    First come those of the built-in card, on a bus of the first NUMA node without a GPU, then the declared ones.
    """
    used_buses = {PciAddress.parse(gpu.pci_id).bus for gpu in host.gpus}
    bus = next(bus for bus in range(FIRST_NIC_BUS, FIRST_NIC_BUS + 256) if bus not in used_buses)
    ports_by_id = {port.pci_id: port for port in host.ports}
    built_in_ids = (f"0000:{bus:02x}:00.{port}" for port in range(host.model.nics))
    # a declared port at the address of a built-in one replaces it
    built_in_ports = {pci_id: ports_by_id.get(pci_id) or NetworkPort(pci_id) for pci_id in built_in_ids}
    return list((built_in_ports | ports_by_id).values())


def nic_addresses(host: HostState) -> list[str]:
    return [port.pci_id for port in network_ports(host)]


def nic_names(host: HostState) -> list[str]:
    return [f"vmnic{number}" for number in range(len(network_ports(host)))]


def gpu_device(gpu: HostGpu) -> Any:
    """The HostPciDevice of one GPU."""
    return _device(
        gpu.pci_id,
        class_id=DISPLAY_3D,
        vendor=(NVIDIA_VENDOR_ID, "NVIDIA Corporation"),
        device=(gpu.board.device_id, gpu.board.name),
        subsystem=(NVIDIA_VENDOR_ID, gpu.board.subsystem_id),
        class_name="3D controller",
        parent=bridge_of(gpu.pci_id),
    )


def pci_device(device: HostGpu | OtherHostDevice) -> Any:
    """The HostPciDevice of a GPU or another device."""
    if isinstance(device, HostGpu):
        return gpu_device(device)
    return _device(
        device.pci_id,
        class_id=device.pci_class,
        vendor=(device.vendor_id, device.vendor_name),
        device=(device.device_id, device.device_name),
        subsystem=(device.vendor_id, device.subsystem_id),
        class_name=device.class_name,
        parent=bridge_of(device.pci_id),
    )


def bridge_of(pci_id: str) -> str:
    """Return the PCI address of the root port of a device: one bus below it, or the next slot on bus 0."""
    address = PciAddress.parse(pci_id)
    if not address.bus:
        return str(PciAddress(address.segment, 0, address.slot + 1, 0))
    return str(PciAddress(address.segment, address.bus - 1, 0, 0))


def device_name(gpu: HostGpu) -> str:
    """The name the host's device list and config target show."""
    return gpu.board.name


def _root_port(gpu: HostGpu | OtherHostDevice) -> Any:
    return _device(
        bridge_of(gpu.pci_id),
        class_id=BRIDGE,
        vendor=(INTEL, "Intel Corporation"),
        device=(ROOT_PORT, "Xeon PCIe Root Port"),
        subsystem=(INTEL, 0),
        class_name="PCI bridge",
    )


def _nic(pci_id: str, device: tuple[int, str] = (NIC_DEVICE, NIC_NAME)) -> Any:
    return _device(
        pci_id,
        class_id=ETHERNET,
        vendor=(MELLANOX, "Mellanox Technologies"),
        device=device,
        subsystem=(MELLANOX, 0x0043),
        class_name="Ethernet controller",
    )


def _function(pci_id: str) -> Any:
    return _nic(pci_id, (FUNCTION_DEVICE, FUNCTION_NAME))


def _device(
    pci_id: str,
    *,
    class_id: int,
    vendor: tuple[int, str],
    device: tuple[int, str],
    subsystem: tuple[int, int],
    class_name: str,
    parent: str | None = None,
) -> Any:
    """Return a HostPciDevice; `vendor` and `device` are (id, name), `subsystem` is (vendor id, device id)."""
    address = PciAddress.parse(pci_id)
    return filled(
        vim.host.PciDevice,
        id=pci_id,
        classId=signed_short(class_id),
        bus=_signed_byte(address.bus),
        slot=address.slot,
        function=address.function,
        vendorId=signed_short(vendor[0]),
        subVendorId=signed_short(subsystem[0]),
        vendorName=vendor[1],
        deviceId=signed_short(device[0]),
        subDeviceId=signed_short(subsystem[1]),
        parentBridge=parent,
        deviceName=device[1],
        deviceClassName=class_name,
    )


Passthrough = vim.vm.device.VirtualPCIPassthrough


@dataclass(frozen=True, slots=True)
class OfferedGroup:
    """A group by name; `profiles` are its members in order of their sequence ids."""

    name: str
    profiles: tuple[str, ...]


def offered_groups(host: HostState) -> tuple[OfferedGroup, ...]:
    """Return the device groups that the host offers: one for each set of NVLink-connected GPUs and vGPU type."""
    groups = []
    for joined in host.nvlink_sets().values():
        is_usable = all(gpu.serves_vgpus and gpu.mode is GpuMode.SAME_SIZE for gpu in joined)
        if is_usable and len(joined) > 1:
            groups += [
                OfferedGroup(f"Nvidia:{len(joined)}@{name}%NVLink", (name,) * len(joined))
                for name in joined[0].board.nvlink_types
            ]
    return tuple(dict.fromkeys(groups))


def group_info(group: OfferedGroup) -> Any:
    """VirtualMachineVendorDeviceGroupInfo: the group with template devices to copy into a spec."""
    return vim.vm.VendorDeviceGroupInfo(
        name=group.name,
        deviceGroupName=group.name,
        deviceGroupDescription=f"{len(group.profiles)} vGPUs joined by NVLink",
        componentDeviceInfo=[
            default(
                "VirtualMachineVendorDeviceGroupInfoComponentDeviceInfo",
                deviceName=profile,
                device=Passthrough(
                    key=-1 - number,
                    backing=Passthrough.VmiopBackingInfo(vgpu=profile),
                    deviceGroupInfo=vim.vm.device.VirtualDevice.DeviceGroupInfo(groupInstanceKey=-1, sequenceId=number),
                ),
            )
            for number, profile in enumerate(group.profiles)
        ],
    )
