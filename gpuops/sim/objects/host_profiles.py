"""Host profiles, and which hosts and clusters they are attached to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuops.sim.core.managed_object import ManagedObject, Properties, method

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.world import World


class HostProfile(ManagedObject):
    """A profile attached to hosts and clusters; of its settings this world knows the options of module nvidia."""

    wsdl_name = "HostProfile"
    world: World

    property_table: ClassVar[Properties] = {
        "name": lambda self: self.name,
        "entity": lambda self: [self.world.get(moid) for moid in self.entities],
        "createdTime modifiedTime": lambda self: self.made_at,
        "complianceStatus": lambda self: "unknown",
    }

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


class HostProfileManager(ManagedObject):
    """All host profiles of the vCenter."""

    wsdl_name = "HostProfileManager"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {"profile": lambda self: list(self.world.by_type("HostProfile"))}

    @method
    def FindAssociatedProfile(self, call: Call, entity: Any) -> Any:
        moid = self.world.get(entity).moid
        return [profile for profile in self.world.by_type("HostProfile") if moid in profile.entities]
