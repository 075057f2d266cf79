"""Folders, datacenters, datastores, networks and distributed switches as clients see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.core.managed_object import Methods, Properties, prop
from gpuops.sim.inventory.entities import DatastoreEntity, FolderEntity, VmEntity
from gpuops.sim.inventory.managed_entity import ManagedEntity, new_moid
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.objects.compute_resource import new_cluster, new_compute_resource
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations import distributed_switches, inventory_change, removal
from gpuops.sim.operations.vms import creation, power
from gpuops.sim.render import distributed, host_config
from gpuops.sim.render.defaults import default

if TYPE_CHECKING:
    from gpuops.sim.world import World

MIB = 1 << 20


class VmfsDatastore(DatastoreEntity):
    """A datastore on the wire."""

    wsdl_name = "Datastore"

    property_table: ClassVar[Properties] = {
        "capability": lambda self: default("DatastoreCapability"),
        "vm": lambda self: list(self.vms.values()),
        "browser": lambda self: self.world.get(f"datastoreBrowser-{self.moid}"),
        "iormConfiguration": lambda self: default("StorageIORMInfo"),
    }

    @prop("summary")
    def _summary(self) -> Any:
        return default(
            "DatastoreSummary",
            datastore=self.ref,
            name=self.name,
            url=self.url,
            capacity=self.capacity_mib * MIB,
            freeSpace=self.free_mib * MIB,
            accessible=self.accessible,
            multipleHostAccess=len(self.host_moids) > 1,
        )

    @prop("info")
    def _info(self) -> Any:
        return vim.host.VmfsDatastoreInfo(
            name=self.name,
            url=self.url,
            freeSpace=self.free_mib * MIB,
            maxFileSize=64 << 40,  # 64 TiB
            maxMemoryFileSize=64 << 40,
            maxPhysicalRDMFileSize=64 << 40,
            maxVirtualRDMFileSize=64 << 40,
            timestamp=self.world.clock.now(),
            vmfs=host_config.vmfs(self),
        )

    @prop("host")
    def _hosts(self) -> Any:
        mount = host_config.mount(self)
        return [vim.Datastore.HostMount(key=vim.HostSystem(moid), mountInfo=mount) for moid in self.host_moids]


class Network(ManagedEntity):
    """A network that hosts share by name."""

    wsdl_name = "Network"

    property_table: ClassVar[Properties] = {
        "summary": lambda self: default("NetworkSummary", network=self.ref, name=self.name),
        "vm": lambda self: [vm for host in self._hosts() for vm in host.vms() if self._serves(vm)],
    }

    @prop("host")
    def _hosts(self) -> Any:
        return [host for host in self.world.by_type("HostSystem") if self.moid in host.state.networks]

    def _serves(self, vm: VmEntity) -> bool:
        return any(card.network == self.moid for card in vm.state.network_cards)


class DistributedVirtualPortgroup(PortgroupEntity, Network):
    """A distributed port group on the wire: a network whose key is its moid."""

    wsdl_name = "DistributedVirtualPortgroup"

    property_table: ClassVar[Properties] = {
        "key": lambda self: self.moid,
        "config": distributed.portgroup_config,
        "portKeys": lambda self: self.port_keys(),
    }

    method_table: ClassVar[Methods] = {
        "Destroy_Task": removal.destroy,
    }


class VmwareDistributedVirtualSwitch(DistributedSwitchEntity):
    """A distributed switch on the wire."""

    wsdl_name = "VmwareDistributedVirtualSwitch"

    property_table: ClassVar[Properties] = {
        "uuid": lambda self: self.uuid,
        "capability": lambda self: default("DVSCapability"),
        "summary": distributed.summary,
        "config": distributed.config,
        "portgroup": lambda self: self.portgroups(),
        "runtime": distributed.runtime,
    }

    method_table: ClassVar[Methods] = {
        "ReconfigureDvs_Task": distributed_switches.change_hosts,
        "AddDVPortgroup_Task": lambda self, call, spec: distributed_switches.add_portgroups(
            self, call, spec, DistributedVirtualPortgroup
        ),
        "FetchDVPorts": lambda self, call, criteria=None: [
            port for port in distributed.ports(self) if criteria is None or _port_meets(self, port, criteria)
        ],
        "Destroy_Task": removal.destroy,
    }


def _port_meets(switch: DistributedSwitchEntity, port: Any, criteria: Any) -> bool:
    """Return whether a port meets all criteria (vSphere API, DistributedVirtualSwitchPortCriteria).

    With `inside` False, `portgroupKey` lists the port groups to exclude.
    """
    uplinks = {portgroup.moid for portgroup in switch.portgroups() if portgroup.is_uplink}
    hosts = [host._moId for host in criteria.host]
    inside = criteria.inside is not False
    facts = (
        (criteria.connected, port.connectee is not None),
        (criteria.active, port.state is not None and port.state.runtimeInfo.linkUp),
        (criteria.uplinkPort, port.portgroupKey in uplinks),
    )
    return (
        all(expected is None or expected == is_so for expected, is_so in facts)
        and (not criteria.portgroupKey or (port.portgroupKey in criteria.portgroupKey) == inside)
        and (not criteria.portKey or port.key in criteria.portKey)
        and (not hosts or (port.proxyHost is not None and port.proxyHost._moId in hosts))
    )


CHILD_TYPES: Final = {
    "root": ("Folder", "Datacenter"),  # the root folder, and folders of datacenters below it
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
