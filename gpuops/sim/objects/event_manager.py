"""EventManager: the event log on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.events import MESSAGES
from gpuops.sim.managed_object import UNSET, ManagedObject, method, prop
from gpuops.sim.objects.event_history_collector import EventHistoryCollector, matching_events

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World


class EventManager(ManagedObject):
    """Queries and collectors of events."""

    wsdl_name = "EventManager"
    world: World

    @prop("latestEvent")
    def _latest_event(self) -> Any:
        latest = self.world.events.latest
        return UNSET if latest is None else latest.render()

    @prop("maxCollector")
    def _max_collector(self) -> int:
        return 1000

    @prop("description")
    def _description(self) -> Any:
        category = vim.ElementDescription(key="info", label="Information", summary="Information")
        return vim.event.EventDescription(category=[category], eventInfo=[_detail(kind) for kind in MESSAGES])

    @method
    def QueryEvents(self, call: Call, filter: Any, eventViewSpec: Any = None) -> list[Any]:
        return matching_events(self.world, filter)

    @method
    def CreateCollectorForEvents(self, call: Call, filter: Any) -> EventHistoryCollector:
        if call.session is None:
            raise vmodl.fault.InvalidRequest(msg="A collector belongs to a session.")
        return EventHistoryCollector(self.world, call.session, filter)

    @method
    def LogUserEvent(self, call: Call, entity: Any, msg: str) -> None:
        self.world.events.post(call, "GeneralUserEvent", self.world.get(entity), message=msg)

    @method
    def PostEvent(self, call: Call, eventToPost: Any, taskInfo: Any = None) -> None:
        kind = VmomiSupport.GetWsdlName(type(eventToPost))
        subject = next((eventToPost.vm.vm for _ in (1,) if eventToPost.vm), None)
        entity = self.world.get(subject) if subject is not None else self.world.get("group-d1")
        own = {
            info.name: getattr(eventToPost, info.name)
            for info in type(eventToPost)._GetPropertyList()
            if info.name not in vim.event.Event._propInfo and getattr(eventToPost, info.name) is not None
        }
        text = eventToPost.fullFormattedMessage or own.get("message") or ""
        self.world.events.post(call, kind, entity, own=own, message=text)


def _detail(kind: str) -> Any:
    text = MESSAGES[kind]
    return vim.event.EventDescription.EventDetail(
        key=VmomiSupport.GetWsdlType("urn:vim25", kind),
        description=kind,
        category="info",
        formatOnDatacenter=text,
        formatOnComputeResource=text,
        formatOnHost=text,
        formatOnVm=text,
        fullFormat=text,
    )
