"""HostPart: a manager that belongs to one host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.sim.managed_object import ManagedObject

if TYPE_CHECKING:
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.world import World


class HostPart(ManagedObject):
    """A managed object under a host's configManager; the ledger names it by its host."""

    wsdl_name = "ManagedObject"
    world: World

    def __init__(self, moid: str, host: HostSystem) -> None:
        super().__init__(host.world, moid)
        self.host = host

    @property
    def display_name(self) -> str:
        return self.host.name

    @property
    def governed_by(self) -> ManagedObject:
        return self.host
