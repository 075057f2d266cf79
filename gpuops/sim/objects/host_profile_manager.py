"""HostProfileManager: which profiles there are, and what they are attached to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import ManagedObject, method, prop

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World


class HostProfileManager(ManagedObject):
    """All host profiles of the vCenter."""

    wsdl_name = "HostProfileManager"
    volatile = True
    world: World

    @prop("profile")
    def _profiles(self) -> Any:
        return list(self.world.by_type("HostProfile"))

    @method
    def FindAssociatedProfile(self, call: Call, entity: Any) -> Any:
        moid = self.world.get(entity).moid
        return [profile for profile in self.world.by_type("HostProfile") if moid in profile.entities]
