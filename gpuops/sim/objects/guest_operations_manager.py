"""GuestOperationsManager: where the managers of guest operations are found; those this world lacks stay unset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import UNSET, ManagedObject, prop

if TYPE_CHECKING:
    from gpuops.sim.world import World


class GuestOperationsManager(ManagedObject):
    """Programs and logins; no files, no registry, no aliases."""

    wsdl_name = "GuestOperationsManager"
    world: World

    @prop("processManager")
    def _process_manager(self) -> Any:
        return self._first("GuestProcessManager")

    @prop("authManager")
    def _auth_manager(self) -> Any:
        return self._first("GuestAuthManager")

    def _first(self, wsdl_name: str) -> Any:
        found: ManagedObject | None = next(self.world.by_type(wsdl_name), None)
        return UNSET if found is None else found.ref
