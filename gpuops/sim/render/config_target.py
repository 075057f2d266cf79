"""Answers QueryConfigTarget with what a host, or a cluster, offers VMs: devices, profiles, networks, datastores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.inventory.switches import PortgroupEntity
from gpuops.sim.render import distributed, host_graphics
from gpuops.sim.render.device_groups import group_info, offered_groups
from gpuops.sim.render.pci import pci_device
from gpuops.sim.state.host_state import HostGpu, HostState, OtherHostDevice

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity


def config_target(hosts: list[HostEntity]) -> Any:
    """The ConfigTarget of these hosts: of one, or what any of a cluster offers (the union is from memory)."""
    states = [host.state for host in hosts]
    types = dict.fromkeys(
        name for host in hosts for name in host_graphics.offered(host.state.for_admission(host.seats()))
    )
    networks = list({network.moid: network for host in hosts for network in host.read("network")}.values())
    portgroups = [network for network in networks if isinstance(network, PortgroupEntity)]
    groups = {group.name: group for host in hosts for group in offered_groups(host.state)}
    return vim.vm.ConfigTarget(
        numCpus=max((state.model.threads for state in states), default=0),
        numCpuCores=max((state.model.cores for state in states), default=0),
        numNumaNodes=max((state.model.numa_nodes for state in states), default=0),
        maxCpusPerHost=max((state.model.threads for state in states), default=0),
        smcPresent=False,
        maxMemMBOptimalPerf=max((state.model.memory_mib for state in states), default=0),
        supportedMaxMemMB=max((state.model.memory_mib for state in states), default=0),
        autoVmotion=True,
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
        pciPassthrough=[device for state in states for device in _static_devices(state)],
        sharedGpuPassthroughTypes=[vim.vm.PciSharedGpuPassthroughInfo(name=name, vgpu=name) for name in types],
        dynamicPassthrough=dynamic_devices(states),
        vgpuDeviceInfo=_unique(item for state in states for item in host_graphics.vgpu_devices(state)),
        vgpuProfileInfo=_unique(item for state in states for item in host_graphics.vgpu_profiles(state)),
        vendorDeviceGroupInfo=[group_info(group) for group in groups.values()],
        maxSimultaneousThreads=2,
    )


def dynamic_devices(states: Iterable[HostState]) -> list[Any]:
    """What Dynamic DirectPath I/O may ask for: each device type and label once."""
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


def _static_devices(state: HostState) -> list[Any]:
    return [_static_device(state, device) for device in state.devices if device.passthrough_active]


def _static_device(state: HostState, device: HostGpu | OtherHostDevice) -> Any:
    return vim.vm.PciPassthroughInfo(name=device.device_name, pciDevice=pci_device(device), systemId=state.system_id)


def _unique(items: Iterable[Any]) -> list[Any]:
    return list({item.name: item for item in items}.values())


def _datastores(hosts: list[HostEntity]) -> list[Any]:
    stores = {store.moid: store for host in hosts for store in host.read("datastore")}
    return [
        vim.vm.DatastoreInfo(
            name=store.name,
            datastore=store.read("summary"),
            capability=store.read("capability"),
            maxFileSize=64 << 40,
            mode="readWrite",
            vStorageSupport="vStorageSupported",
        )
        for store in stores.values()
    ]
