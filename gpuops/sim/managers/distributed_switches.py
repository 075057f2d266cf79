"""DistributedVirtualSwitchManager: finds distributed switches and their port groups, and lists the versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuops.sim.core.managed_object import ManagedObject, Methods, method
from gpuops.sim.inventory import faults
from gpuops.sim.render import distributed

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World


class DistributedVirtualSwitchManager(ManagedObject):
    """The manager of all distributed switches."""

    wsdl_name = "DistributedVirtualSwitchManager"
    world: World

    method_table: ClassVar[Methods] = {
        "QueryAvailableDvsSpec": lambda self, call, **_: distributed.products(self.world.api_version),
    }

    @method
    def QueryDvsByUuid(self, call: Call, uuid: str) -> Any:
        for switch in self.world.by_type("DistributedVirtualSwitch"):
            if switch.uuid == uuid:
                return switch
        raise faults.not_found(f"No distributed switch has the uuid {uuid}.")

    @method
    def DVSManagerLookupDvPortGroup(self, call: Call, switchUuid: str, portgroupKey: str) -> Any:
        switch = self.QueryDvsByUuid(call, switchUuid)
        found = next((portgroup for portgroup in switch.portgroups() if portgroup.moid == portgroupKey), None)
        if found is None:
            raise faults.not_found(f"The switch {switch.name} has no port group {portgroupKey}.")
        return found
