"""The TaskManager object: recent tasks, and the collectors that scroll through older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim, vmodl

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method, prop
from gpuops.sim.core.task import Task, TaskState
from gpuops.sim.services.history_collector import HistoryCollector, is_within

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.task import Task
    from gpuops.sim.world import World


class TaskHistoryCollector(HistoryCollector):
    """Scrolls through tasks, oldest first."""

    wsdl_name = "TaskHistoryCollector"

    property_table: ClassVar[Properties] = {"latestPage": lambda self: self.latest_page()}

    method_table: ClassVar[Methods] = {
        "ReadNextTasks": lambda self, call, maxCount: self.read_next(maxCount),
        "ReadPreviousTasks": lambda self, call, maxCount: self.read_previous(maxCount),
    }

    def matching(self) -> list[Any]:
        return [task.read("info") for task in self.world.tasks.history() if _matches(task, self.spec)]


def _matches(task: Task, spec: Any) -> bool:
    return (
        _matches_entity(task, spec.entity)
        and _matches_time(task, spec.time)
        and (not spec.state or task.state in spec.state)
        and (spec.userName is None or task.call.user in spec.userName.userList)
        and (not spec.eventChainId or task.event_chain_id in spec.eventChainId)
        and (not spec.activationId or task.call.operation_id in spec.activationId)
    )


def _matches_entity(task: Task, by_entity: Any) -> bool:
    if by_entity is None:
        return True
    moid = by_entity.entity._moId
    if by_entity.recursion == "self":
        return task.entity.moid == moid
    above = {ancestor.moid for ancestor in ancestors(task.entity)}
    return moid in above or (by_entity.recursion == "all" and task.entity.moid == moid)


def _matches_time(task: Task, by_time: Any) -> bool:
    if by_time is None:
        return True
    moments = {"queuedTime": task.queued_at, "startedTime": task.started_at, "completedTime": task.ended_at}
    moment = moments[by_time.timeType]
    return moment is not None and is_within(moment + task.skew, by_time)


class TaskManager(ManagedObject):
    """The task table on the wire."""

    wsdl_name = "TaskManager"
    world: World

    property_table: ClassVar[Properties] = {
        "recentTask": lambda self: self.world.tasks.readable(),
        "maxCollector": lambda self: 1000,
    }

    @prop("description")
    def _description(self) -> Any:
        states = [
            vim.ElementDescription(key=state.value, label=state.value.capitalize(), summary=state.value)
            for state in TaskState
        ]
        reason = vim.TypeDescription(key=vim.TaskReasonUser, label="user", summary="Started by a user")
        method_info = [
            vim.ElementDescription(key=key, label=label, summary=label) for key, label in DESCRIPTIONS.items()
        ]
        return vim.TaskDescription(methodInfo=method_info, state=states, reason=[reason])

    @method
    def CreateCollectorForTasks(self, call: Call, filter: Any) -> TaskHistoryCollector:
        if call.session is None:
            raise vmodl.fault.InvalidRequest(msg="A collector belongs to a session.")
        return TaskHistoryCollector(self.world, call.session, filter)


# Labels of TaskInfo.descriptionId, as the vSphere Client shows them.
DESCRIPTIONS = {
    "VirtualMachine.powerOn": "Power On virtual machine",
    "VirtualMachine.powerOff": "Power Off virtual machine",
    "VirtualMachine.suspend": "Suspend virtual machine",
    "VirtualMachine.reset": "Reset virtual machine",
    "VirtualMachine.reconfigure": "Reconfigure virtual machine",
    "VirtualMachine.relocate": "Relocate virtual machine",
    "VirtualMachine.migrate": "Migrate virtual machine",
    "VirtualMachine.clone": "Clone virtual machine",
    "VirtualMachine.createSnapshot": "Create virtual machine snapshot",
    "ManagedEntity.destroy": "Delete",
    "ManagedEntity.rename": "Rename",
    "HostSystem.enterMaintenanceMode": "Enter maintenance mode",
    "HostSystem.exitMaintenanceMode": "Exit maintenance mode",
    "HostSystem.reboot": "Reboot host",
    "ComputeResource.reconfigureEx": "Reconfigure cluster",
}
