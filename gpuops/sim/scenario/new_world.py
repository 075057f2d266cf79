"""A new world with the service objects that every vCenter has, whatever its inventory."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from gpuops.sim.core.clock import VIRTUAL_START, ClockMode
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.objects.host_profiles import HostProfileManager
from gpuops.sim.outside_events.by_name import OUTSIDE_EVENTS
from gpuops.sim.services.authorization_manager import AuthorizationManager
from gpuops.sim.services.custom_fields_manager import CustomFieldsManager
from gpuops.sim.services.event_manager import EventManager
from gpuops.sim.services.guest_managers import GuestAuthManager, GuestOperationsManager, GuestProcessManager
from gpuops.sim.services.option_manager import VCENTER_MOID, OptionManager
from gpuops.sim.services.performance_manager import PerformanceManager
from gpuops.sim.services.search_index import SearchIndex
from gpuops.sim.services.service_instance import ServiceInstance
from gpuops.sim.services.session_manager import SessionManager
from gpuops.sim.services.task_manager import TaskManager
from gpuops.sim.services.view_manager import ViewManager
from gpuops.sim.world import API_VERSION, World

_SERVICES: Final[tuple[tuple[type[ManagedObject], str], ...]] = (
    (SessionManager, "SessionManager"),
    (ViewManager, "ViewManager"),
    (SearchIndex, "SearchIndex"),
    (TaskManager, "TaskManager"),
    (EventManager, "EventManager"),
    (CustomFieldsManager, "CustomFieldsManager"),
    (AuthorizationManager, "AuthorizationManager"),
    (PerformanceManager, "PerfMgr"),
    (HostProfileManager, "HostProfileManager"),
    (GuestOperationsManager, "guestOperationsManager"),
    (GuestProcessManager, "guestOperationsProcessManager"),
    (GuestAuthManager, "guestOperationsAuthManager"),
)
"""Types and the moids that every vCenter gives them."""


def new_world(
    *,
    seed: int = 0,
    clock: ClockMode = ClockMode.VIRTUAL,
    start: datetime = VIRTUAL_START,
    api_version: str = API_VERSION,
) -> World:
    """A vCenter with an empty inventory: its service objects, and all that can happen in it by a fault rule."""
    world = World(seed=seed, clock=clock, start=start, api_version=api_version, outside_events=OUTSIDE_EVENTS)
    world.register(ServiceInstance(world))
    for kind, moid in _SERVICES:
        world.register(kind(world, moid))
    world.register(OptionManager(world, VCENTER_MOID, world.options))
    return world
