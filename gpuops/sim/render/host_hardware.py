"""What a host is made of: `hardware`, and the capabilities of its ESXi."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.render.defaults import default
from gpuops.sim.render.pci import bridge_of, network_ports, pci_devices
from gpuops.sim.render.required_fields import filled
from gpuops.sim.state.host_state import HostState

MIB: Final = 1 << 20


def hardware(host: HostState) -> Any:
    model = host.model
    hz = model.cpu_mhz * 1_000_000
    return filled(
        vim.host.HardwareInfo,
        systemInfo=system(host),
        cpuInfo=cpu_info(host),
        cpuPkg=[
            vim.host.CpuPackage(
                index=socket,
                vendor="intel",
                hz=hz,
                busHz=100_000_000,
                description=model.cpu_model,
                threadId=list(_threads(host, socket, model.sockets)),
            )
            for socket in range(model.sockets)
        ],
        memorySize=model.memory_mib * MIB,
        numaInfo=numa(host),
        smcPresent=False,
        pciDevice=pci_devices(host),
        biosInfo=vim.host.BIOSInfo(biosVersion="2.19.1", vendor=model.vendor, firmwareType="UEFI"),
    )


def cpu_info(host: HostState) -> Any:
    model = host.model
    return vim.host.CpuInfo(
        numCpuPackages=model.sockets, numCpuCores=model.cores, numCpuThreads=model.threads, hz=model.cpu_mhz * 1_000_000
    )


def system(host: HostState) -> Any:
    return vim.host.SystemInfo(
        vendor=host.model.vendor, model=host.model.model, uuid=host.uuid, serialNumber=host.uuid[-8:].upper()
    )


def numa(host: HostState) -> Any:
    """`hardware.numaInfo`: the nodes, their logical CPUs and memory, and the PCI devices beside each."""
    nodes, first = [], 0
    for node in host.model.every_node():
        size = node.memory_mib * MIB
        nodes.append(
            vim.host.NumaNode(
                typeId=node.id,
                cpuID=list(range(first, first + node.threads)),
                memorySize=size,
                memoryRangeBegin=0,
                memoryRangeLength=size,
                pciId=_devices_of_node(host, node.id),
            )
        )
        first += node.threads
    return vim.host.NumaInfo(type="NUMA", numNodes=len(nodes), numaNode=nodes)


def _devices_of_node(host: HostState, node: int) -> list[str]:
    nics = [port.pci_id for port in network_ports(host) if port.numa_node == node]
    return nics + [id_ for gpu in host.devices if gpu.numa_node == node for id_ in (bridge_of(gpu.pci_id), gpu.pci_id)]


def _threads(host: HostState, part: int, parts: int) -> range:
    each = host.model.threads // parts
    return range(part * each, (part + 1) * each)


def capability(host: HostState) -> Any:
    """`capability`: all the old features, and those of assignable hardware that GPUs need."""
    return default("HostCapability", deviceRebindWithoutRebootSupported=host.rebinds_without_reboot)
