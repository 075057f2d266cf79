"""HostNetworkSystem and HostVirtualNicManager: they show and change the standard networking of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuops.sim.core.managed_object import Methods, Properties, method, prop
from gpuops.sim.inventory import faults
from gpuops.sim.objects.datastore import Network
from gpuops.sim.objects.host_managers import HostManager
from gpuops.sim.operations.networks import network_change
from gpuops.sim.render import host_network

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call


class HostNetworkSystem(HostManager):
    """Standard switches, port groups, VMkernel adapters."""

    wsdl_name = "HostNetworkSystem"

    property_table: ClassVar[Properties] = {
        "networkInfo": lambda self: self.host.read("config.network"),
        "networkConfig": lambda self: host_network.config(self.host.state),
        "dnsConfig": lambda self: self.host.read("config.network").dnsConfig,
        "ipRouteConfig": lambda self: self.host.read("config.network").ipRouteConfig,
        "capabilities": lambda self: self.host.read("config.capabilities"),
        "offloadCapabilities": lambda self: self.host.read("config.offloadCapabilities"),
    }

    method_table: ClassVar[Methods] = {
        "AddVirtualSwitch": lambda self, call, vswitchName, spec=None: network_change.add_switch(
            self.host, call, vswitchName, spec
        ),
        "UpdateVirtualSwitch": lambda self, call, vswitchName, spec: network_change.update_switch(
            self.host, call, vswitchName, spec
        ),
        "RemoveVirtualSwitch": lambda self, call, vswitchName: network_change.remove_switch(
            self.host, call, vswitchName
        ),
        "AddPortGroup": lambda self, call, portgrp: network_change.add_group(self.host, call, portgrp, Network),
        "UpdatePortGroup": lambda self, call, pgName, portgrp: network_change.update_group(
            self.host, call, pgName, portgrp, Network
        ),
        "RemovePortGroup": lambda self, call, pgName: network_change.remove_group(self.host, call, pgName),
        "AddVirtualNic": lambda self, call, portgroup, nic: network_change.add_adapter(self.host, call, portgroup, nic),
        "UpdateVirtualNic": lambda self, call, device, nic: network_change.update_adapter(self.host, call, device, nic),
        "RemoveVirtualNic": lambda self, call, device: network_change.remove_adapter(self.host, call, device),
        "QueryNetworkHint": lambda self, call, device: network_change.hints(self.host, device),
        "RefreshNetworkSystem": lambda self, call: self.host.network_changed(),
    }


class HostVirtualNicManager(HostManager):
    """Which VMkernel adapters serve what."""

    wsdl_name = "HostVirtualNicManager"

    method_table: ClassVar[Methods] = {
        "SelectVnicForNicType": lambda self, call, nicType, device: network_change.select_adapter(
            self.host, call, nicType, device, on=True
        ),
        "DeselectVnicForNicType": lambda self, call, nicType, device: network_change.select_adapter(
            self.host, call, nicType, device, on=False
        ),
    }

    @prop("info")
    def _info(self) -> Any:
        return host_network.selections(self.host.state)

    @method
    def QueryNetConfig(self, call: Call, nicType: str) -> Any:
        found = next((each for each in self._info().netConfig if each.nicType == nicType), None)
        if found is None:
            raise faults.wrong_argument("nicType")
        return found
