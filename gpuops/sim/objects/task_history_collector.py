"""TaskHistoryCollector: the tasks that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.inventory_tree import ancestors
from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.history_collector import HistoryCollector

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.objects.task import Task


class TaskHistoryCollector(HistoryCollector):
    """Scrolls through tasks, oldest first."""

    wsdl_name = "TaskHistoryCollector"

    def matching(self) -> list[Any]:
        return [task.read("info") for task in self.world.tasks.history() if _matches(task, self.spec)]

    @prop("latestPage")
    def _latest_page(self) -> list[Any]:
        return self.latest_page()

    @method
    def ReadNextTasks(self, call: Call, maxCount: int) -> list[Any]:
        return self.read_next(maxCount)

    @method
    def ReadPreviousTasks(self, call: Call, maxCount: int) -> list[Any]:
        return self.read_previous(maxCount)


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
    above = {each.moid for each in ancestors(task.entity)}
    return moid in above or (by_entity.recursion == "all" and task.entity.moid == moid)


def _matches_time(task: Task, by_time: Any) -> bool:
    if by_time is None:
        return True
    moments = {"queuedTime": task.queued_at, "startedTime": task.started_at, "completedTime": task.ended_at}
    moment = moments[by_time.timeType]
    if moment is None:
        return False
    moment += task.skew
    begins = by_time.beginTime is None or moment >= by_time.beginTime
    return begins and (by_time.endTime is None or moment <= by_time.endTime)
