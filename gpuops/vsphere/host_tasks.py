"""Host tasks: maintenance mode and reboot of a host, and waiting until it is back.

Source: vSphere API reference, HostSystem: RebootHost_Task ends when the reboot has begun, so that only the host's own
boot time tells that it is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, assert_never

from gpuops import clock
from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.model.host import has_booted
from gpuops.model.task import TaskRef
from gpuops.plan.core.steps import EnterMaintenance, HostTask, LeaveMaintenance, RebootHost
from gpuops.vsphere import managed
from gpuops.vsphere.adoption import is_gone
from gpuops.vsphere.updates import Updates

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

DESCRIPTIONS: Final[Mapping[type, str]] = {
    EnterMaintenance: "HostSystem.enterMaintenanceMode",
    LeaveMaintenance: "HostSystem.exitMaintenanceMode",
    RebootHost: "HostSystem.reboot",
}
"""TaskInfo.descriptionId of the task a step makes (vSphere API reference, TaskDescription.methodInfo)."""

LEAVE_LIMIT_S: Final = 600
PATHS: Final = ("runtime.connectionState", "runtime.bootTime")
SLICE_S: Final = 20.0


def submit(session: Session, step: HostTask, name: str, op_id: str) -> TaskRef:
    """The task of the step. Raises OutcomeUnknown when the reply was lost, or the error of vCenter's fault."""
    from pyVmomi import vim

    target = managed.host(session, step.host)
    match step:
        case EnterMaintenance(vsan_mode=mode, limit_s=limit_s):
            spec = vim.host.MaintenanceSpec(vsanMode=vim.vsan.host.DecommissionMode(objectAction=mode.value))
            # VMs that are off stay on it: it comes back
            task = session.change(target.EnterMaintenanceMode_Task, limit_s, False, spec, subject=name, op_id=op_id)
        case LeaveMaintenance():
            task = session.change(target.ExitMaintenanceMode_Task, LEAVE_LIMIT_S, subject=name, op_id=op_id)
        case RebootHost():
            task = session.change(target.RebootHost_Task, False, subject=name, op_id=op_id)
        case _:
            assert_never(step)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{name}: vCenter answered without a task; whether it happened is not known yet")
    return TaskRef(str(task._moId))


def adopt(session: Session, step: HostTask) -> TaskRef | None:
    """A task of this kind that has not ended on the host; somebody else's leads to the same state. None where the host
    is gone."""
    target = managed.host(session, step.host)
    try:
        tasks = [
            (task, session.read(lambda task=task: task.info, subject=step.host)) for task in _recent(session, target)
        ]
    except GpuopsError as error:
        if is_gone(error):
            return None
        raise
    for task, info in tasks:
        if info and info.descriptionId == DESCRIPTIONS[type(step)] and info.state in ("queued", "running"):
            return TaskRef(str(task._moId))
    return None


def _recent(session: Session, target: Any) -> Sequence[Any]:
    return session.read(lambda: target.recentTask, subject=str(target._moId)) or ()


def wait_for_boot(session: Session, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
    """Those of these hosts that are connected, and booted at another moment than the one given, within the time."""
    left, back, left_s = set(since), set[str](), max(timeout_s, 0.0)
    seen: dict[str, dict[str, Any]] = {ref: {} for ref in since}
    updates = Updates(session)
    try:
        updates.watch([managed.host(session, ref) for ref in since], PATHS)
        while left:
            slice_s, asked_at = min(SLICE_S, left_s), clock.passed_s()
            news = updates.next(slice_s)
            left_s -= max(slice_s if news is None else 0.0, clock.passed_s() - asked_at)
            for each in news or ():
                seen.setdefault(each.ref, {}).update(each.values)
            with session.decoding("a wait for hosts"):
                back |= {ref for ref in left if _is_back(seen[ref], since[ref])}
            left -= back
            if left_s <= 0:
                break
    finally:
        updates.close()
    return frozenset(back)


def _is_back(values: Mapping[str, Any], before: datetime | None) -> bool:
    booted = values.get("runtime.bootTime")
    connected = values.get("runtime.connectionState") == "connected"
    return connected and has_booted(booted.astimezone(UTC) if booted is not None else None, before)
