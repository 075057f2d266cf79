"""Services: the objects every vCenter has, whatever its inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops.sim.managed_object import ManagedObject
from gpuops.sim.objects.authorization_manager import AuthorizationManager
from gpuops.sim.objects.custom_fields_manager import CustomFieldsManager
from gpuops.sim.objects.event_manager import EventManager
from gpuops.sim.objects.guest_auth_manager import GuestAuthManager
from gpuops.sim.objects.guest_operations_manager import GuestOperationsManager
from gpuops.sim.objects.guest_process_manager import GuestProcessManager
from gpuops.sim.objects.host_profile_manager import HostProfileManager
from gpuops.sim.objects.option_manager import VCENTER_MOID, VCENTER_OPTIONS, OptionManager
from gpuops.sim.objects.performance_manager import PerformanceManager
from gpuops.sim.objects.search_index import SearchIndex
from gpuops.sim.objects.service_instance import ServiceInstance
from gpuops.sim.objects.session_manager import SessionManager
from gpuops.sim.objects.task_manager import TaskManager
from gpuops.sim.objects.view_manager import ViewManager

if TYPE_CHECKING:
    from gpuops.sim.world import World

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


def add_services(world: World) -> None:
    """Register the service objects of a new world."""
    world.register(ServiceInstance(world))
    for kind, moid in _SERVICES:
        world.register(kind(world, moid))
    world.register(OptionManager(world, VCENTER_MOID, VCENTER_OPTIONS))
