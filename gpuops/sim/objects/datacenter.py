"""Datacenter: four folders, and the power-on of many VMs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.managed_entity import ManagedEntity
from gpuops.sim.operations import mass_power_on

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.entities import FolderEntity
    from gpuops.sim.world import World


class Datacenter(ManagedEntity):
    """A datacenter; `folders` by kind: vm, host, datastore, network."""

    wsdl_name = "Datacenter"

    def __init__(self, world: World, moid: str, name: str, parent: str) -> None:
        super().__init__(world, moid, name, parent)
        self.folders: dict[str, FolderEntity] = {}

    @prop("vmFolder")
    def _vm_folder(self) -> Any:
        return self.folders["vm"]

    @prop("hostFolder")
    def _host_folder(self) -> Any:
        return self.folders["host"]

    @prop("datastoreFolder")
    def _datastore_folder(self) -> Any:
        return self.folders["datastore"]

    @prop("networkFolder")
    def _network_folder(self) -> Any:
        return self.folders["network"]

    @prop("datastore")
    def _datastores(self) -> Any:
        return list(self.folders["datastore"].children.values())

    @prop("network")
    def _networks(self) -> Any:
        return list(self.folders["network"].children.values())

    @prop("configuration")
    def _configuration(self) -> Any:
        from pyVmomi import vim

        return vim.Datacenter.ConfigInfo()

    @method
    def PowerOnMultiVM_Task(self, call: Call, vm: Any, option: Any = None) -> Any:
        return mass_power_on.power_on_all(self, call, vm)
