"""`hardware`, `config`, `summary`, `runtime` and `configManager` of a host, and the capabilities of its ESXi."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

from pyVmomi import VmomiSupport, vim

from gpuops.sim.render import host_graphics, host_network
from gpuops.sim.render.defaults import default, filled
from gpuops.sim.render.pci import bridge_of, network_ports, pci_devices
from gpuops.sim.state.host_state import HostState

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import DatastoreEntity, HostEntity

OWN_MOIDS: Final = {"advancedOption": "hostOptions"}
"""The start of a manager's moid by field of configManager, if it is not the name of the field."""


@cache
def managers() -> dict[str, tuple[Any, str]]:
    """Return by field of configManager the manager's type and the start of its moid, before the host's number."""
    own_types = {"cryptoManager": vim.encryption.CryptoManagerHost}  # the field has the type of all CryptoManagers
    return {
        field.name: (own_types.get(field.name, field.type), OWN_MOIDS.get(field.name, field.name))
        for field in vim.host.ConfigManager._GetPropertyList()
        if issubclass(field.type, VmomiSupport.ManagedObject)
    }


def config(host: HostEntity) -> Any:
    """Return the HostConfigInfo."""
    state, seats = host.state, host.seats()
    gpus = state.for_admission(seats)
    return default(
        "HostConfigInfo",
        host=host.ref,
        product=product(host.world.api_version),
        hyperThread=vim.host.CpuSchedulerSystem.HyperThreadScheduleInfo(
            available=state.model.threads_per_core > 1, active=state.model.threads_per_core > 1, config=True
        ),
        network=host.read("config.network"),
        vmotion=host_network.vmotion(state),
        virtualNicManagerInfo=host_network.selections(state),
        pciPassthruInfo=host_graphics.passthrough_info(state),
        graphicsInfo=host_graphics.graphics_info(state, seats),
        graphicsConfig=host_graphics.graphics_config(state),
        sharedPassthruGpuTypes=host_graphics.offered(gpus),
        sharedGpuCapabilities=host_graphics.capabilities(state, gpus),
        assignableHardwareBinding=host_graphics.bindings(host),
        assignableHardwareConfig=host_graphics.hardware_labels(host.state),
        option=host.manager(OWN_MOIDS["advancedOption"]).read("setting"),
        storageDevice=storage_device(host.datastores()),
        fileSystemVolume=volumes(host.datastores()),
        firewall=host_network.firewall(state),
    )


def product(api_version: str) -> Any:
    """Return the AboutInfo of the ESXi release that belongs to the API version."""
    numbers = api_version.split(".")
    release = ".".join((*numbers, "0")[:3])  # three numbers, for example 8.0.3
    return default(
        "AboutInfo",
        name="VMware ESXi",
        fullName=f"VMware ESXi {release} build-0 (simulated by gpuops)",
        version=release,
        osType="vmnix-x86",
        productLineId="embeddedEsx",
        apiType="HostAgent",
        apiVersion=api_version,
        licenseProductName="VMware ESX Server",
        licenseProductVersion="8.0",
    )


def runtime(host: HostState) -> Any:
    return default(
        "HostRuntimeInfo",
        connectionState=host.connection,
        powerState=host.power,
        inMaintenanceMode=host.in_maintenance,
        bootTime=host.boot_time,
    )


def quick_stats(host: HostState, usage: tuple[int, int], now: datetime) -> Any:
    return default(
        "HostListSummaryQuickStats",
        overallCpuUsage=usage[0],
        overallMemoryUsage=usage[1],
        uptime=max(0, int((now - host.boot_time).total_seconds())),
    )


def summary(
    ref: Any, host: HostState, *, usage: tuple[int, int], now: datetime, custom: list[Any], release: str
) -> Any:
    """Return the HostListSummary; `usage` is (MHz, MiB), `custom` the custom values."""
    return default(
        "HostListSummary",
        host=ref,
        hardware=_hardware_summary(host),
        runtime=runtime(host),
        config=filled(
            vim.host.Summary.ConfigSummary,
            name=host.name,
            port=443,
            product=product(release),
            vmotionEnabled=True,
            faultToleranceEnabled=False,
        ),
        quickStats=quick_stats(host, usage, now),
        rebootRequired=host.reboot_required,
        customValue=custom,
    )


def _hardware_summary(host: HostState) -> Any:
    model = host.model
    return vim.host.Summary.HardwareSummary(
        vendor=model.vendor,
        model=model.model,
        uuid=host.uuid,
        memorySize=model.memory_mib << 20,
        cpuModel=model.cpu_model,
        cpuMhz=model.cpu_mhz,
        numCpuPkgs=model.sockets,
        numCpuCores=model.cores,
        numCpuThreads=model.threads,
        numNics=len(network_ports(host)),
        numHBAs=1,
    )


def config_manager(number: str) -> Any:
    """Return the HostConfigManager with references to all managers of the host."""
    references = {field: kind(f"{prefix}-{number}") for field, (kind, prefix) in managers().items()}
    return filled(vim.host.ConfigManager, **references)


def connection_info(host: HostEntity) -> Any:
    """QueryHostConnectionInfo."""
    return filled(
        vim.host.ConnectInfo,
        host=host.read("summary"),
        vm=[vm.read("summary") for vm in host.vms()],
        network=[],
        datastore=[],
    )


MIB: Final = 1 << 20


