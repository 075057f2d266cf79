"""Storage of a host: one adapter, one disk and one path for each VMFS datastore it mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

from pyVmomi import vim

from gpuops.sim.render.defaults import default

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import DatastoreEntity

ADAPTER: Final = "vmhba0"
ADAPTER_KEY: Final = f"key-vim.host.BlockHba-{ADAPTER}"
BLOCK: Final = 512
BLOCKS_PER_MIB: Final = (1 << 20) // BLOCK


def device(stores: list[DatastoreEntity]) -> Any:
    """HostStorageDeviceInfo: disks in the order of the datastores on them."""
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
        multipathInfo=vim.host.MultipathInfo(lun=[_paths(number, store) for number, store in numbered]),
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
    return vim.host.MountInfo(
        path=f"/vmfs/volumes/{store.moid}", accessMode="readWrite", mounted=True, accessible=store.accessible
    )


def vmfs(store: DatastoreEntity) -> Any:
    """HostVmfsVolume."""
    return default(
        "HostVmfsVolume",
        name=store.name,
        capacity=store.capacity_mib << 20,
        uuid=store.moid,
        extent=[vim.host.ScsiDisk.Partition(diskName=_canonical(store), partition=1)],
    )


def _canonical(store: DatastoreEntity) -> str:
    return f"naa.{uuid5(NAMESPACE_URL, store.url).hex}"


def _disk_key(store: DatastoreEntity) -> str:
    return f"key-vim.host.ScsiDisk-{_canonical(store)}"


def _disk(store: DatastoreEntity) -> Any:
    name = _canonical(store)
    return default(
        "HostScsiDisk",
        key=_disk_key(store),
        uuid=name.removeprefix("naa."),
        canonicalName=name,
        displayName=f"Simulated disk ({name})",
        deviceName=f"/vmfs/devices/disks/{name}",
        devicePath=f"/vmfs/devices/disks/{name}",
        capacity=vim.host.DiskDimensions.Lba(blockSize=BLOCK, block=store.capacity_mib * BLOCKS_PER_MIB),
    )


def _target(number: int, store: DatastoreEntity) -> Any:
    key = f"key-vim.host.ScsiTopology.Target-{ADAPTER}:0:{number}"
    lun = vim.host.ScsiTopology.Lun(key=f"key-vim.host.ScsiTopology.Lun-{number}", lun=0, scsiLun=_disk_key(store))
    return vim.host.ScsiTopology.Target(key=key, target=number, lun=[lun])


def _paths(number: int, store: DatastoreEntity) -> Any:
    lun_key, name = f"key-vim.host.MultipathInfo.LogicalUnit-{_canonical(store)}", f"{ADAPTER}:C0:T{number}:L0"
    return vim.host.MultipathInfo.LogicalUnit(
        key=lun_key,
        id=_canonical(store),
        lun=_disk_key(store),
        path=[
            vim.host.MultipathInfo.Path(
                key=f"key-vim.host.MultipathInfo.Path-{name}",
                name=name,
                pathState="active",
                state="active",
                isWorkingPath=True,
                adapter=ADAPTER_KEY,
                lun=lun_key,
            )
        ],
        policy=vim.host.MultipathInfo.FixedLogicalUnitPolicy(policy="VMW_PSP_FIXED", prefer=name),
    )
