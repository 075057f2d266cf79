"""Operations on virtual machines: power, life cycle, snapshots."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim

from tests.peers.vcsim_table.operation import Case, Cases, operations
from tests.peers.vcsim_table.site import Site

OFF, ON, SUSPENDED = "poweredOff", "poweredOn", "suspended"


def power(site: Site) -> Any:
    return site.kept.runtime.powerState


def name(site: Site) -> Any:
    return site.kept.name


def snapshot_names(site: Site) -> Any:
    return [snapshot.name for snapshot in site.kept.snapshot.rootSnapshotList] if site.kept.snapshot else []


def is_template(site: Site) -> Any:
    return site.kept.config.template


def new_vm(site: Site, **fields: Any) -> Any:
    """A specification of a VM that is as small as it can be."""
    defaults = {"name": "new", "files": vim.vm.FileInfo(vmPathName=f"[{site.datastore.name}]"), "guestId": "otherGuest"}
    return vim.vm.ConfigSpec(**{**defaults, **fields})


def create(site: Site, **fields: Any) -> Any:
    return site.folder.CreateVM_Task(new_vm(site, **fields), site.pool)


def clone_spec(site: Site, **fields: Any) -> Any:
    return vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=site.pool), powerOn=False, template=False, **fields)


def another_host(site: Site) -> Any:
    """A host that the VM is not on; vcsim puts VMs on hosts by chance."""
    site.wanted = next(host for host in site.hosts if host != site.kept.runtime.host)
    return site.wanted


def has_moved(site: Site) -> Any:
    return site.kept.runtime.host == site.wanted


def first_snapshot(site: Site) -> Any:
    return site.kept.snapshot.currentSnapshot


POWER: Final[Cases] = {
    "VirtualMachine.PowerOnVM_Task": {
        "is off": (lambda s: s.vm(OFF).PowerOnVM_Task(None), power),
        "is on": (lambda s: s.vm(ON).PowerOnVM_Task(None), power),
        "is suspended": (lambda s: s.vm(SUSPENDED).PowerOnVM_Task(None), power),
        "on a host": (lambda s: s.vm(OFF).PowerOnVM_Task(s.hosts[1]), power),
        "is a template": (lambda s: s.template().PowerOnVM_Task(None), power),
    },
    "VirtualMachine.PowerOffVM_Task": {
        "is on": (lambda s: s.vm(ON).PowerOffVM_Task(), power),
        "is off": (lambda s: s.vm(OFF).PowerOffVM_Task(), power),
        "is suspended": (lambda s: s.vm(SUSPENDED).PowerOffVM_Task(), power),
    },
    "VirtualMachine.SuspendVM_Task": {
        "is on": (lambda s: s.vm(ON).SuspendVM_Task(), power),
        "is off": (lambda s: s.vm(OFF).SuspendVM_Task(), power),
        "is suspended": (lambda s: s.vm(SUSPENDED).SuspendVM_Task(), power),
    },
    "VirtualMachine.ResetVM_Task": {
        "is on": (lambda s: s.vm(ON).ResetVM_Task(), power),
        "is off": (lambda s: s.vm(OFF).ResetVM_Task(), power),
        "is suspended": (lambda s: s.vm(SUSPENDED).ResetVM_Task(), power),
    },
    "VirtualMachine.ShutdownGuest": {
        "is on, without VMware Tools": lambda s: s.vm(ON).ShutdownGuest(),
        "is off": (lambda s: s.vm(OFF).ShutdownGuest(), power),
    },
    "VirtualMachine.RebootGuest": {
        "is on, without VMware Tools": (lambda s: s.vm(ON).RebootGuest(), power),
        "is off": (lambda s: s.vm(OFF).RebootGuest(), power),
    },
    "VirtualMachine.StandbyGuest": {
        "is on, without VMware Tools": lambda s: s.vm(ON).StandbyGuest(),
    },
    "VirtualMachine.TerminateVM": {
        "is on": (lambda s: s.vm(ON).TerminateVM(), power),
    },
    "Datacenter.PowerOnMultiVM_Task": {
        "one that is off": (lambda s: s.ended(s.datacenter.PowerOnMultiVM_Task([s.vm()])).attempted[0].task, power),
    },
}

LIFE: Final[Cases] = {
    "Folder.CreateVM_Task": {
        "without devices": lambda s: create(s, name="plain"),
        "without a name": lambda s: create(s, name=None),
        "with an empty name": lambda s: create(s, name=""),
        "with a name that is taken": lambda s: create(s, name="DC0_C0_RP0_VM0"),
        "without files": lambda s: create(s, name="no-files", files=None),
        "on a datastore that is not there": Case(
            lambda s: create(s, name="nowhere", files=vim.vm.FileInfo(vmPathName="[nowhere]")), last=True
        ),
        "in a folder of hosts": lambda s: s.datacenter.hostFolder.CreateVM_Task(new_vm(s, name="astray"), s.pool),
        "with an unknown guest": lambda s: create(s, name="guest", guestId="noSuchGuest"),
        "with no CPU": lambda s: create(s, name="no-cpu", numCPUs=0),
    },
    "VirtualMachine.Rename_Task": {
        "a free name": (lambda s: s.vm(ON).Rename_Task("renamed"), name),
        "an empty name": Case(lambda s: s.vm(ON).Rename_Task(""), last=True),
        "a name that is taken": lambda s: s.vm(ON).Rename_Task("DC0_C0_RP0_VM0"),
        "its own name": lambda s: s.vm(ON).Rename_Task(s.kept.name),
        "with a slash": (lambda s: s.vm(ON).Rename_Task("a/b"), name),
    },
    "VirtualMachine.Destroy_Task": {
        "is off": (lambda s: s.vm(OFF).Destroy_Task(), name),
        "is on": (lambda s: s.vm(ON).Destroy_Task(), power),
        "is suspended": lambda s: s.vm(SUSPENDED).Destroy_Task(),
    },
    "VirtualMachine.CloneVM_Task": {
        "is off": lambda s: s.vm().CloneVM_Task(s.folder, "clone", clone_spec(s)),
        "is on": lambda s: s.vm(ON).CloneVM_Task(s.folder, "live", clone_spec(s)),
        "an empty name": lambda s: s.vm().CloneVM_Task(s.folder, "", clone_spec(s)),
        "a name that is taken": lambda s: s.vm().CloneVM_Task(s.folder, "DC0_C0_RP0_VM0", clone_spec(s)),
        "into a folder of hosts": lambda s: s.vm().CloneVM_Task(s.datacenter.hostFolder, "astray", clone_spec(s)),
        "a template, without a pool": lambda s: s.template().CloneVM_Task(
            s.folder, "poolless", vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
        ),
        "as a template": lambda s: s.vm().CloneVM_Task(
            s.folder,
            "mould",
            vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=s.pool), powerOn=False, template=True),
        ),
    },
    "VirtualMachine.MarkAsTemplate": {
        "is off": (lambda s: s.vm(OFF).MarkAsTemplate(), is_template),
        "is on": (lambda s: s.vm(ON).MarkAsTemplate(), is_template),
        "is one": lambda s: s.template().MarkAsTemplate(),
    },
    "VirtualMachine.MarkAsVirtualMachine": {
        "is a template": (lambda s: s.template().MarkAsVirtualMachine(s.pool), is_template),
        "is none": lambda s: s.vm().MarkAsVirtualMachine(s.pool),
    },
    "VirtualMachine.RelocateVM_Task": {
        "on, to another host": (
            lambda s: (s.vm(ON), s.kept.RelocateVM_Task(vim.vm.RelocateSpec(host=another_host(s), pool=s.pool)))[-1],
            has_moved,
        ),
        "to another datastore": (
            lambda s: s.vm().RelocateVM_Task(vim.vm.RelocateSpec(datastore=s.datacenter.datastore[1])),
            lambda s: [datastore.name for datastore in s.kept.datastore],
        ),
        "nowhere": lambda s: s.vm().RelocateVM_Task(vim.vm.RelocateSpec()),
        "into another folder": (
            lambda s: s.vm().RelocateVM_Task(vim.vm.RelocateSpec(folder=s.folder.CreateFolder("home"))),
            lambda s: s.kept.parent.name,
        ),
    },
    "VirtualMachine.MigrateVM_Task": {
        "on, to another host": (
            lambda s: (s.vm(ON), s.kept.MigrateVM_Task(None, another_host(s), "defaultPriority"))[-1],
            has_moved,
        ),
    },
}

SNAPSHOTS: Final[Cases] = {
    "VirtualMachine.CreateSnapshot_Task": {
        "is off": (lambda s: s.vm().CreateSnapshot_Task("a", "", False, False), snapshot_names),
        "is on, with memory": (lambda s: s.vm(ON).CreateSnapshot_Task("a", "", True, False), snapshot_names),
        "an empty name": (lambda s: s.vm().CreateSnapshot_Task("", "", False, False), snapshot_names),
    },
    "VirtualMachine.RemoveAllSnapshots_Task": {
        "has one": (lambda s: s.snapshotted().RemoveAllSnapshots_Task(), snapshot_names),
        "has none": lambda s: s.vm().RemoveAllSnapshots_Task(),
    },
    "VirtualMachine.RevertToCurrentSnapshot_Task": {
        "has one": (lambda s: s.snapshotted().RevertToCurrentSnapshot_Task(), power),
        "has none": lambda s: s.vm().RevertToCurrentSnapshot_Task(),
    },
    "VirtualMachineSnapshot.RevertToSnapshot_Task": {
        "of a VM that was off, now on": (
            lambda s: (
                s.snapshotted(),
                s.ended(s.kept.PowerOnVM_Task(None)),
                first_snapshot(s).RevertToSnapshot_Task(),
            )[-1],
            power,
        ),
    },
    "VirtualMachineSnapshot.RemoveSnapshot_Task": {
        "there": (lambda s: (s.snapshotted(), first_snapshot(s).RemoveSnapshot_Task(True))[-1], snapshot_names),
        "gone": lambda s: (
            s.snapshotted(),
            snapshot := first_snapshot(s),
            s.ended(snapshot.RemoveSnapshot_Task(True)),
            snapshot.RemoveSnapshot_Task(True),
        )[-1],
    },
    "VirtualMachineSnapshot.RenameSnapshot": {
        "another name": (
            lambda s: (s.snapshotted(), first_snapshot(s).RenameSnapshot("second", "another"))[-1],
            snapshot_names,
        ),
        "an empty name": (
            lambda s: (s.snapshotted(), first_snapshot(s).RenameSnapshot("", ""))[-1],
            snapshot_names,
        ),
    },
}

OPERATIONS: Final = operations(POWER, LIFE, SNAPSHOTS)
