"""TaskManager: recent tasks, and collectors of older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim, vmodl

from gpuops.sim.managed_object import ManagedObject, method, prop
from gpuops.sim.objects.task import Task, TaskState
from gpuops.sim.objects.task_history_collector import TaskHistoryCollector

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World


class TaskManager(ManagedObject):
    """The task table on the wire."""

    wsdl_name = "TaskManager"
    world: World

    @prop("recentTask")
    def _recent_task(self) -> list[Task]:
        return self.world.tasks.readable()

    @prop("maxCollector")
    def _max_collector(self) -> int:
        return 1000

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

    @method
    def CreateCollectorWithInfoFilterForTasks(
        self, call: Call, filter: Any, infoFilter: Any = None
    ) -> TaskHistoryCollector:
        return self.CreateCollectorForTasks(call, filter)


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
