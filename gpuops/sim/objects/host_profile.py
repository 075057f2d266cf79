"""HostProfile: a configuration that hosts are made to have."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import ManagedObject, prop

if TYPE_CHECKING:
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.world import World


class HostProfile(ManagedObject):
    """A profile attached to hosts and clusters; of its settings this world knows the options of module nvidia."""

    wsdl_name = "HostProfile"
    world: World

    def __init__(self, world: World, moid: str, name: str, entities: tuple[str, ...], module_options: str) -> None:
        super().__init__(world, moid)
        self.name = name
        self.entities = entities
        """Moids of what it is attached to."""
        self.module_options = module_options
        self.made_at = world.clock.now()

    def holds(self, host: HostSystem) -> bool:
        """Whether it is attached to the host or to its cluster."""
        return host.moid in self.entities or host.state.parent in self.entities

    @prop("name")
    def _name(self) -> str:
        return self.name

    @prop("entity")
    def _entity(self) -> Any:
        return [self.world.get(moid) for moid in self.entities]

    @prop("createdTime")
    @prop("modifiedTime")
    def _time(self) -> datetime:
        return self.made_at

    @prop("complianceStatus")
    def _compliance(self) -> str:
        return "unknown"
