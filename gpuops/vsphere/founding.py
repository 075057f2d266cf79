"""Founding: what a vCenter needs once, before rotations: definitions of custom attributes, and a bare VM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.model.task import TaskRef
from gpuops.vsphere import managed
from gpuops.vsphere.transport.door import Unreadable

if TYPE_CHECKING:
    from gpuops.plan.rotation.setup import NewVm
    from gpuops.vsphere.session import Session

MEMORY_MIB: Final = 4
"""The least that a VM may have; it is never powered on."""
GUEST: Final = "otherGuest"
_DEEPEST: Final = 100
"""So many folders within each other; an inventory is read with as many."""


def create_vm(session: Session, new: NewVm, op_id: str) -> TaskRef:
    """The task that makes a VM without disk or network card, in the topmost folder for VMs of its host's datacenter.

    Raises OutcomeUnknown when the reply was lost, NoPermission, or the error of vCenter's fault.
    """
    from pyVmomi import vim

    host = managed.host(session, new.host)
    pool = session.read(lambda: host.parent.resourcePool, subject=new.name)
    folder = session.read(lambda: _datacenter(host).vmFolder, subject=new.name)
    if not isinstance(folder, vim.Folder):
        raise Refused(f"{new.name}: vCenter names no folder for VMs in the datacenter of {new.host_name}")
    spec = vim.vm.ConfigSpec(
        name=new.name,
        annotation=new.annotation,
        guestId=GUEST,
        numCPUs=1,
        memoryMB=MEMORY_MIB,
        files=vim.vm.FileInfo(vmPathName=f"[{new.datastore}]"),
    )
    task = session.change(folder.CreateVM_Task, spec, pool, host, subject=new.name, op_id=op_id)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{new.name}: vCenter answered without a task; whether it was made is not known yet")
    return TaskRef(str(task._moId))


def _datacenter(host: Any) -> Any:
    """The datacenter that a host is in: every host is in one (vSphere API reference, HostSystem)."""
    from pyVmomi import vim

    place = host.parent
    for _ in range(_DEEPEST):
        if isinstance(place, vim.Datacenter):
            return place
        place = place.parent
    raise Unreadable(f"more than {_DEEPEST} folders within each other")
