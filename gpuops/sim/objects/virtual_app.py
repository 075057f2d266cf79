"""VirtualApp: a resource pool whose members belong together. No scenario has one; a test makes its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.managed_object import prop
from gpuops.sim.objects.resource_pool import ResourcePool

if TYPE_CHECKING:
    from gpuops.sim.entities import VmEntity
    from gpuops.sim.world import World


class VirtualApp(ResourcePool):
    """A vApp within a pool. It shows where it is and what is in it; its start order is not modelled."""

    wsdl_name = "VirtualApp"

    def __init__(self, world: World, moid: str, name: str, pool: ResourcePool, folder: str) -> None:
        super().__init__(world, moid, name, pool.moid, pool.owner_moid)
        self.folder = folder
        pool.pools.append(self)

    def take_in(self, vm: VmEntity) -> None:
        """Make the VM a member."""
        vm.leave_pool()
        vm.state.pool = self.moid
        self.add(vm)
        vm.touch("resourcePool", "parentVApp")

    @prop("parentFolder")
    def _parent_folder(self) -> Any:
        return self.world.get(self.folder)
