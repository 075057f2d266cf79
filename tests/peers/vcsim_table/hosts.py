"""Operations on hosts, resource pools, datastores, files and networks."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim

from tests.peers.vcsim_table.operation import Case, Cases, operations
from tests.peers.vcsim_table.site import Site


def name(site: Site) -> Any:
    return site.kept.name


def pool_spec(**fields: Any) -> Any:
    """A specification of a pool without a reservation."""
    cpu, memory = (
        vim.ResourceAllocationInfo(
            reservation=0, limit=-1, expandableReservation=True, shares=vim.SharesInfo(level="normal", shares=0)
        )
        for _ in range(2)
    )
    for field, value in fields.items():
        setattr(cpu, field, value)
    return vim.ResourceConfigSpec(cpuAllocation=cpu, memoryAllocation=memory)


def pool(site: Site, called: str) -> Any:
    """A new pool of the cluster; it is kept."""
    return site.keep(site.pool.CreateResourcePool(called, pool_spec()))


def in_maintenance(site: Site) -> Any:
    return site.hosts[1].runtime.inMaintenanceMode


HOSTS: Final[Cases] = {
    "HostSystem.EnterMaintenanceMode_Task": {
        "without running VMs": (
            lambda s: (s.keep(s.cluster.host[-1]), s.kept.EnterMaintenanceMode_Task(0, False))[-1],
            lambda s: s.kept.runtime.inMaintenanceMode,
        ),
    },
    "HostSystem.ExitMaintenanceMode_Task": {
        "in it": (
            lambda s: s.keep(s.cluster.host[-1]).ExitMaintenanceMode_Task(0),
            lambda s: s.kept.runtime.inMaintenanceMode,
        ),
        "not in it": (lambda s: s.hosts[1].ExitMaintenanceMode_Task(0), in_maintenance),
    },
    "HostSystem.DisconnectHost_Task": {
        "connected": (
            lambda s: s.keep(s.cluster.host[-1]).DisconnectHost_Task(),
            lambda s: s.kept.runtime.connectionState,
        ),
    },
    "HostSystem.ReconnectHost_Task": {
        "disconnected": (
            lambda s: s.keep(s.cluster.host[-1]).ReconnectHost_Task(),
            lambda s: s.kept.runtime.connectionState,
        ),
        "connected": lambda s: s.host.ReconnectHost_Task(),
    },
    "HostSystem.Destroy_Task": {
        "connected, with VMs": Case(
            lambda s: s.running.runtime.host.Destroy_Task(), lambda s: len(s.cluster.host), last=True
        ),
    },
    "HostSystem.RebootHost_Task": {
        "with VMs, not forced": lambda s: s.host.RebootHost_Task(False),
    },
    "HostSystem.ShutdownHost_Task": {
        "with VMs, not forced": lambda s: s.host.ShutdownHost_Task(False),
    },
    "HostSystem.QueryHostConnectionInfo": {
        "": lambda s: s.host.QueryHostConnectionInfo(),
    },
    "HostSystem.QueryMemoryOverhead": {
        "": lambda s: s.host.QueryMemoryOverhead(1 << 30, 1 << 20, 1),
    },
    "HostSystem.Rename_Task": {
        "": (lambda s: s.host.Rename_Task("other"), lambda s: s.host.name),
    },
    "HostDatastoreSystem.QueryAvailableDisksForVmfs": {
        "": lambda s: s.host.configManager.datastoreSystem.QueryAvailableDisksForVmfs(),
    },
    "HostDatastoreSystem.CreateLocalDatastore": {
        "a path that is not there": lambda s: s.host.configManager.datastoreSystem.CreateLocalDatastore(
            "local", "/none"
        ),
    },
    "OptionManager.QueryOptions": {
        "of a host, not there": lambda s: s.host.configManager.advancedOption.QueryOptions("no.such.option"),
    },
}

POOLS: Final[Cases] = {
    "ResourcePool.CreateResourcePool": {
        "a free name": (lambda s: pool(s, "P1"), name),
        "a name that is taken": lambda s: (pool(s, "P13"), pool(s, "P13"))[-1],
        "an empty name": Case(lambda s: pool(s, ""), last=True),
        "a negative reservation": lambda s: s.pool.CreateResourcePool("P2", pool_spec(reservation=-5)),
    },
    "ResourcePool.UpdateConfig": {
        "a name": (lambda s: pool(s, "P3").UpdateConfig("P4", pool_spec()), name),
        "a name that is taken": (
            lambda s: (pool(s, "P14"), pool(s, "P5"))[-1].UpdateConfig("P14", pool_spec()),
            name,
        ),
        "a reservation": (
            lambda s: pool(s, "P6").UpdateConfig(None, pool_spec(reservation=100)),
            lambda s: s.kept.config.cpuAllocation.reservation,
        ),
    },
    "ResourcePool.Rename_Task": {
        "a free name": (lambda s: pool(s, "P7").Rename_Task("P8"), name),
    },
    "ResourcePool.Destroy_Task": {
        "an empty one": (lambda s: pool(s, "P9").Destroy_Task(), name),
        "the root pool": (lambda s: s.pool.Destroy_Task(), lambda s: s.pool.name),
    },
    "ResourcePool.DestroyChildren": {
        "with a pool": (
            lambda s: (
                pool(s, "P10"),
                s.keep(s.kept),
                s.kept.CreateResourcePool("P11", pool_spec()),
                s.kept.DestroyChildren(),
            )[-1],
            lambda s: s.settled(lambda: len(s.kept.resourcePool), 0),
        ),
    },
    "ResourcePool.MoveIntoResourcePool": {
        "a VM": (lambda s: pool(s, "P12").MoveIntoResourcePool([s.running]), lambda s: len(s.kept.vm)),
    },
    "ResourcePool.CreateVApp": {
        "a free name": lambda s: s.pool.CreateVApp("app", pool_spec(), vim.vApp.VAppConfigSpec(), s.folder),
    },
    "ResourcePool.QueryResourceConfigOption": {
        "": lambda s: s.pool.QueryResourceConfigOption(),
    },
    "Datastore.Rename_Task": {
        "a free name": (
            lambda s: s.datacenter.datastore[1].Rename_Task("LocalDS_9"),
            lambda s: sorted(datastore.name for datastore in s.datacenter.datastore),
        ),
    },
    "Datastore.RefreshDatastore": {
        "": lambda s: s.datastore.RefreshDatastore(),
    },
    "Datastore.Destroy": {
        "with VMs": (lambda s: s.datastore.Destroy(), lambda s: s.datastore.name),
    },
    "Datastore.DatastoreEnterMaintenanceMode": {
        "": lambda s: s.datastore.DatastoreEnterMaintenanceMode(),
    },
    "Network.Rename_Task": {
        "a free name": (lambda s: s.network.Rename_Task("LAN"), lambda s: s.network.name),
    },
    "Network.Destroy": {
        "in use": lambda s: s.network.Destroy(),
    },
    "FileManager.MakeDirectory": {
        "a new one": lambda s: s.content.fileManager.MakeDirectory("[LocalDS_0] row", s.datacenter, False),
    },
    "FileManager.DeleteDatastoreFile_Task": {
        "not there": lambda s: s.content.fileManager.DeleteDatastoreFile_Task("[LocalDS_0] none", s.datacenter),
    },
    "VirtualDiskManager.CreateVirtualDisk_Task": {
        "a new one": lambda s: s.content.virtualDiskManager.CreateVirtualDisk_Task(
            "[LocalDS_0] d.vmdk",
            s.datacenter,
            vim.VirtualDiskManager.FileBackedVirtualDiskSpec(diskType="thin", adapterType="lsiLogic", capacityKb=1024),
        ),
    },
    "HostDatastoreBrowser.SearchDatastore_Task": {
        "the root": Case(lambda s: s.datastore.browser.SearchDatastore_Task("[LocalDS_0]"), last=True),
    },
}

OPERATIONS: Final = operations(HOSTS, POOLS)
