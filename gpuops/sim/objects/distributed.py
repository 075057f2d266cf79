"""Distributed switches and their port groups on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuops.sim.core.managed_object import Methods, Properties
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.objects.datastore import Network
from gpuops.sim.operations import removal
from gpuops.sim.operations.networks import distributed_change
from gpuops.sim.render import distributed
from gpuops.sim.render.defaults import default

if TYPE_CHECKING:
    pass


class DistributedVirtualPortgroup(PortgroupEntity, Network):
    """A distributed port group on the wire: a network whose key is its moid."""

    wsdl_name = "DistributedVirtualPortgroup"

    property_table: ClassVar[Properties] = {
        "key": lambda self: self.moid,
        "config": distributed.portgroup_config,
        "portKeys": lambda self: self.port_keys(),
    }

    method_table: ClassVar[Methods] = {
        "Destroy_Task": removal.destroy,
    }


class VmwareDistributedVirtualSwitch(DistributedSwitchEntity):
    """A distributed switch on the wire."""

    wsdl_name = "VmwareDistributedVirtualSwitch"

    property_table: ClassVar[Properties] = {
        "uuid": lambda self: self.uuid,
        "capability": lambda self: default("DVSCapability"),
        "summary": distributed.summary,
        "config": distributed.config,
        "portgroup": lambda self: self.portgroups(),
        "runtime": distributed.runtime,
    }

    method_table: ClassVar[Methods] = {
        "ReconfigureDvs_Task": distributed_change.change_hosts,
        "AddDVPortgroup_Task": lambda self, call, spec: distributed_change.add_portgroups(
            self, call, spec, DistributedVirtualPortgroup
        ),
        "FetchDVPorts": lambda self, call, criteria=None: [
            port for port in distributed.ports(self) if criteria is None or _meets(self, port, criteria)
        ],
        "Destroy_Task": removal.destroy,
    }


def _meets(switch: DistributedSwitchEntity, port: Any, criteria: Any) -> bool:
    """Whether a port is one of those asked for (vSphere API, DistributedVirtualSwitchPortCriteria)."""
    uplinks = {portgroup.moid for portgroup in switch.portgroups() if portgroup.is_uplink}
    hosts = [host._moId for host in criteria.host]
    inside = criteria.inside is not False
    facts = (
        (criteria.connected, port.connectee is not None),
        (criteria.active, port.state is not None and port.state.runtimeInfo.linkUp),
        (criteria.uplinkPort, port.portgroupKey in uplinks),
    )
    return (
        all(expected is None or expected == is_so for expected, is_so in facts)
        and (not criteria.portgroupKey or (port.portgroupKey in criteria.portgroupKey) == inside)
        and (not criteria.portKey or port.key in criteria.portKey)
        and (not hosts or (port.proxyHost is not None and port.proxyHost._moId in hosts))
    )
