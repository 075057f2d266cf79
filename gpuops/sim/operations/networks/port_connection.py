"""Connects network cards of VMs to ports of distributed port groups, and gives copies of VMs ports of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.switches import PortgroupEntity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.state.hardware import NetworkCard
    from gpuops.sim.world import World


def connection(
    vm: VmEntity, cards: Iterable[NetworkCard], index: int, connection: Any, existing_card: NetworkCard | None
) -> dict[str, Any]:
    """The fields of a network card that is connected as a DistributedVirtualSwitchPortConnection asks.

    `cards` are those of the VM, and `known` is the card as it is, which keeps its port in the same port group. Raises
    InvalidDeviceBacking for a port group that the VM's host has not (which fault: from memory).
    """
    portgroup = reachable(vm.host(), connection)
    if portgroup is None:
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, "The network is none of the host's.")
    used_by_vm = {card.port for card in cards if card.switch == connection.switchUuid and card is not existing_card}
    used_ports = portgroup.switch().taken_ports(besides=vm.moid) | used_by_vm
    port = connection.portKey
    if port is not None and (port not in portgroup.port_keys() or port in used_ports):
        text = f"Port {port} of {portgroup.name} is not there or not free."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    if port is None and existing_card is not None and existing_card.network == portgroup.moid:
        port = existing_card.port
    port = port or free_port(portgroup, used_ports)
    if port is None:
        text = f"No port of {portgroup.name} is free."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    cookie = vm.world.rng.getrandbits(31)
    return {
        "network": portgroup.moid, "network_name": "", "switch": connection.switchUuid, "port": port, "cookie": cookie
    }  # fmt: skip


def reachable(host: HostEntity, connection: Any) -> PortgroupEntity | None:
    """The port group that is asked for, if the host has it and VMs can be on it."""
    portgroup = host.world.find(connection.portgroupKey or "")
    if (
        not isinstance(portgroup, PortgroupEntity)
        or portgroup.is_uplink
        or portgroup.switch().uuid != connection.switchUuid
    ):
        return None
    return portgroup if portgroup.moid in host.state.networks else None


def free_port(portgroup: PortgroupEntity, used_ports: Collection[str]) -> str | None:
    """A port that nothing is connected to, a new one where the port group may grow, or None."""
    free = next((key for key in portgroup.ports if key not in used_ports), None)
    if free is None and portgroup.kept.autoExpand:
        [free] = portgroup.switch().new_ports(1)
        portgroup.ports.append(free)
        portgroup.changed()
    return free


def with_own_ports(world: World, cards: Iterable[NetworkCard], besides: str | None = None) -> tuple[NetworkCard, ...]:
    """The cards, each whose port a VM has, other than the one of that moid, with another port.

    A card is left as it is where its port group is gone or has no port free.
    """
    new_cards: list[NetworkCard] = []
    for card in cards:
        portgroup = world.find(card.network) if card.switch else None
        if isinstance(portgroup, PortgroupEntity):
            used_ports = portgroup.switch().taken_ports(besides)
            if card.port in used_ports:
                port = free_port(portgroup, {*used_ports, *(new_card.port for new_card in new_cards)})
                card = replace(card, port=port or card.port)
        new_cards.append(card)
    return tuple(new_cards)
