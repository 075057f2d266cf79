"""GuestAuthManager: whether a login in a guest is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import ManagedObject, method
from gpuops.sim.operations import guest_programs

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World


class GuestAuthManager(ManagedObject):
    """User names and passwords only: no tickets, no tokens."""

    wsdl_name = "GuestAuthManager"
    world: World

    @method
    def ValidateCredentialsInGuest(self, call: Call, vm: Any, auth: Any) -> None:
        found = self.world.get(vm)
        self.world.authority.require(call, found, guest_programs.QUERY)
        guest_programs.admit(found, auth)
