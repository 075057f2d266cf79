"""Services: the objects every vCenter has, whatever its inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.sim.objects.service_instance import ServiceInstance
from gpuops.sim.objects.session_manager import SessionManager
from gpuops.sim.objects.view_manager import ViewManager

if TYPE_CHECKING:
    from gpuops.sim.world import World


def add_services(world: World) -> None:
    """Register the service objects that are not there yet."""
    if world.find("ServiceInstance") is not None:
        return
    world.register(ServiceInstance(world))
    world.register(SessionManager(world, "SessionManager"))
    world.register(ViewManager(world, "ViewManager"))
