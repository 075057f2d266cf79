"""A new world with the service objects that every vCenter has, whatever its inventory."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from gpuops.sim.clock import VIRTUAL_START, ClockMode
from gpuops.sim.managed_object import ManagedObject
from gpuops.sim.objects.authorization_manager import AuthorizationManager
from gpuops.sim.objects.custom_fields_manager import CustomFieldsManager
from gpuops.sim.objects.event_manager import EventManager
from gpuops.sim.objects.guest_auth_manager import GuestAuthManager
from gpuops.sim.objects.guest_operations_manager import GuestOperationsManager
from gpuops.sim.objects.guest_process_manager import GuestProcessManager
from gpuops.sim.objects.host_profile_manager import HostProfileManager
from gpuops.sim.objects.option_manager import VCENTER_MOID, OptionManager
from gpuops.sim.objects.performance_manager import PerformanceManager
from gpuops.sim.objects.search_index import SearchIndex
from gpuops.sim.objects.service_instance import ServiceInstance
from gpuops.sim.objects.session_manager import SessionManager
from gpuops.sim.objects.task_manager import TaskManager
from gpuops.sim.objects.view_manager import ViewManager
from gpuops.sim.trouble.happenings import HAPPENINGS
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
    world = World(seed=seed, clock=clock, start=start, api_version=api_version, happenings=HAPPENINGS)
    world.register(ServiceInstance(world))
    for kind, moid in _SERVICES:
        world.register(kind(world, moid))
    world.register(OptionManager(world, VCENTER_MOID, world.options))
    return world
