"""Datastores and networks."""

from __future__ import annotations

from typing import Any, ClassVar

from pyVmomi import vim

from gpuops.sim.core.managed_object import Properties, prop
from gpuops.sim.inventory.entities import DatastoreEntity, VmEntity
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.render import host_storage
from gpuops.sim.render.defaults import default
from gpuops.sim.render.required_fields import filled

MIB = 1 << 20


class VmfsDatastore(DatastoreEntity):
    """A datastore on the wire."""

    wsdl_name = "Datastore"

    property_table: ClassVar[Properties] = {
        "capability": lambda self: default("DatastoreCapability"),
        "vm": lambda self: list(self.vms.values()),
        "browser": lambda self: self.world.get(f"datastoreBrowser-{self.moid}"),
        "iormConfiguration": lambda self: filled(
            vim.StorageResourceManager.IORMConfigInfo, enabled=False, congestionThreshold=30
        ),
    }

    @prop("summary")
    def _summary(self) -> Any:
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
        return vim.host.VmfsDatastoreInfo(
            name=self.name,
            url=self.url,
            freeSpace=self.free_mib * MIB,
            maxFileSize=64 << 40,
            maxMemoryFileSize=64 << 40,
            maxPhysicalRDMFileSize=64 << 40,
            maxVirtualRDMFileSize=64 << 40,
            timestamp=self.world.clock.now(),
            vmfs=host_storage.vmfs(self),
        )

    @prop("host")
    def _hosts(self) -> Any:
        mount = host_storage.mount(self)
        return [vim.Datastore.HostMount(key=vim.HostSystem(moid), mountInfo=mount) for moid in self.host_moids]


class Network(ManagedEntity):
    """A network that hosts share by name."""

    wsdl_name = "Network"

    property_table: ClassVar[Properties] = {
        "summary": lambda self: vim.Network.Summary(
            network=self.ref, name=self.name, accessible=True, ipPoolName="", ipPoolId=-1
        ),
        "vm": lambda self: [vm for host in self._hosts() for vm in host.vms() if self._serves(vm)],
    }

    @prop("host")
    def _hosts(self) -> Any:
        return [host for host in self.world.by_type("HostSystem") if self.moid in host.state.networks]

    def _serves(self, vm: VmEntity) -> bool:
        return any(card.network == self.moid for card in vm.state.network_cards)
