"""Handles lost replies: finds the task of a change among those vCenter shows, and whether this login started a VM."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError, NoPermission
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import (
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    SetVmDrs,
    Step,
    SuspendVm,
)
from gpuops.vsphere.faults import is_gone

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

DESCRIPTIONS: Final[dict[type, str]] = {
    ReconfigureVm: "VirtualMachine.reconfigure",
    RelocateVm: "VirtualMachine.relocate",
    PowerOnVm: "VirtualMachine.powerOn",
    ResumeVm: "VirtualMachine.powerOn",
    SuspendVm: "VirtualMachine.suspend",
    PowerOffVm: "VirtualMachine.powerOff",
    SetVmDrs: "ComputeResource.reconfigureEx",
    PowerOffForRemoval: "VirtualMachine.powerOff",
    RemoveVm: "VirtualMachine.destroy",
}
"""TaskInfo.descriptionId of the task a step makes (vSphere API reference, TaskDescription.methodInfo). That of a
removal is the one that OpenShift's machine-api-operator looks for (pkg/controller/vsphere/reconciler.go)."""

PATHS: Final = ("info.descriptionId", "info.queueTime", "info.reason", "info.state")

UNENDED: Final = ("queued", "running")
"""TaskInfo.state of a task that has not ended (vSphere API reference, TaskInfoState)."""
FAILED: Final = "error"

_NEAR: Final = timedelta(hours=1)
"""A suspend may last half an hour (`limits.step_timeout_s`), and the clocks of hosts and vCenter differ."""

_MOST: Final = 1000
"""More tasks than one VM has unended at once, as recent ones, or in a night; ReadNextTasks takes no more."""


def find_task(session: Session, step: Step, since: datetime, login: str = "") -> TaskRef | None:
    """The newest task of this kind that still runs, or was queued at `since` (by vCenter) or later.

    On the step's VM, or on the cluster that the step changes.
    A task does not carry the header it was asked with, so kind, VM and time are all there is to know it by; one that
    this login asked for, or `login` before it, comes first. Somebody else's leads to the same state, and ours could not
    run beside it; it is called foreign. What runs needs no time: vCenter's clock may have been put back since.
    One whose object is lost, in a restart of vCenter perhaps, is found in the task history while that has not seen it
    end: nobody can wait for it, but its work may go on.
    None = none is there: the request did not arrive, or its task has ended and was forgotten (recentTask keeps them
    some minutes).
    """
    description = DESCRIPTIONS.get(type(step))
    if description is None:
        return None
    user, entity = _user(session), session.vm(step.vm)
    if isinstance(step, SetVmDrs):
        entity = _cluster(session, step.vm)
        if entity is None:
            return None
    for read_tasks in (_recent_tasks, _unended_tasks):
        tasks = read_tasks(session, entity)
        with session.decoding("a read of tasks"):
            alike = [
                (is_own is True, queued, ref, is_own is False)
                for ref, task_info in tasks
                if task_info.get("info.descriptionId") == description
                and (queued := task_info.get("info.queueTime")) is not None
                and (queued >= since or task_info.get("info.state") in UNENDED)
                for is_own in [_is_own(user, task_info.get("info.reason"), login)]
            ]
        if alike:
            _, _, ref, foreign = max(alike)
            return TaskRef(ref, foreign=foreign)
    return None


def started_by_this_login(session: Session, vm: str, since: datetime, login: str = "") -> bool:
    """Whether a VM that runs does so by a start which this login or `login` asked for at `since` (by vCenter) or later.

    The task history tells, long after a task's object is gone: a start of this login that has not failed, or one that
    has where nobody else's is there, for a start that vCenter gave up may still come. A start that nothing tells of is
    not this login's.
    """
    starts = [(is_own is not False, succeeded) for is_own, succeeded in _starts(session, vm, since, login)]
    return (True, True) in starts or ((True, False) in starts and (False, True) not in starts)


def started_by_others(session: Session, vm: str, since: datetime) -> bool:
    """Whether somebody else asked for a start of a VM at `since` (by vCenter) or later, which has not failed.

    vSphere HA restarts a VM without a task, and what vCenter does by itself has no user: neither counts.
    """
    return (False, True) in _starts(session, vm, since)


def has_power_task_near(session: Session, vm: str, moment: datetime) -> bool | None:
    """Whether the task history has a suspend or start of a VM that was queued within an hour of the moment and has not
    failed, whoever asked for it. None = this login may not read the history."""
    from pyVmomi import vim

    window = vim.TaskFilterSpec.ByTime(timeType="queuedTime", beginTime=moment - _NEAR, endTime=moment + _NEAR)
    try:
        history = _history(session, session.vm(vm), time=window)
    except NoPermission:
        return None
    kinds = (DESCRIPTIONS[SuspendVm], DESCRIPTIONS[PowerOnVm])
    with session.decoding("a read of tasks"):
        tasks = [task_info for _, task_info in history if task_info.get("info.descriptionId") in kinds]
        return any(task_info.get("info.state") != FAILED for task_info in tasks)


