"""Answers QueryConfigTarget (what hosts offer VMs) and QueryConfigOption (the virtual hardware of a version).

The device options are those that clients of GPUs look at; a full vCenter lists some forty kinds. An answer is made once
for a version and a choice of guests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.switches import PortgroupEntity
from gpuops.sim.render import distributed, host_graphics
from gpuops.sim.render.defaults import EPOCH, default, filled
from gpuops.sim.render.devices import PLACEHOLDERS, devices
from gpuops.sim.render.pci import group_info, offered_groups, pci_device
from gpuops.sim.state.host_state import HostState
from gpuops.sim.state.vm_state import Template, VmState

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity


def config_target(hosts: list[HostEntity]) -> Any:
    """Return the ConfigTarget of one host, or for a cluster the union of its hosts' offers (from memory)."""
    states = [host.state for host in hosts]
    types = dict.fromkeys(
        name for host in hosts for name in host_graphics.offered(host.state.for_admission(host.seats()))
    )
    networks = list({network.moid: network for host in hosts for network in host.read("network")}.values())
    portgroups = [network for network in networks if isinstance(network, PortgroupEntity)]
    groups = {group.name: group for host in hosts for group in offered_groups(host.state)}
    return default(
        "ConfigTarget",
        numCpus=max((state.model.threads for state in states), default=0),
        numCpuCores=max((state.model.cores for state in states), default=0),
        numNumaNodes=max((state.model.numa_nodes for state in states), default=0),
        maxCpusPerHost=max((state.model.threads for state in states), default=0),
        maxMemMBOptimalPerf=max((state.model.memory_mib for state in states), default=0),
        supportedMaxMemMB=max((state.model.memory_mib for state in states), default=0),
        datastore=_datastores(hosts),
        network=[
            vim.vm.NetworkInfo(name=network.name, network=network.read("summary"))
            for network in networks
            if network.wsdl_name == "Network"
        ],
        distributedVirtualPortgroup=[distributed.portgroup_info(portgroup) for portgroup in portgroups],
        distributedVirtualSwitch=[
            distributed.switch_info(switch) for switch in dict.fromkeys(portgroup.switch() for portgroup in portgroups)
        ],
        pciPassthrough=[
            vim.vm.PciPassthroughInfo(name=device.device_name, pciDevice=pci_device(device), systemId=state.system_id)
            for state in states
            for device in state.devices
            if device.passthrough_active
        ],
        sharedGpuPassthroughTypes=[vim.vm.PciSharedGpuPassthroughInfo(name=name, vgpu=name) for name in types],
        dynamicPassthrough=dynamic_devices(states),
        vgpuDeviceInfo=_distinct_by_name(item for state in states for item in host_graphics.vgpu_devices(state)),
        vgpuProfileInfo=_distinct_by_name(item for state in states for item in host_graphics.vgpu_profiles(state)),
        vendorDeviceGroupInfo=[group_info(group) for group in groups.values()],
    )


def dynamic_devices(states: Iterable[HostState]) -> list[Any]:
    """Return each combination of device type and label that Dynamic DirectPath I/O can request, once."""
    offered = {
        (device.vendor_id, device.device_id, device.label): device
        for state in states
        for device in state.devices
        if device.passthrough_active
    }
    return [
        vim.vm.DynamicPassthroughInfo(
            name=device.device_name,
            vendorName=device.vendor_name,
            deviceName=device.device_name,
            customLabel=label,
            vendorId=vendor_id,
            deviceId=device_id,
        )
        for (vendor_id, device_id, label), device in offered.items()
    ]


def _distinct_by_name(items: Iterable[Any]) -> list[Any]:
    return list({item.name: item for item in items}.values())


def _datastores(hosts: list[HostEntity]) -> list[Any]:
    stores = {store.moid: store for host in hosts for store in host.read("datastore")}
    return [
        default(
            "VirtualMachineDatastoreInfo",
            name=store.name,
            datastore=store.read("summary"),
            capability=store.read("capability"),
            maxFileSize=64 << 40,
        )
        for store in stores.values()
    ]


Device = vim.vm.device
VERSIONS: Final = ("vmx-17", "vmx-19", "vmx-20", "vmx-21")
NEWEST: Final = "vmx-21"
_GUEST_LINES: Final = (files(__package__) / "guests.tsv").read_text(encoding="utf-8").splitlines()
GUESTS: Final[Mapping[str, tuple[str, str]]] = {
    guest: (family, name) for guest, family, name in (line.split("\t") for line in _GUEST_LINES if line[0] != "#")
}
"""Family and name of each guest system, by its id."""
_NEW_VM: Final = VmState("", "", "", Template("", "", "", linux=True), "", None, "", "", 1, 4, EPOCH)
"""A VM without any setting; its devices are those of every new VM."""
DEVICES: Final = (
    Device.VirtualPCIPassthroughOption,
    Device.VirtualDiskOption,
    Device.VirtualVmxnet3Option,
    Device.VirtualPCIControllerOption,
    Device.ParaVirtualSCSIControllerOption,
)


@cache
def config_option(version: str, guests: frozenset[str] = frozenset()) -> Any:
    """The VirtualMachineConfigOption of a hardware version; `guests` narrows the list of guest systems."""
    if version not in VERSIONS:
        raise faults.wrong_argument("key")
    return filled(
        vim.vm.ConfigOption,
        version=version,
        description=f"ESXi 8.0 virtual machine ({version})",
        guestOSDescriptor=[
            _guest_descriptor(guest, *GUESTS[guest]) for guest in GUESTS if not guests or guest in guests
        ],
        guestOSDefaultIndex=0,
        hardwareOptions=_hardware(version),
        defaultDevice=devices(_NEW_VM, None, PLACEHOLDERS),
        capabilities=default("VirtualMachineCapability"),
        supportedMonitorType=["release"],
    )


def guest_name(vm: VmState) -> str:
    """The full name of the guest system that a VM is set up for."""
    return GUESTS[vm.guest_id][1] if vm.guest_id in GUESTS else vm.template.guest_name


def descriptors(hosts: list[Any]) -> list[Any]:
    """QueryConfigOptionDescriptor: the hardware versions, the newest one as default."""
    return [
        default(
            "VirtualMachineConfigOptionDescriptor",
            key=version,
            description=f"ESXi 8.0 virtual machine ({version})",
            host=hosts,
            defaultConfigOption=version == NEWEST,
        )
        for version in VERSIONS
    ]


def _hardware(version: str) -> Any:
    number, options = int(version.removeprefix("vmx-")), [_device_option(kind) for kind in DEVICES]
    return default("VirtualHardwareOption", hwVersion=number, virtualDeviceOption=options)


def _device_option(kind: Any) -> Any:
    name = VmomiSupport.GetWsdlName(kind).removesuffix("Option")
    return filled(kind, type=VmomiSupport.GetWsdlType("urn:vim25", name))


def _guest_descriptor(guest_id: str, family: str, name: str) -> Any:
    return default(
        "GuestOsDescriptor",
        id=guest_id,
        family=family,
        fullName=name,
        supportedDiskControllerList=[Device.ParaVirtualSCSIController],
        recommendedSCSIController=Device.ParaVirtualSCSIController,
        recommendedDiskController=Device.ParaVirtualSCSIController,
        recommendedCdromController=Device.VirtualIDEController,
        supportedEthernetCard=[Device.VirtualVmxnet3],
        recommendedEthernetCard=Device.VirtualVmxnet3,
    )
