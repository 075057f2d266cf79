"""Distributed switches and their port groups on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.core.managed_object import method, prop
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.objects.datastore import Network
from gpuops.sim.operations import removal
from gpuops.sim.operations.networks import distributed_change
from gpuops.sim.render import distributed
from gpuops.sim.render.defaults import default

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call


class DistributedVirtualPortgroup(PortgroupEntity, Network):
    """A distributed port group on the wire: a network whose key is its moid."""

    wsdl_name = "DistributedVirtualPortgroup"

    @prop("key")
    def _key(self) -> Any:
        return self.moid

    @prop("config")
    def _config(self) -> Any:
        return distributed.portgroup_config(self)

    @prop("portKeys")
    def _port_keys(self) -> Any:
        return self.port_keys()

    @method
    def ReconfigureDVPortgroup_Task(self, call: Call, spec: Any) -> Any:
        return distributed_change.reconfigure_portgroup(self, call, spec)

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return removal.destroy(self, call)


class VmwareDistributedVirtualSwitch(DistributedSwitchEntity):
    """A distributed switch on the wire."""

    wsdl_name = "VmwareDistributedVirtualSwitch"

    @prop("uuid")
    def _uuid(self) -> Any:
        return self.uuid

    @prop("capability")
    def _capability(self) -> Any:
        return default("DVSCapability")

    @prop("summary")
    def _summary(self) -> Any:
        return distributed.summary(self)

    @prop("config")
    def _config(self) -> Any:
        return distributed.config(self)

    @prop("portgroup")
    def _portgroups(self) -> Any:
        return self.portgroups()

    @prop("runtime")
    def _runtime(self) -> Any:
        return distributed.runtime(self)

    @method
    def ReconfigureDvs_Task(self, call: Call, spec: Any) -> Any:
        return distributed_change.reconfigure_switch(self, call, spec)

    @method
    def AddDVPortgroup_Task(self, call: Call, spec: Any) -> Any:
        return distributed_change.add_portgroups(self, call, spec, DistributedVirtualPortgroup)

    @method
    def CreateDVPortgroup_Task(self, call: Call, spec: Any) -> Any:
        return distributed_change.add_portgroups(self, call, [spec], DistributedVirtualPortgroup)

    @method
    def FetchDVPorts(self, call: Call, criteria: Any = None) -> Any:
        return [each for each in distributed.ports(self) if criteria is None or _meets(self, each, criteria)]

    @method
    def QueryUsedVlanIdInDvs(self, call: Call) -> Any:
        specs = [distributed.setting(each).vlan for each in self.portgroups()]
        return sorted({each.vlanId for each in specs if isinstance(each, distributed.Dvs.VlanIdSpec) and each.vlanId})

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return removal.destroy(self, call)


def _meets(switch: DistributedSwitchEntity, port: Any, criteria: Any) -> bool:
    """Whether a port is one of those asked for (vSphere API, DistributedVirtualSwitchPortCriteria)."""
    uplinks = {each.moid for each in switch.portgroups() if each.is_uplink}
    hosts = [host._moId for host in criteria.host]
    inside = criteria.inside is not False
    facts = (
        (criteria.connected, port.connectee is not None),
        (criteria.active, port.state is not None and port.state.runtimeInfo.linkUp),
        (criteria.uplinkPort, port.portgroupKey in uplinks),
    )
    return (
        all(wanted is None or wanted == is_so for wanted, is_so in facts)
        and (not criteria.portgroupKey or (port.portgroupKey in criteria.portgroupKey) == inside)
        and (not criteria.portKey or port.key in criteria.portKey)
        and (not hosts or (port.proxyHost is not None and port.proxyHost._moId in hosts))
    )
