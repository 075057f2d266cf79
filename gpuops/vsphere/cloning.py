"""Cloning: a VM from a template, and the folder that a path names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.errors import OutcomeUnknown, UsageError
from gpuops.model.task import TaskRef
from gpuops.vsphere import managed

if TYPE_CHECKING:
    from gpuops.plan.vm.clone import NewClone
    from gpuops.vsphere.session import Session


def folder_at(session: Session, path: str) -> str:
    """The id of the folder for VMs at an inventory path, `/lab-dc/vm/ml`. Raises UsageError where there is none."""
    from pyVmomi import vim

    found = session.read(lambda: session.content.searchIndex.FindByInventoryPath(path), subject=path)
    if not isinstance(found, vim.Folder):
        raise UsageError(f"no folder {path!r} in this vCenter", hint="write it from the datacenter on: /lab-dc/vm/ml")
    return str(found._moId)


def clone_vm(session: Session, new: NewClone, op_id: str) -> TaskRef:
    """The task that makes the VM, powered off. Raises OutcomeUnknown when the reply was lost, or vCenter's error.

    A template is in no resource pool, so the clone is told one: the whole of its host's (vSphere API reference,
    VirtualMachineRelocateSpec.pool).
    """
    from pyVmomi import vim

    source, host = managed.vm(session, new.source), managed.host(session, new.host)
    pool = session.read(lambda: host.parent.resourcePool, subject=new.name)
    if new.folder is not None:
        folder = managed.managed(session, "Folder", new.folder)
    else:
        folder = session.read(lambda: source.parent, subject=new.name)
    location = vim.vm.RelocateSpec(host=host, pool=pool)
    if new.datastore is not None:
        location.datastore = managed.managed(session, "Datastore", new.datastore)
    size = vim.vm.ConfigSpec(numCPUs=new.vcpus, memoryMB=new.memory_mib)
    spec = vim.vm.CloneSpec(location=location, powerOn=False, template=False, config=size)
    task = session.change(source.CloneVM_Task, folder, new.name, spec, subject=new.name, op_id=op_id)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{new.name}: vCenter answered without a task; whether it was made is not known yet")
    return TaskRef(str(task._moId))
