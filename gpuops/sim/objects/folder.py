"""Folder: a branch of the inventory tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.entities import FolderEntity
from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations import creation, folders

if TYPE_CHECKING:
    from gpuops.sim.call import Call

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
        return folders.create(self, call, name)

    @method
    def CreateVM_Task(self, call: Call, config: Any, pool: Any, host: Any = None) -> Any:
        return creation.create_vm(self, call, config, pool, host, make=VirtualMachine)

    @method
    def MoveIntoFolder_Task(self, call: Call, list: Any) -> Any:
        return folders.move_into(self, call, list)
