"""DistributedVirtualSwitchManager: which distributed switches there are, could be, and which hosts may join them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import ancestors, members
from gpuops.sim.core.managed_object import ManagedObject, method
from gpuops.sim.inventory import faults
from gpuops.sim.render import distributed
from gpuops.sim.render.defaults import default

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World


class DistributedVirtualSwitchManager(ManagedObject):
    """The manager of all distributed switches."""

    wsdl_name = "DistributedVirtualSwitchManager"
    world: World

    @method
    def QueryAvailableDvsSpec(self, call: Call, recommended: bool | None = None) -> Any:
        return distributed.products(self.world.api_version)

    @method
    def QueryDvsByUuid(self, call: Call, uuid: str) -> Any:
        for switch in self.world.by_type("DistributedVirtualSwitch"):
            if switch.uuid == uuid:
                return switch
        raise faults.not_found(f"No distributed switch has the uuid {uuid}.")

    @method
    def DVSManagerLookupDvPortGroup(self, call: Call, switchUuid: str, portgroupKey: str) -> Any:
        return self.QueryDvsByUuid(call, switchUuid).LookupDvPortGroup(call, portgroupKey)

    @method
    def QueryDvsFeatureCapability(self, call: Call, switchProductSpec: Any = None) -> Any:
        return default("DVSCapability").featuresSupported

    @method
    def QueryDvsConfigTarget(self, call: Call, host: Any = None, dvs: Any = None) -> Any:
        switches = [self.world.get(dvs)] if dvs else list(self.world.by_type("DistributedVirtualSwitch"))
        if host is not None:
            moid = self.world.get(host).moid
            switches = [each for each in switches if moid in [member.moid for member, _ in each.members()]]
        portgroups = [each for switch in switches for each in switch.portgroups()]
        return vim.dvs.DistributedVirtualSwitchManager.DvsConfigTarget(
            distributedVirtualPortgroup=[distributed.portgroup_info(each) for each in portgroups],
            distributedVirtualSwitch=[distributed.switch_info(each) for each in switches],
        )

    @method
    def QueryCompatibleHostForNewDvs(
        self, call: Call, container: Any, recursive: bool, switchProductSpec: Any = None
    ) -> Any:
        return self._hosts(container, recursive=recursive)

    @method
    def QueryCompatibleHostForExistingDvs(self, call: Call, container: Any, recursive: bool, dvs: Any) -> Any:
        switch = self.world.get(dvs)
        joined = [member for member, _ in switch.members()]
        home = {each.moid for each in ancestors(switch) if each.wsdl_name == "Datacenter"}
        return [
            host
            for host in self._hosts(container, recursive=recursive)
            if host not in joined and any(each.moid in home for each in ancestors(host))
        ]

    def _hosts(self, container: Any, *, recursive: bool) -> list[Any]:
        found = self.world.get(container)
        if found.wsdl_name == "HostSystem":
            return [found]
        return list(members(found, ("HostSystem",), recursive=recursive).values())
