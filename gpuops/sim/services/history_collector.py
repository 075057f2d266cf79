"""The EventManager and TaskManager objects, and their collectors, which scroll through older events and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.core.managed_object import UNSET, ManagedObject, Methods, Properties, method, prop
from gpuops.sim.core.task_object import Task, TaskState
from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import described
from gpuops.sim.vcenter.events import MESSAGES

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.sim.core.call import Call
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.vcenter.events import LoggedEvent
    from gpuops.sim.world import World

PAGE_SIZE: Final = 10
LARGEST_PAGE: Final = 1000


class HistoryCollector(ManagedObject):
    """The base of both collectors. The position of a client is between two items, at first before the oldest."""

    wsdl_name = "HistoryCollector"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {"filter": lambda self: self.spec}

    def __init__(self, world: World, session: ClientSession, spec: Any) -> None:
        super().__init__(world, session.unique_moid())
        self.session = session
        self.spec = spec
        self._page_size = PAGE_SIZE
        self._position = 0
        session.add(self)

    def matching(self) -> list[Any]:
        """All items that match, oldest first, rendered."""
        raise NotImplementedError

    def latest_page(self) -> list[Any]:
        """The newest page, newest first as vCenter sends it."""
        return self.matching()[-self._page_size :][::-1]

    def read_next(self, count: int) -> list[Any]:
        """The next newer items. Raises InvalidArgument for a count out of range (vSphere API, ReadNextEvents)."""
        _check_count(count)
        items = self.matching()
        page = items[self._position : self._position + count]
        self._position += len(page)
        return page

    def read_previous(self, count: int) -> list[Any]:
        """The next older items, newest first. Raises InvalidArgument."""
        _check_count(count)
        start = max(0, self._position - count)
        page = self.matching()[start : self._position]
        self._position = start
        return page[::-1]

    @method
    def SetCollectorPageSize(self, call: Call, maxCount: int) -> None:
        self._page_size = max(1, min(maxCount, LARGEST_PAGE))

    @method
    def RewindCollector(self, call: Call) -> None:
        self._position = 0

    @method
    def ResetCollector(self, call: Call) -> None:
        self._position = len(self.matching())

    @method
    def DestroyCollector(self, call: Call) -> None:
        self.session.remove(self)


def is_within(moment: datetime, by_time: Any) -> bool:
    """Whether a moment is in the range of a filter by time, whose ends may be unset."""
    is_after_begin = by_time.beginTime is None or moment >= by_time.beginTime
    return is_after_begin and (by_time.endTime is None or moment <= by_time.endTime)


def _check_count(count: int) -> None:
    if count < 1:
        raise faults.wrong_argument("maxCount")


class EventHistoryCollector(HistoryCollector):
    """Scrolls through events."""

    wsdl_name = "EventHistoryCollector"

    property_table: ClassVar[Properties] = {
        "latestPage": lambda self: self.latest_page(),
        "initialized": lambda self: True,
    }

    method_table: ClassVar[Methods] = {
        "ReadNextEvents": lambda self, call, maxCount: self.read_next(maxCount),
        "ReadPreviousEvents": lambda self, call, maxCount: self.read_previous(maxCount),
    }

    def matching(self) -> list[Any]:
        return matching_events(self.world, self.spec)


def matching_events(world: World, spec: Any) -> list[Any]:
    """Return the events that match an EventFilterSpec, oldest first; with maxCount, only the newest ones."""
    events = [posted for posted in world.events if _event_matches(posted, spec)]
    return [posted.render() for posted in (events[-spec.maxCount :] if spec.maxCount else events)]


def _event_matches(posted: LoggedEvent, spec: Any) -> bool:
    return (
        _matches_type(posted, spec)
        and _event_concerns(posted, spec.entity)
        and (spec.time is None or is_within(posted.at, spec.time))
        and (spec.userName is None or posted.user in spec.userName.userList)
        and (spec.eventChainId is None or posted.chain == spec.eventChainId)
    )


def _matches_type(posted: LoggedEvent, spec: Any) -> bool:
    type_names = {*spec.eventTypeId, *(VmomiSupport.GetWsdlName(kind) for kind in spec.type)}
    if not type_names:
        return True
    kind = VmomiSupport.GetWsdlType("urn:vim25", posted.kind)
    names = {VmomiSupport.GetWsdlName(base) for base in kind.__mro__ if hasattr(base, "_wsdlName")}
    return not type_names.isdisjoint(names | {f"vim.event.{posted.kind}"})


def _event_concerns(posted: LoggedEvent, by_entity: Any) -> bool:
    if by_entity is None:
        return True
    moid = by_entity.entity._moId
    if by_entity.recursion == "self":
        return posted.subject == moid or moid in {reference._moId for _, reference in posted.arguments.values()}
    if by_entity.recursion == "children":
        return moid in posted.places and posted.subject != moid
    return moid in posted.places


class EventManager(ManagedObject):
    """Queries and collectors of events."""

    wsdl_name = "EventManager"
    world: World

    property_table: ClassVar[Properties] = {"maxCollector": lambda self: 1000}

    method_table: ClassVar[Methods] = {
        "QueryEvents": lambda self, call, filter, **_: matching_events(self.world, filter)
    }

    @prop("latestEvent")
    def _latest_event(self) -> Any:
        latest = self.world.events.latest
        return UNSET if latest is None else latest.render()

    @prop("description")
    def _description(self) -> Any:
        category = described("info", "Information")
        return vim.event.EventDescription(category=[category], eventInfo=[_detail(kind) for kind in MESSAGES])

    @method
    def CreateCollectorForEvents(self, call: Call, filter: Any) -> EventHistoryCollector:
        if call.session is None:
            raise vmodl.fault.InvalidRequest(msg="A collector can only be made in a session: log in first.")
        return EventHistoryCollector(self.world, call.session, filter)


def _detail(kind: str) -> Any:
    format_fields = ("formatOnDatacenter", "formatOnComputeResource", "formatOnHost", "formatOnVm", "fullFormat")
    return vim.event.EventDescription.EventDetail(
        key=VmomiSupport.GetWsdlType("urn:vim25", kind),
        description=kind,
        category="info",
        **dict.fromkeys(format_fields, MESSAGES[kind]),
    )


class TaskHistoryCollector(HistoryCollector):
    """Scrolls through tasks, oldest first."""

    wsdl_name = "TaskHistoryCollector"

    property_table: ClassVar[Properties] = {"latestPage": lambda self: self.latest_page()}

    method_table: ClassVar[Methods] = {
        "ReadNextTasks": lambda self, call, maxCount: self.read_next(maxCount),
        "ReadPreviousTasks": lambda self, call, maxCount: self.read_previous(maxCount),
    }

    def matching(self) -> list[Any]:
        return [task.read("info") for task in self.world.tasks.history() if _task_matches(task, self.spec)]


def _task_matches(task: Task, spec: Any) -> bool:
    return (
        _task_concerns(task, spec.entity)
        and _matches_time(task, spec.time)
        and (not spec.state or task.state in spec.state)
        and (spec.userName is None or task.call.user in spec.userName.userList)
        and (not spec.eventChainId or task.event_chain_id in spec.eventChainId)
        and (not spec.activationId or task.call.operation_id in spec.activationId)
    )


def _task_concerns(task: Task, by_entity: Any) -> bool:
    if by_entity is None:
        return True
    moid = by_entity.entity._moId
    if by_entity.recursion == "self":
        return task.entity.moid == moid
    ancestor_moids = {ancestor.moid for ancestor in ancestors(task.entity)}
    return moid in ancestor_moids or (by_entity.recursion == "all" and task.entity.moid == moid)


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
        states = [described(state.value, state.value.capitalize()) for state in TaskState]
        reason = vim.TypeDescription(key=vim.TaskReasonUser, label="user", summary="Started by a user")
        method_info = [described(key, label) for key, label in DESCRIPTIONS.items()]
        return vim.TaskDescription(methodInfo=method_info, state=states, reason=[reason])

    @method
    def CreateCollectorForTasks(self, call: Call, filter: Any) -> TaskHistoryCollector:
        if call.session is None:
            raise vmodl.fault.InvalidRequest(msg="A collector can only be made in a session: log in first.")
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
