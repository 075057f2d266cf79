"""Keeps the event log as plain values and renders it when a client reads it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.core.registry import is_kind_of

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.vcenter.tasks import Tasks

MAX_EVENTS: Final = 50_000
"""If there are more, the oldest are dropped; vCenter's database drops them by age."""

# The texts of vCenter's own catalogue (vSphere API reference, EventDescription); any other event has its type's name.
MESSAGES: Final[Mapping[str, str]] = {
    "VmStartingEvent": "{vm} on host {host} in {datacenter} is starting",
    "VmPoweredOnEvent": "{vm} on {host} in {datacenter} is powered on",
    "VmStoppingEvent": "{vm} on {host} in {datacenter} is stopping",
    "VmPoweredOffEvent": "{vm} on {host} in {datacenter} is powered off",
    "VmSuspendingEvent": "{vm} is being suspended",
    "VmSuspendedEvent": "{vm} on {host} in {datacenter} is suspended",
    "VmResumingEvent": "{vm} on {host} in {datacenter} is resumed",
    "VmResettingEvent": "{vm} on {host} in {datacenter} is reset",
    "VmReconfiguredEvent": "Reconfigured {vm} on {host} in {datacenter}",
    "VmGuestShutdownEvent": "Guest OS shut down for {vm} on {host} in {datacenter}",
    "VmGuestRebootEvent": "Guest OS reboot for {vm} on {host} in {datacenter}",
    "VmRelocatedEvent": "Relocated {vm} to {host} in {datacenter}",
    "VmMigratedEvent": "Migration of virtual machine {vm} to {host} in {datacenter} completed",
    "DrsVmMigratedEvent": "DRS migrated {vm} to {host} in cluster {computeResource} in {datacenter}",
    "VmClonedEvent": "Cloned {vm} on {host} in {datacenter}",
    "VmCreatedEvent": "Created virtual machine {vm} on {host} in {datacenter}",
    "VmRemovedEvent": "Removed {vm} on {host} from {datacenter}",
    "VmFailedToPowerOnEvent": "Cannot power on {vm} on {host} in {datacenter}",
    "VmFailedToSuspendEvent": "Cannot suspend {vm} on {host} in {datacenter}",
    "EnteredMaintenanceModeEvent": "Host {host} in {datacenter} has entered maintenance mode",
    "ExitMaintenanceModeEvent": "Host {host} in {datacenter} has exited maintenance mode",
    "ClusterReconfiguredEvent": "Reconfigured cluster {computeResource} in {datacenter}",
}


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event. `places` holds the moids of its subject and of everything above it, as they were then."""

    key: int
    chain: int
    kind: str
    at: datetime
    user: str
    message: str
    arguments: Mapping[str, tuple[str, Any]]
    """Event argument (`vm`, `host`, ...) -> (name then, reference)."""
    subject: str
    places: frozenset[str]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def render(self) -> Any:
        """Return the vmomi event. Its arguments, such as `vm`, are objects of their own types (VmEventArgument)."""
        from pyVmomi import VmomiSupport, vim

        event = VmomiSupport.GetWsdlType("urn:vim25", self.kind)(
            key=self.key,
            chainId=self.chain,
            createdTime=self.at,
            userName=self.user,
            fullFormattedMessage=self.message,
            **self.fields,
        )
        for name, (text, reference) in self.arguments.items():
            kind = getattr(vim.event, f"{_ARGUMENT_TYPES[name]}EventArgument")
            setattr(event, name, kind(name=text, **{_ARGUMENT_FIELDS.get(name, name): reference}))
        return event


_ARGUMENT_TYPES: Final = {
    "vm": "Vm",
    "host": "Host",
    "computeResource": "ComputeResource",
    "datacenter": "Datacenter",
    "ds": "Datastore",
}
_ARGUMENT_FIELDS: Final = {"ds": "datastore"}


class Events:
    """The event log of a world."""

    def __init__(self, store: ObjectStore, tasks: Tasks) -> None:
        self._store = store
        self._tasks = tasks
        self._posted: deque[LoggedEvent] = deque(maxlen=MAX_EVENTS)
        self._keys = itertools.count(1)

    def __iter__(self) -> Any:
        return iter(tuple(self._posted))

    def __len__(self) -> int:
        return len(self._posted)

    @property
    def latest(self) -> LoggedEvent | None:
        return self._posted[-1] if self._posted else None

    def post(
        self,
        call: Call | None,
        kind: str,
        entity: ManagedObject,
        *,
        own_fields: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> LoggedEvent:
        """Log an event of a type (`VmPoweredOnEvent`) about an entity.

        The arguments (vm, host, computeResource, datacenter) follow from the entity's place in the inventory. `fields`
        are those of the event type, such as `template=False`; pass them in `own_fields` if a parameter here has the
        same name.
        """
        named_objects = _arguments(entity)
        arguments = {
            name: (managed_object.display_name, managed_object.ref) for name, managed_object in named_objects.items()
        }
        key = next(self._keys)
        running_task = self._tasks.running(entity)
        texts = {name: text for name, (text, _) in arguments.items()}
        posted = LoggedEvent(
            key=key,
            chain=running_task.event_chain_id if running_task else key,
            kind=kind,
            at=self._store.clock.now(),
            user=call.user if call else "",
            message=_message(kind, texts, entity),
            arguments=arguments,
            subject=entity.moid,
            places=frozenset(place.moid for place in (entity, *named_objects.values(), *ancestors(entity))),
            fields={**fields, **(own_fields or {})},
        )
        self._posted.append(posted)
        manager = self._store.find("EventManager")
        if manager is not None:
            manager.touch("latestEvent")
        return posted


def _message(kind: str, texts: Mapping[str, str], entity: ManagedObject) -> str:
    argument_texts = {name: texts.get(name, "?") for name in _ARGUMENT_TYPES}
    return MESSAGES.get(kind, f"{kind} on {entity.display_name}").format(**argument_texts)


def _arguments(entity: ManagedObject) -> dict[str, ManagedObject]:
    """Return the objects that an event about the entity names: VM, host, compute resource and datacenter."""
    objects: dict[str, ManagedObject] = {}
    place = entity
    if is_kind_of(entity.wsdl_name, "VirtualMachine"):
        objects["vm"] = entity
        for place in entity.linked("runtime.host"):  # the one host; its ancestors are the places of the event
            objects["host"] = place
    elif is_kind_of(entity.wsdl_name, "HostSystem"):
        objects["host"] = entity
    elif is_kind_of(entity.wsdl_name, "Datastore"):
        objects["ds"] = entity
    for ancestor in (place, *ancestors(place)):
        for name, kind in (("computeResource", "ComputeResource"), ("datacenter", "Datacenter")):
            if is_kind_of(ancestor.wsdl_name, kind):
                objects.setdefault(name, ancestor)
    return objects