def hardware(host: HostState) -> Any:
    """Return the HostHardwareInfo."""
    model = host.model
    hz = model.cpu_mhz * 1_000_000
    return filled(
        vim.host.HardwareInfo,
        systemInfo=system(host),
        cpuInfo=cpu_info(host),
        cpuPkg=[
            default(
                "HostCpuPackage",
                index=socket,
                hz=hz,
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
    """`hardware.numaInfo`: the nodes with their logical CPUs, memory and PCI devices."""
    nodes, first_thread = [], 0
    for node in host.model.every_node():
        size = node.memory_mib * MIB
        nodes.append(
            vim.host.NumaNode(
                typeId=node.id,
                cpuID=list(range(first_thread, first_thread + node.threads)),
                memorySize=size,
                memoryRangeBegin=0,
                memoryRangeLength=size,
                pciId=_devices_of_node(host, node.id),
            )
        )
        first_thread += node.threads
    return vim.host.NumaInfo(type="NUMA", numNodes=len(nodes), numaNode=nodes)


def _devices_of_node(host: HostState, node: int) -> list[str]:
    nics = [port.pci_id for port in network_ports(host) if port.numa_node == node]
    return nics + [id_ for gpu in host.devices if gpu.numa_node == node for id_ in (bridge_of(gpu.pci_id), gpu.pci_id)]


def _threads(host: HostState, part: int, parts: int) -> range:
    """Return the logical CPUs of one of `parts` equal parts of the host, such as a socket."""
    count = host.model.threads // parts
    return range(part * count, (part + 1) * count)


def capability(host: HostState) -> Any:
    """Return the HostCapability; the only field that differs between hosts is the rebind without a reboot."""
    return default("HostCapability", deviceRebindWithoutRebootSupported=host.rebinds_without_reboot)


ADAPTER: Final = "vmhba0"
ADAPTER_KEY: Final = f"key-vim.host.BlockHba-{ADAPTER}"
BLOCK_BYTES: Final = 512
BLOCKS_PER_MIB: Final = (1 << 20) // BLOCK_BYTES


def storage_device(stores: list[DatastoreEntity]) -> Any:
    """HostStorageDeviceInfo: one disk for each datastore, in the same order."""
    numbered = list(enumerate(stores))
    return vim.host.StorageDeviceInfo(
        hostBusAdapter=[default("HostBlockHba", key=ADAPTER_KEY, device=ADAPTER)],
        scsiLun=[_disk(store) for store in stores],
        scsiTopology=vim.host.ScsiTopology(
            adapter=[
                vim.host.ScsiTopology.Interface(
                    key=f"key-vim.host.ScsiTopology.Interface-{ADAPTER}",
                    adapter=ADAPTER_KEY,
                    target=[_target(number, store) for number, store in numbered],
                )
            ]
        ),
        multipathInfo=vim.host.MultipathInfo(lun=[_multipath(number, store) for number, store in numbered]),
        softwareInternetScsiEnabled=False,
    )


def volumes(stores: list[DatastoreEntity]) -> Any:
    """HostFileSystemVolumeInfo."""
    return vim.host.FileSystemVolumeInfo(
        volumeTypeList=["VMFS", "NFS", "NFS41", "vsan", "VVOL", "VFFS", "OTHER", "PMEM"],
        mountInfo=[
            vim.host.FileSystemMountInfo(
                mountInfo=mount(store), volume=vmfs(store), vStorageSupport="vStorageSupported"
            )
            for store in stores
        ],
    )


def mount(store: DatastoreEntity) -> Any:
    """HostMountInfo, the same on every host."""
    return default("HostMountInfo", path=f"/vmfs/volumes/{store.moid}", accessible=store.accessible)


def vmfs(store: DatastoreEntity) -> Any:
    """HostVmfsVolume."""
    return default(
        "HostVmfsVolume",
        name=store.name,
        capacity=store.capacity_mib << 20,
        uuid=store.moid,
        extent=[vim.host.ScsiDisk.Partition(diskName=_canonical_name(store), partition=1)],
    )


def _canonical_name(store: DatastoreEntity) -> str:
    return f"naa.{uuid5(NAMESPACE_URL, store.url).hex}"


def _disk_key(store: DatastoreEntity) -> str:
    return f"key-vim.host.ScsiDisk-{_canonical_name(store)}"


def _disk(store: DatastoreEntity) -> Any:
    name = _canonical_name(store)
    return default(
        "HostScsiDisk",
        key=_disk_key(store),
        uuid=name.removeprefix("naa."),
        canonicalName=name,
        displayName=f"Simulated disk ({name})",
        deviceName=f"/vmfs/devices/disks/{name}",
        devicePath=f"/vmfs/devices/disks/{name}",
        capacity=vim.host.DiskDimensions.Lba(blockSize=BLOCK_BYTES, block=store.capacity_mib * BLOCKS_PER_MIB),
    )


def _target(number: int, store: DatastoreEntity) -> Any:
    key = f"key-vim.host.ScsiTopology.Target-{ADAPTER}:0:{number}"
    lun = vim.host.ScsiTopology.Lun(key=f"key-vim.host.ScsiTopology.Lun-{number}", lun=0, scsiLun=_disk_key(store))
    return vim.host.ScsiTopology.Target(key=key, target=number, lun=[lun])


def _multipath(number: int, store: DatastoreEntity) -> Any:
    """Return the only path to the disk of a datastore, as a logical unit."""
    lun_key, name = f"key-vim.host.MultipathInfo.LogicalUnit-{_canonical_name(store)}", f"{ADAPTER}:C0:T{number}:L0"
    return vim.host.MultipathInfo.LogicalUnit(
        key=lun_key,
        id=_canonical_name(store),
        lun=_disk_key(store),
        path=[
            default(
                "HostMultipathInfoPath",
                key=f"key-vim.host.MultipathInfo.Path-{name}",
                name=name,
                adapter=ADAPTER_KEY,
                lun=lun_key,
            )
        ],
        policy=vim.host.MultipathInfo.FixedLogicalUnitPolicy(policy="VMW_PSP_FIXED", prefer=name),
    )