def _starts(session: Session, vm: str, since: datetime, login: str = "") -> list[tuple[bool | None, bool]]:
    """The starts of a VM in the task history, queued at `since` or later: whether this login asked for it (None =
    nobody did, or that cannot be told), and whether it has not failed."""
    from pyVmomi import vim

    user, queued = _user(session), vim.TaskFilterSpec.ByTime(timeType="queuedTime", beginTime=since)
    history = _history(session, session.vm(vm), time=queued)
    with session.decoding("a read of tasks"):
        return [
            (_is_own(user, task_info.get("info.reason"), login), task_info.get("info.state") != FAILED)
            for _, task_info in history
            if task_info.get("info.descriptionId") == DESCRIPTIONS[PowerOnVm]
        ]


def _cluster(session: Session, ref: str) -> Any:
    """What the VM's host is in; None for a VM that is gone, or that this login cannot see the host of."""
    try:
        host = session.read(lambda: session.vm(ref).runtime.host, subject=ref)
        return session.read(lambda: host.parent, subject=ref) if host is not None else None
    except GpuopsError as error:
        if is_gone(error):
            return None
        raise


def _recent_tasks(session: Session, entity: Any) -> list[tuple[str, dict[str, Any]]]:
    """(id, info) of the tasks that a VM or cluster lists as recent; none for one that is gone."""
    from pyVmomi import vim, vmodl

    query = vmodl.query.PropertyCollector
    tasks = query.TraversalSpec(name="tasks", type=type(entity), path="recentTask", skip=False)
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=entity, skip=True, selectSet=[tasks])],
        propSet=[query.PropertySpec(type=vim.Task, pathSet=list(PATHS), all=False)],
    )
    try:
        contents = session.retrieve(spec, _MOST, subject=_name(entity))
    except GpuopsError as error:
        if is_gone(error):
            return []
        raise
    with session.decoding("a read of recent tasks"):
        return [(str(content.obj._moId), {prop.name: prop.val for prop in content.propSet}) for content in contents]


def _unended_tasks(session: Session, entity: Any) -> list[tuple[str, dict[str, Any]]]:
    """(id, info) of its tasks that the history of vCenter has not seen end; none for one that is gone."""
    return _history(session, entity, state=list(UNENDED))


def _history(session: Session, entity: Any, **which: Any) -> list[tuple[str, dict[str, Any]]]:
    """(id, info) of those of its tasks in the history of vCenter; none for one that is gone."""
    from pyVmomi import vim

    spec = vim.TaskFilterSpec(entity=vim.TaskFilterSpec.ByEntity(entity=entity, recursion="self"), **which)
    try:
        task_infos = _read_history(session, spec, _name(entity))
    except GpuopsError as error:
        if is_gone(error):
            return []
        raise
    with session.decoding("ReadNextTasks"):
        return [
            (str(task_info.task._moId), {path: getattr(task_info, path.removeprefix("info.")) for path in PATHS})
            for task_info in task_infos
        ]


def _read_history(session: Session, spec: Any, subject: str) -> list[Any]:
    """The TaskInfo of each task in the history of vCenter that the filter lets through.

    A collector lives as long as the session that made it: when that breaks off, all of this is asked anew.
    """

    def collect() -> list[Any]:
        collector = session.content.taskManager.CreateCollectorForTasks(spec)
        try:
            return list(collector.ReadNextTasks(_MOST))
        finally:
            collector.DestroyCollector()

    return session.read(collect, subject=subject)


def _name(entity: Any) -> str:
    return str(entity._moId)


def _user(session: Session) -> str | None:
    current = session.read(lambda: session.content.sessionManager.currentSession)
    return current.userName if current else None


def _is_own(user: str | None, reason: Any, login: str = "") -> bool | None:
    """Whether this login, or `login` as it is typed, asked for a task; None = it does not say who did."""
    task_user = getattr(reason, "userName", None)
    if user is None or task_user is None:
        return None
    return task_user.casefold() == user.casefold() or (bool(login) and _account(task_user) == _account(login))


def _account(user: str) -> str:
    """The account of `DOMAIN\\user` or `user@domain`: which form of the domain vCenter shows is not known."""
    return user.rpartition("\\")[2].partition("@")[0].casefold()
