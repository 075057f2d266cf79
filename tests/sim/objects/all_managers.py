"""All managers and alarms of a world, which makes them only when they are asked for."""

from __future__ import annotations

from typing import Final

from gpuops.sim.managers.of_vcenter import ALARM
from gpuops.sim.render.host_config import managers
from gpuops.sim.services.service_instance import managers_of
from gpuops.sim.world import World

BELOW: Final = (
    "licenseAssignmentManager", "authManager", "processManager", "fileManager", "aliasManager",
    "guestWindowsRegistryManager",
)  # fmt: skip
"""The properties of managers that lead to further ones."""


def ask_for_all(world: World) -> World:
    """The world, with every manager and alarm of its vCenter and every manager of its hosts made."""
    for _, moid in managers_of(world.api_version).values():
        manager = world.get(moid)
        for path in BELOW:
            manager.linked(path)
    world.get(ALARM)
    for host in world.by_type("HostSystem"):
        for _, prefix in managers().values():
            host.manager(prefix)
        host.manager("methodExecuter")
        host.manager("typeManager")
    return world
