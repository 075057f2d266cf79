"""Distributed switches and their port groups as operations see them: what each holds, and who is connected where.

The configuration that clients set is stored as the API's own objects, so that none of its many fields is lost. The
classes in `objects.folder` derive from these and show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.inventory.managed_entity import ManagedEntity

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.state.hardware import NetworkCard
    from gpuops.sim.state.host_state import KernelAdapter, ProxySwitch
    from gpuops.sim.world import World


class PortgroupEntity(ManagedEntity):
    """A distributed port group; `stored_config` is the DVPortgroupConfigInfo that clients set."""

    def __init__(self, world: World, moid: str, name: str, parent: str, switch: str, config: Any) -> None:
        super().__init__(world, moid, name, parent)
        self.switch_moid = switch
        self.stored_config = config
        self.ports: list[str] = []
        """The keys of its ports; without those of an uplink port group, which its hosts keep."""
        self.version = 1

    def switch(self) -> DistributedSwitchEntity:
        return self.world.get(self.switch_moid)

    @property
    def is_uplink(self) -> bool:
        return bool(self.stored_config.uplink)

    def port_keys(self) -> list[str]:
        """The keys of all its ports."""
        if self.is_uplink:
            return [key for _, proxy in self.switch().members() for key in proxy.ports]
        return self.ports

    def connected(self) -> list[VmEntity]:
        """The VMs with a network card on it."""
        return [vm for vm, card in self.switch().connections().values() if card.network == self.moid]

    def changed(self) -> None:
        """Touch every property that shows its settings and ports."""
        self.touch("config", "portKeys", "host", "vm", "summary")


class DistributedSwitchEntity(ManagedEntity):
    """A distributed switch; `stored_config` is the VMwareDVSConfigInfo that clients set. Hosts store membership."""

    def __init__(self, world: World, moid: str, name: str, parent: str, config: Any) -> None:
        super().__init__(world, moid, name, parent)
        self.stored_config = config
        self.portgroup_moids: list[str] = []
        self.next_port = 0
        self.version = 1

    @property
    def uuid(self) -> str:
        return self.stored_config.uuid

    @property
    def uplinks(self) -> list[str]:
        return list(self.stored_config.uplinkPortPolicy.uplinkPortName)

    def portgroups(self) -> list[PortgroupEntity]:
        return [self.world.get(moid) for moid in self.portgroup_moids]

    def members(self) -> list[tuple[HostEntity, ProxySwitch]]:
        """Its hosts, each with what it keeps of the switch."""
        hosts = self.world.by_type("HostSystem")
        return [(host, proxy) for host in hosts if (proxy := host.state.network.proxy(self.moid)) is not None]

    def connections(self, excluding: str | None = None) -> dict[str, tuple[VmEntity, NetworkCard]]:
        """Return the VM and network card that are connected to each port, without the VM of that moid."""
        return {
            card.port: (vm, card)
            for vm in self.world.by_type("VirtualMachine")
            for card in vm.state.network_cards
            if card.switch == self.uuid and vm.moid != excluding
        }

    def adapters(self) -> dict[str, tuple[HostEntity, KernelAdapter]]:
        """Which VMkernel adapter of which host is connected to each port."""
        return {
            adapter.port: (host, adapter)
            for host, _ in self.members()
            for adapter in host.state.network.adapters
            if adapter.switch == self.uuid
        }

    def taken_ports(self, excluding: str | None = None) -> set[str]:
        """Return the keys of the ports in use, without those of the VM with the moid `excluding`."""
        return {*self.connections(excluding), *self.adapters()}

    def new_ports(self, count: int) -> list[str]:
        """Return the keys of `count` new ports."""
        first, self.next_port = self.next_port, self.next_port + count
        return [str(key) for key in range(first, self.next_port)]

    def changed(self) -> None:
        """Touch every property that shows its settings, members and port groups."""
        self.touch("config", "summary", "portgroup", "runtime")
        for portgroup in self.portgroups():
            portgroup.changed()
        for host, _ in self.members():
            host.network_changed()
