"""Handles lost replies: finds the task of a change, and finds out whether this login started a VM."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError, NoPermission
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import (
    CloneVm,
    CreateVm,
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
from gpuops.vsphere.writing import new_vms

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
    CloneVm: "VirtualMachine.clone",
    CreateVm: "Folder.createVm",
    PowerOffForRemoval: "VirtualMachine.powerOff",
    RemoveVm: "VirtualMachine.destroy",
}
"""TaskInfo.descriptionId of the task a step makes (vSphere API reference, TaskDescription.methodInfo). That of a
removal is the one that OpenShift's machine-api-operator looks for (pkg/controller/vsphere/reconciler.go)."""

PATHS: Final = ("info.descriptionId", "info.queueTime", "info.reason", "info.state")

UNENDED: Final = ("queued", "running")
"""TaskInfo.state of a task that has not ended (vSphere API reference, TaskInfoState)."""
FAILED: Final = "error"

_LONGEST_DISTANCE: Final = timedelta(hours=1)
"""A suspend may take half an hour (`limits.step_timeout_s`), and the clocks of hosts and vCenter differ."""

_MOST_TASKS: Final = 1000
"""More tasks than one VM has at once, as recent ones, or in a night; the limit of ReadNextTasks."""


def find_task(
    session: Session, step: Step, since: datetime, login: str = "", known: Collection[str] = ()
) -> TaskRef | None:
    """Return the newest task of this type that still runs, or was queued at `since` (vCenter's time) or later.

    It is a task of the step's VM, of the template that the step clones, of the folder in which the step creates a VM,
    or of the cluster that the step changes. A task does not contain the operation id of its request, so it is
    recognised by type, object and time. A template may have several such tasks: `known` are those of other steps. Tasks
    of this login, or of `login`, take precedence. A task of another user, which is marked as foreign, leads to the same
    state, and the task of this step could not run at the same time. For a running task the time does not count:
    vCenter's clock may have been set back.
    A task object may be lost, for example in a restart of vCenter. The task history then still has the task without an
    end: it cannot be waited for, but may still have an effect.
    None = the request did not arrive, or its task has ended and vCenter has removed it (recentTask has them for some
    minutes).
    """
    description = DESCRIPTIONS.get(type(step))
    if description is None:
        return None
    user, entity = _user(session), _entity(session, step)
    if entity is None:
        return None
    # the task objects first; then the history, which also has tasks whose objects were lost
    for read_tasks in (_recent_tasks, partial(_history, state=list(UNENDED))):
        tasks = read_tasks(session, entity)
        with session.decoding("a read of tasks"):
            # sorted by max(): tasks of this login first, then the newest; the last value is whether it is foreign
            candidates = [
                (is_own is True, queued, ref, is_own is False)
                for ref, task_info in tasks
                if task_info.get("info.descriptionId") == description
                and (queued := task_info.get("info.queueTime")) is not None
                and (queued >= since or task_info.get("info.state") in UNENDED)
                and ref not in known
                for is_own in [_is_own(user, task_info.get("info.reason"), login)]
            ]
        if candidates:
            _, _, ref, foreign = max(candidates)
            return TaskRef(ref, foreign=foreign)
    return None


def started_by_this_login(session: Session, vm: str, since: datetime, login: str = "") -> bool:
    """Return whether this login, or `login`, started a running VM at `since` (vCenter's time) or later.

    The task history has tasks long after their objects are removed. The result is True for a start of this login that
    has not failed. It is also True for one that has failed, if no other user started the VM: vCenter may have given up
    a start that happened later. Without a task in the history the result is False.
    """
    # (whether it may be of this login, whether it has not failed) of each start
    starts = [(is_own is not False, succeeded) for is_own, succeeded in _starts(session, vm, since, login)]
    has_own_start, has_own_failed_start = (True, True) in starts, (True, False) in starts
    return has_own_start or (has_own_failed_start and (False, True) not in starts)


def started_by_others(session: Session, vm: str, since: datetime) -> bool:
    """Return whether another user started a VM at `since` (vCenter's time) or later, with a task that has not failed.

    Restarts by vSphere HA, which have no task, and tasks of vCenter itself, which have no user, do not count.
    """
    return (False, True) in _starts(session, vm, since)  # not of this login, and not failed


