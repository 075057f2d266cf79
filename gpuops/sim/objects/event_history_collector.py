"""EventHistoryCollector: the events that match a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import VmomiSupport

from gpuops.sim.managed_object import method, prop
from gpuops.sim.objects.history_collector import HistoryCollector

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.events import Posted
    from gpuops.sim.world import World


class EventHistoryCollector(HistoryCollector):
    """Scrolls through events."""

    wsdl_name = "EventHistoryCollector"

    def matching(self) -> list[Any]:
        return matching_events(self.world, self.spec)

    @prop("latestPage")
    def _latest_page(self) -> list[Any]:
        return self.latest_page()

    @prop("initialized")
    def _initialized(self) -> bool:
        return True

    @method
    def ReadNextEvents(self, call: Call, maxCount: int) -> list[Any]:
        return self.read_next(maxCount)

    @method
    def ReadPreviousEvents(self, call: Call, maxCount: int) -> list[Any]:
        return self.read_previous(maxCount)


def matching_events(world: World, spec: Any) -> list[Any]:
    """The events an EventFilterSpec means, oldest first; at most its maxCount, the newest of them."""
    found = [posted for posted in world.events if _matches(posted, spec)]
    return [posted.render() for posted in (found[-spec.maxCount :] if spec.maxCount else found)]


def _matches(posted: Posted, spec: Any) -> bool:
    return (
        _matches_type(posted, spec)
        and _matches_entity(posted, spec.entity)
        and _matches_time(posted, spec.time)
        and (spec.userName is None or posted.user in spec.userName.userList)
        and (spec.eventChainId is None or posted.chain == spec.eventChainId)
    )


def _matches_type(posted: Posted, spec: Any) -> bool:
    wanted = {*spec.eventTypeId, *(VmomiSupport.GetWsdlName(kind) for kind in spec.type)}
    if not wanted:
        return True
    kind = VmomiSupport.GetWsdlType("urn:vim25", posted.kind)
    names = {VmomiSupport.GetWsdlName(each) for each in kind.__mro__ if hasattr(each, "_wsdlName")}
    return not wanted.isdisjoint(names | {f"vim.event.{posted.kind}"})


def _matches_entity(posted: Posted, by_entity: Any) -> bool:
    if by_entity is None:
        return True
    moid = by_entity.entity._moId
    if by_entity.recursion == "self":
        return posted.subject == moid or moid in {reference._moId for _, reference in posted.arguments.values()}
    if by_entity.recursion == "children":
        return moid in posted.places and posted.subject != moid
    return moid in posted.places


def _matches_time(posted: Posted, by_time: Any) -> bool:
    if by_time is None:
        return True
    begins = by_time.beginTime is None or posted.at >= by_time.beginTime
    return begins and (by_time.endTime is None or posted.at <= by_time.endTime)
