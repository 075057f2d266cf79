"""Folders, and the datacenter with its four folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.managed_object import method, prop
from gpuops.sim.inventory.folder_entity import FolderEntity
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.inventory.registration import new_moid
from gpuops.sim.objects.compute_resource import new_cluster, new_compute_resource
from gpuops.sim.objects.distributed import DistributedVirtualPortgroup, VmwareDistributedVirtualSwitch
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.objects.vm_snapshot import VirtualMachineSnapshot
from gpuops.sim.operations import inventory_change, removal
from gpuops.sim.operations.networks import distributed_change
from gpuops.sim.operations.vms import creation, power, registering

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.folder_entity import FolderEntity
    from gpuops.sim.world import World


CHILD_TYPES: Final = {
    "root": ("Folder", "Datacenter"),  # and of folders of datacenters
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
    def RegisterVM_Task(
        self, call: Call, path: str, asTemplate: bool, name: str | None = None, pool: Any = None, host: Any = None
    ) -> Any:
        return registering.register(
            self,
            call,
            path,
            name,
            pool,
            host,
            template=asTemplate,
            make=VirtualMachine,
            make_snapshot=VirtualMachineSnapshot,
        )

    @method
    def CreateDVS_Task(self, call: Call, spec: Any) -> Any:
        return distributed_change.create_switch(
            self, call, spec, VmwareDistributedVirtualSwitch, DistributedVirtualPortgroup
        )

    @method
    def MoveIntoFolder_Task(self, call: Call, list: Any) -> Any:
        return inventory_change.move_into(self, call, list)

    @method
    def CreateDatacenter(self, call: Call, name: str) -> Any:
        return inventory_change.create_datacenter(self, call, name, new_datacenter)

    @method
    def CreateClusterEx(self, call: Call, name: str, spec: Any) -> Any:
        return inventory_change.create_cluster(self, call, name, spec, new_cluster)

    @method
    def CreateCluster(self, call: Call, name: str, spec: Any) -> Any:
        return inventory_change.create_cluster(self, call, name, spec, new_cluster)

    @method
    def AddStandaloneHost_Task(
        self, call: Call, spec: Any, addConnected: bool, compResSpec: Any = None, license: str | None = None
    ) -> Any:
        return inventory_change.add_standalone_host(self, call, spec, connected=addConnected, make=new_compute_resource)

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return removal.destroy(self, call)

    @method
    def UnregisterAndDestroy_Task(self, call: Call) -> Any:
        return removal.unregister_and_destroy(self, call)


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

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return removal.destroy(self, call)


FOLDERS: Final = ("vm", "host", "datastore", "network")


def new_datacenter(world: World, name: str, parent: str, moids: list[str] | None = None) -> Datacenter:
    """A registered datacenter with its four folders; `moids` are its own and theirs, new ones if none are given."""
    given = moids or [new_moid(world, "datacenter"), *(new_moid(world, f"group-{kind[0]}") for kind in FOLDERS)]
    datacenter = Datacenter(world, given[0], name, parent)
    world.register(datacenter)
    for kind, moid in zip(FOLDERS, given[1:], strict=True):
        folder = Folder(world, moid, kind, datacenter.moid, kind)
        world.register(folder)
        datacenter.folders[kind] = folder
    return datacenter
