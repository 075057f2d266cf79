"""The EventManager object, and the collectors that scroll through events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.core.managed_object import UNSET, ManagedObject, Methods, Properties, method, prop
from gpuops.sim.services.history_collector import HistoryCollector, is_within
from gpuops.sim.vcenter.events import MESSAGES

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.vcenter.events import LoggedEvent
    from gpuops.sim.world import World


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
    """The events an EventFilterSpec means, oldest first; at most its maxCount, the newest of them."""
    events = [posted for posted in world.events if _matches(posted, spec)]
    return [posted.render() for posted in (events[-spec.maxCount :] if spec.maxCount else events)]


def _matches(posted: LoggedEvent, spec: Any) -> bool:
    return (
        _matches_type(posted, spec)
        and _matches_entity(posted, spec.entity)
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


def _matches_entity(posted: LoggedEvent, by_entity: Any) -> bool:
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
        category = vim.ElementDescription(key="info", label="Information", summary="Information")
        return vim.event.EventDescription(category=[category], eventInfo=[_detail(kind) for kind in MESSAGES])

    @method
    def CreateCollectorForEvents(self, call: Call, filter: Any) -> EventHistoryCollector:
        if call.session is None:
            raise vmodl.fault.InvalidRequest(msg="A collector belongs to a session.")
        return EventHistoryCollector(self.world, call.session, filter)


def _detail(kind: str) -> Any:
    places = ("formatOnDatacenter", "formatOnComputeResource", "formatOnHost", "formatOnVm", "fullFormat")
    return vim.event.EventDescription.EventDetail(
        key=VmomiSupport.GetWsdlType("urn:vim25", kind),
        description=kind,
        category="info",
        **dict.fromkeys(places, MESSAGES[kind]),
    )
