"""Folder: a branch of the inventory tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.managed_entity import ManagedEntity
from gpuops.sim.operations import creation, folders

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World

CHILD_TYPES: Final = {
    "root": ("Folder", "Datacenter"),
    "vm": ("Folder", "VirtualMachine", "VirtualApp"),
    "host": ("Folder", "ComputeResource"),
    "datastore": ("Folder", "Datastore", "StoragePod"),
    "network": ("Folder", "Network", "DistributedVirtualSwitch"),
}
"""What a folder of each kind may hold (vSphere API, Folder.childType)."""


class Folder(ManagedEntity):
    """A folder of one kind: `root`, `vm`, `host`, `datastore` or `network`."""

    wsdl_name = "Folder"

    def __init__(self, world: World, moid: str, name: str, parent: str | None, kind: str) -> None:
        super().__init__(world, moid, name, parent)
        self.kind = kind
        self.children: dict[str, ManagedEntity] = {}

    def add(self, child: ManagedEntity) -> None:
        """Take a child in."""
        self.children[child.moid] = child
        self.touch("childEntity")

    def remove(self, child: ManagedEntity) -> None:
        """Let a child go."""
        self.children.pop(child.moid, None)
        self.touch("childEntity")

    def refuse_duplicate(self, name: str, besides: ManagedEntity | None = None) -> None:
        """Raises DuplicateName when a child has that name."""
        from pyVmomi import vim

        twin = next((child for child in self.children.values() if child.name == name and child is not besides), None)
        if twin is not None:
            raise vim.fault.DuplicateName(msg=f"The name '{name}' already exists.", name=name, object=twin.ref)

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
        return creation.create_vm(self, call, config, pool, host)

    @method
    def MoveIntoFolder_Task(self, call: Call, list: Any) -> Any:
        return folders.move_into(self, call, list)
