"""Folders, and the datacenter with its four folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.core.managed_object import Methods, Properties
from gpuops.sim.inventory.entities import FolderEntity
from gpuops.sim.inventory.managed_entity import ManagedEntity, new_moid
from gpuops.sim.objects.compute_resource import new_cluster, new_compute_resource
from gpuops.sim.objects.datastore import DistributedVirtualPortgroup, VmwareDistributedVirtualSwitch
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations import distributed_switches, inventory_change, removal
from gpuops.sim.operations.vms import creation, power

if TYPE_CHECKING:
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

    property_table: ClassVar[Properties] = {
        "childType": lambda self: [VmomiSupport.GetWsdlType("urn:vim25", name) for name in CHILD_TYPES[self.kind]],
        "childEntity": lambda self: list(self.children.values()),
    }

    method_table: ClassVar[Methods] = {
        "CreateFolder": creation.create_folder,
        "CreateVM_Task": lambda self, call, config, pool, host=None: creation.create_vm(
            self, call, config, pool, host, make=VirtualMachine
        ),
        "CreateDVS_Task": lambda self, call, spec: distributed_switches.create_switch(
            self, call, spec, VmwareDistributedVirtualSwitch, DistributedVirtualPortgroup
        ),
        "MoveIntoFolder_Task": lambda self, call, list: inventory_change.move_into(self, call, list),
        "CreateDatacenter": lambda self, call, name: inventory_change.create_datacenter(
            self, call, name, new_datacenter
        ),
        "CreateClusterEx": lambda self, call, name, spec: inventory_change.create_cluster(
            self, call, name, spec, new_cluster
        ),
        "AddStandaloneHost_Task": lambda self, call, spec, addConnected, **_: inventory_change.add_standalone_host(
            self, call, spec, connected=addConnected, make=new_compute_resource
        ),
        "Destroy_Task": removal.destroy,
    }


class Datacenter(ManagedEntity):
    """A datacenter; `folders` by kind: vm, host, datastore, network."""

    wsdl_name = "Datacenter"

    property_table: ClassVar[Properties] = {
        "vmFolder": lambda self: self.folders["vm"],
        "hostFolder": lambda self: self.folders["host"],
        "datastoreFolder": lambda self: self.folders["datastore"],
        "networkFolder": lambda self: self.folders["network"],
        "datastore": lambda self: list(self.folders["datastore"].children.values()),
        "network": lambda self: list(self.folders["network"].children.values()),
        "configuration": lambda self: vim.Datacenter.ConfigInfo(),
    }

    method_table: ClassVar[Methods] = {
        "PowerOnMultiVM_Task": lambda self, call, vm, **_: power.power_on_all(self, call, vm),
        "Destroy_Task": removal.destroy,
    }

    def __init__(self, world: World, moid: str, name: str, parent: str) -> None:
        super().__init__(world, moid, name, parent)
        self.folders: dict[str, FolderEntity] = {}


FOLDERS: Final = ("vm", "host", "datastore", "network")


def new_datacenter(world: World, name: str, parent: str, moids: list[str] | None = None) -> Datacenter:
    """A registered datacenter with its four folders; `moids` are its own and theirs, new ones if none are given."""
    folder_moids = moids or [new_moid(world, "datacenter"), *(new_moid(world, f"group-{kind[0]}") for kind in FOLDERS)]
    datacenter = Datacenter(world, folder_moids[0], name, parent)
    world.register(datacenter)
    for kind, moid in zip(FOLDERS, folder_moids[1:], strict=True):
        folder = Folder(world, moid, kind, datacenter.moid, kind)
        world.register(folder)
        datacenter.folders[kind] = folder
    return datacenter
