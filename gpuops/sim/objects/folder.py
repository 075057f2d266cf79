"""Folders, and the datacenter with its four folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.managed_object import method, prop
from gpuops.sim.inventory.entities import FolderEntity
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations import creation, power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import FolderEntity
    from gpuops.sim.world import World


CHILD_TYPES: Final = {
    "root": ("Folder", "Datacenter"),
    "vm": ("Folder", "VirtualMachine", "VirtualApp"),
    "host": ("Folder", "ComputeResource"),
    "datastore": ("Folder", "Datastore", "StoragePod"),
    "network": ("Folder", "Network", "DistributedVirtualSwitch"),
}
"""What a folder of each kind may hold (vSphere API, Folder.childType)."""


class Folder(FolderEntity):
    """A folder on the wire."""

    wsdl_name = "Folder"

    @prop("childType")
    def _child_types(self) -> Any:
        from pyVmomi import VmomiSupport

        return [VmomiSupport.GetWsdlType("urn:vim25", name) for name in CHILD_TYPES[self.kind]]

    @prop("childEntity")
    def _children(self) -> Any:
        return list(self.children.values())

    @method
    def CreateFolder(self, call: Call, name: str) -> Any:
        return creation.create_folder(self, call, name)

    @method
    def CreateVM_Task(self, call: Call, config: Any, pool: Any, host: Any = None) -> Any:
        return creation.create_vm(self, call, config, pool, host, make=VirtualMachine)

    @method
    def MoveIntoFolder_Task(self, call: Call, list: Any) -> Any:
        return creation.move_into(self, call, list)


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
        return power.power_on_all(self, call, vm)