def has_power_task_near(session: Session, vm: str, moment: datetime) -> bool | None:
    """Return whether any user suspended or started a VM within an hour of the moment, with a task that has not failed.

    None = this login may not read the task history.
    """
    from pyVmomi import vim

    window = vim.TaskFilterSpec.ByTime(
        timeType="queuedTime", beginTime=moment - _LONGEST_DISTANCE, endTime=moment + _LONGEST_DISTANCE
    )
    try:
        history = _history(session, session.vm(vm), time=window)
    except NoPermission:
        return None
    power_tasks = (DESCRIPTIONS[SuspendVm], DESCRIPTIONS[PowerOnVm])
    with session.decoding("a read of tasks"):
        tasks = [task_info for _, task_info in history if task_info.get("info.descriptionId") in power_tasks]
        return any(task_info.get("info.state") != FAILED for task_info in tasks)


def _starts(session: Session, vm: str, since: datetime, login: str = "") -> list[tuple[bool | None, bool]]:
    """Return the starts of a VM in the task history that were queued at `since` or later.

    Each has two values: whether this login started it (None = no user, or unknown), and whether it has not failed.
    """
    from pyVmomi import vim

    user, period = _user(session), vim.TaskFilterSpec.ByTime(timeType="queuedTime", beginTime=since)
    history = _history(session, session.vm(vm), time=period)
    with session.decoding("a read of tasks"):
        return [
            (_is_own(user, task_info.get("info.reason"), login), task_info.get("info.state") != FAILED)
            for _, task_info in history
            if task_info.get("info.descriptionId") == DESCRIPTIONS[PowerOnVm]
        ]


def _cluster_of_vm(session: Session, ref: str) -> Any:
    """Return the parent of the VM's host, or None if the VM does not exist or this login cannot see the host."""
    try:
        host = session.read(lambda: session.vm(ref).runtime.host, subject=ref)
        return session.read(lambda: host.parent, subject=ref) if host is not None else None
    except GpuopsError as error:
        if is_gone(error):
            return None
        raise


def _entity(session: Session, step: Step) -> Any:
    """Return the object whose task the step is; None if it is a cluster that the VM is no longer in."""
    if isinstance(step, CloneVm):
        return session.vm(step.source)
    if isinstance(step, CreateVm):
        return new_vms.root_folder(session, step)
    return _cluster_of_vm(session, step.vm) if isinstance(step, SetVmDrs) else session.vm(step.vm)


def _recent_tasks(session: Session, entity: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return id and info of the recent tasks of a VM or cluster; empty if it does not exist any more."""
    from pyVmomi import vim, vmodl

    query = vmodl.query.PropertyCollector
    tasks = query.TraversalSpec(name="tasks", type=type(entity), path="recentTask", skip=False)
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=entity, skip=True, selectSet=[tasks])],
        propSet=[query.PropertySpec(type=vim.Task, pathSet=list(PATHS), all=False)],
    )
    try:
        contents = session.retrieve(spec, _MOST_TASKS, subject=str(entity._moId))
    except GpuopsError as error:
        if is_gone(error):
            return []
        raise
    with session.decoding("a read of recent tasks"):
        return [(str(content.obj._moId), {prop.name: prop.val for prop in content.propSet}) for content in contents]


def _history(session: Session, entity: Any, **filter_fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return id and info of the object's tasks in the task history; empty if the object does not exist any more.

    `filter_fields` are further fields of the TaskFilterSpec. The collector ends with the session; after a lost session
    the complete read is repeated.
    """
    from pyVmomi import vim

    spec = vim.TaskFilterSpec(entity=vim.TaskFilterSpec.ByEntity(entity=entity, recursion="self"), **filter_fields)

    def collect() -> list[Any]:
        collector = session.content.taskManager.CreateCollectorForTasks(spec)
        try:
            return list(collector.ReadNextTasks(_MOST_TASKS))
        finally:
            collector.DestroyCollector()

    try:
        task_infos = session.read(collect, subject=str(entity._moId))
    except GpuopsError as error:
        if is_gone(error):
            return []
        raise
    with session.decoding("ReadNextTasks"):
        return [
            (str(task_info.task._moId), {path: getattr(task_info, path.removeprefix("info.")) for path in PATHS})
            for task_info in task_infos
        ]


def _user(session: Session) -> str | None:
    """Return the user name of this login, as vCenter has it in tasks; None if vCenter does not return it."""
    current = session.read(lambda: session.content.sessionManager.currentSession)
    return current.userName if current else None


def _is_own(user: str | None, reason: Any, login: str = "") -> bool | None:
    """Return whether this login, or `login` as the admin wrote it, started a task; None = its user is unknown."""
    task_user = getattr(reason, "userName", None)
    if user is None or task_user is None:
        return None
    return task_user.casefold() == user.casefold() or (bool(login) and _account(task_user) == _account(login))


def _account(user: str) -> str:
    """Return the account of `DOMAIN\\user` or `user@domain`: it is unknown in which form vCenter has the domain."""
    return user.rpartition("\\")[2].partition("@")[0].casefold()
