"""Adoption: for a change whose reply was lost, its task among those vCenter shows."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError
from gpuops.model.task import TaskRef
from gpuops.plan.steps import PowerOffVm, PowerOnVm, ReconfigureVm, RelocateVm, ResumeVm, Step, SuspendVm
from gpuops.vsphere.managed import vm

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

DESCRIPTIONS: Final[dict[type, str]] = {
    ReconfigureVm: "VirtualMachine.reconfigure",
    RelocateVm: "VirtualMachine.relocate",
    PowerOnVm: "VirtualMachine.powerOn",
    ResumeVm: "VirtualMachine.powerOn",
    SuspendVm: "VirtualMachine.suspend",
    PowerOffVm: "VirtualMachine.powerOff",
}
"""TaskInfo.descriptionId of the task a step makes (vSphere API reference, TaskDescription.methodInfo)."""

PATHS: Final = ("info.descriptionId", "info.queueTime", "info.reason", "info.state")

UNENDED: Final = ("queued", "running")
"""TaskInfo.state of a task that has not ended (vSphere API reference, TaskInfoState)."""


def adopt(session: Session, step: Step, since: datetime) -> TaskRef | None:
    """The newest task of this kind on the step's VM that still runs, or was queued at `since` (by vCenter) or later.

    A task does not carry the header it was asked with, so kind, VM and time are all there is to know it by; one that
    this login asked for comes first. Somebody else's leads to the same state, and ours could not run beside it. What
    runs needs no time: vCenter's clock may have been put back since.
    None = none is there: the request did not arrive, or its task was forgotten (vCenter keeps them some minutes).
    """
    description = DESCRIPTIONS.get(type(step))
    if description is None:
        return None
    user = _user(session)
    alike = [
        (_asked_by(user, info.get("info.reason")), queued, ref)
        for ref, info in _recent(session, step.vm)
        if info.get("info.descriptionId") == description
        and (queued := info.get("info.queueTime")) is not None
        and (queued >= since or info.get("info.state") in UNENDED)
    ]
    return TaskRef(max(alike)[2]) if alike else None


def _recent(session: Session, ref: str) -> list[tuple[str, dict[str, Any]]]:
    """(id, info) of the tasks the VM lists as recent; none for a VM that is gone."""
    from pyVmomi import vim, vmodl

    query = vmodl.query.PropertyCollector
    tasks = query.TraversalSpec(name="tasks", type=vim.VirtualMachine, path="recentTask", skip=False)
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=vm(session, ref), skip=True, selectSet=[tasks])],
        propSet=[query.PropertySpec(type=vim.Task, pathSet=list(PATHS), all=False)],
    )
    collector = session.content.propertyCollector
    try:
        found = session.read(collector.RetrievePropertiesEx, [spec], query.RetrieveOptions(), subject=ref)
    except GpuopsError as error:
        if isinstance(error.__cause__, vmodl.fault.ManagedObjectNotFound):
            return []
        raise
    recent: list[tuple[str, dict[str, Any]]] = []
    while found is not None:
        recent += [(str(each.obj._moId), {one.name: one.val for one in each.propSet}) for each in found.objects]
        found = session.read(collector.ContinueRetrievePropertiesEx, found.token) if found.token else None
    return recent


def _user(session: Session) -> str | None:
    current = session.read(lambda: session.content.sessionManager.currentSession)
    return current.userName if current else None


def _asked_by(user: str | None, reason: Any) -> bool:
    asked = getattr(reason, "userName", None)
    return user is not None and asked is not None and asked.casefold() == user.casefold()
