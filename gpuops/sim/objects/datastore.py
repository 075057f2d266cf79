"""Datastore: shared storage with a fixed size and what is left of it."""

from __future__ import annotations

from typing import Any

from gpuops.sim.entities import DatastoreEntity
from gpuops.sim.filled import filled
from gpuops.sim.managed_object import prop

MIB = 1 << 20


class Datastore(DatastoreEntity):
    """A datastore on the wire."""

    wsdl_name = "Datastore"

    @prop("summary")
    def _summary(self) -> Any:
        from pyVmomi import vim

        return vim.Datastore.Summary(
            datastore=self.ref,
            name=self.name,
            url=self.url,
            capacity=self.capacity_mib * MIB,
            freeSpace=self.free_mib * MIB,
            uncommitted=0,
            accessible=self.accessible,
            multipleHostAccess=len(self.host_moids) > 1,
            type="VMFS",
            maintenanceMode="normal",
        )

    @prop("info")
    def _info(self) -> Any:
        from pyVmomi import vim

        return vim.host.VmfsDatastoreInfo(
            name=self.name,
            url=self.url,
            freeSpace=self.free_mib * MIB,
            maxFileSize=64 << 40,
            maxMemoryFileSize=64 << 40,
            maxPhysicalRDMFileSize=64 << 40,
            maxVirtualRDMFileSize=64 << 40,
            timestamp=self.world.clock.now(),
        )

    @prop("capability")
    def _capability(self) -> Any:
        from pyVmomi import vim

        return filled(
            vim.Datastore.Capability,
            directoryHierarchySupported=True,
            rawDiskMappingsSupported=True,
            perFileThinProvisioningSupported=True,
            storageIORMSupported=True,
            nativeSnapshotSupported=False,
        )

    @prop("host")
    def _hosts(self) -> Any:
        from pyVmomi import vim

        mount = {"path": f"/vmfs/volumes/{self.moid}", "accessMode": "readWrite", "mounted": True, "accessible": True}
        return [
            vim.Datastore.HostMount(key=vim.HostSystem(moid), mountInfo=vim.host.MountInfo(**mount))
            for moid in self.host_moids
        ]

    @prop("vm")
    def _vms(self) -> Any:
        return list(self.vms.values())

    @prop("browser")
    def _browser(self) -> Any:
        return self.world.get(f"datastoreBrowser-{self.moid}")

    @prop("iormConfiguration")
    def _iorm(self) -> Any:
        from pyVmomi import vim

        return filled(vim.StorageResourceManager.IORMConfigInfo, enabled=False, congestionThreshold=30)
