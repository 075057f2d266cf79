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
    vm: VmEntity, cards: Iterable[NetworkCard], index: int, asked: Any, known: NetworkCard | None
) -> dict[str, Any]:
    """The fields of a network card that is connected as a DistributedVirtualSwitchPortConnection asks.

    `cards` are those of the VM, and `known` is the card as it is, which keeps its port in the same port group. Raises
    InvalidDeviceBacking for a port group that the VM's host has not (which fault: from memory).
    """
    portgroup = reachable(vm.host(), asked)
    if portgroup is None:
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, "The network is none of the host's.")
    others = {card.port for card in cards if card.switch == asked.switchUuid and card is not known}
    taken = portgroup.switch().taken_ports(besides=vm.moid) | others
    port = asked.portKey
    if port is not None and (port not in portgroup.port_keys() or port in taken):
        text = f"Port {port} of {portgroup.name} is not there or not free."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    if port is None and known is not None and known.network == portgroup.moid:
        port = known.port
    port = port or free_port(portgroup, taken)
    if port is None:
        text = f"No port of {portgroup.name} is free."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    cookie = vm.world.rng.getrandbits(31)
    return {
        "network": portgroup.moid, "network_name": "", "switch": asked.switchUuid, "port": port, "cookie": cookie
    }  # fmt: skip


def reachable(host: HostEntity, asked: Any) -> PortgroupEntity | None:
    """The port group that is asked for, if the host has it and VMs can be on it."""
    found = host.world.find(asked.portgroupKey or "")
    if not isinstance(found, PortgroupEntity) or found.is_uplink or found.switch().uuid != asked.switchUuid:
        return None
    return found if found.moid in host.state.networks else None


def free_port(portgroup: PortgroupEntity, taken: Collection[str]) -> str | None:
    """A port that nothing is connected to, a new one where the port group may grow, or None."""
    free = next((key for key in portgroup.ports if key not in taken), None)
    if free is None and portgroup.kept.autoExpand:
        [free] = portgroup.switch().new_ports(1)
        portgroup.ports.append(free)
        portgroup.changed()
    return free


def with_own_ports(world: World, cards: Iterable[NetworkCard], besides: str | None = None) -> tuple[NetworkCard, ...]:
    """The cards, each whose port a VM has, other than the one of that moid, with another port.

    A card is left as it is where its port group is gone or has no port free.
    """
    made: list[NetworkCard] = []
    for card in cards:
        portgroup = world.find(card.network) if card.switch else None
        if isinstance(portgroup, PortgroupEntity):
            taken = portgroup.switch().taken_ports(besides)
            if card.port in taken:
                port = free_port(portgroup, {*taken, *(each.port for each in made)})
                card = replace(card, port=port or card.port)
        made.append(card)
    return tuple(made)
