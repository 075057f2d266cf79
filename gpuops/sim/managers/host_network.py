"""HostNetworkSystem and HostVirtualNicManager: they show and change the standard networking of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.core.managed_object import method, prop
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

    @prop("networkInfo")
    def _info(self) -> Any:
        return self.host.read("config.network")

    @prop("networkConfig")
    def _config(self) -> Any:
        return host_network.config(self.host.state)

    @prop("dnsConfig")
    def _dns(self) -> Any:
        return self.host.read("config.network").dnsConfig

    @prop("ipRouteConfig")
    def _route(self) -> Any:
        return self.host.read("config.network").ipRouteConfig

    @prop("capabilities")
    def _capabilities(self) -> Any:
        return self.host.read("config.capabilities")

    @prop("offloadCapabilities")
    def _offload(self) -> Any:
        return self.host.read("config.offloadCapabilities")

    @method
    def AddVirtualSwitch(self, call: Call, vswitchName: str, spec: Any = None) -> None:
        network_change.add_switch(self.host, call, vswitchName, spec)

    @method
    def UpdateVirtualSwitch(self, call: Call, vswitchName: str, spec: Any) -> None:
        network_change.update_switch(self.host, call, vswitchName, spec)

    @method
    def RemoveVirtualSwitch(self, call: Call, vswitchName: str) -> None:
        network_change.remove_switch(self.host, call, vswitchName)

    @method
    def AddPortGroup(self, call: Call, portgrp: Any) -> None:
        network_change.add_group(self.host, call, portgrp, Network)

    @method
    def UpdatePortGroup(self, call: Call, pgName: str, portgrp: Any) -> None:
        network_change.update_group(self.host, call, pgName, portgrp, Network)

    @method
    def RemovePortGroup(self, call: Call, pgName: str) -> None:
        network_change.remove_group(self.host, call, pgName)

    @method
    def AddVirtualNic(self, call: Call, portgroup: str, nic: Any) -> str:
        return network_change.add_adapter(self.host, call, portgroup, nic)

    @method
    def UpdateVirtualNic(self, call: Call, device: str, nic: Any) -> None:
        network_change.update_adapter(self.host, call, device, nic)

    @method
    def RemoveVirtualNic(self, call: Call, device: str) -> None:
        network_change.remove_adapter(self.host, call, device)

    @method
    def QueryNetworkHint(self, call: Call, device: list[str]) -> Any:
        return network_change.hints(self.host, device)

    @method
    def RefreshNetworkSystem(self, call: Call) -> None:
        self.host.network_changed()


class HostVirtualNicManager(HostManager):
    """Which VMkernel adapters serve what."""

    wsdl_name = "HostVirtualNicManager"

    @prop("info")
    def _info(self) -> Any:
        return host_network.selections(self.host.state)

    @method
    def QueryNetConfig(self, call: Call, nicType: str) -> Any:
        found = next((each for each in self._info().netConfig if each.nicType == nicType), None)
        if found is None:
            raise faults.wrong_argument("nicType")
        return found

    @method
    def SelectVnicForNicType(self, call: Call, nicType: str, device: str) -> None:
        network_change.select_adapter(self.host, call, nicType, device, on=True)

    @method
    def DeselectVnicForNicType(self, call: Call, nicType: str, device: str) -> None:
        network_change.select_adapter(self.host, call, nicType, device, on=False)
