"""The member hosts of a distributed switch, and the ports that network cards of VMs are connected to.

Hosts join with physical adapters as uplinks, change them, and leave. A host cannot join with an adapter of another
switch, nor leave while a VM on it is connected. A copy of a VM gets ports of its own. Which of the declared faults
stands for what is from memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.switches import PortgroupEntity
from gpuops.sim.render.pci import nic_names
from gpuops.sim.state.host_network import ProxySwitch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.inventory.switches import DistributedSwitchEntity
    from gpuops.sim.state.hardware import NetworkCard
    from gpuops.sim.world import World


def change_members(switch: DistributedSwitchEntity, changes: list[Any]) -> None:
    """All of them or none. Raises AlreadyExists, NotFound, ResourceInUse, DvsOperationBulkFault."""
    proxies: dict[str, ProxySwitch | None] = {host.moid: proxy for host, proxy in switch.members()}
    hosts = [switch.world.get(change.host) for change in changes]
    for host, change in zip(hosts, changes, strict=True):
        proxies[host.moid] = _changed_member(switch, host, change, proxies.get(host.moid))
    for host in hosts:
        set_proxy(switch, host, proxies[host.moid])


def _changed_member(
    switch: DistributedSwitchEntity, host: HostEntity, change: Any, current_proxy: ProxySwitch | None
) -> ProxySwitch | None:
    """What a host then keeps of the switch, of which it now keeps `known`; None = it is no member."""
    if change.operation == "add":
        if current_proxy is not None:
            raise faults.already_exists(host.name)
        _may_join(switch, host)
        return ProxySwitch(switch.moid, _nics(switch, host, change.backing))
    if current_proxy is None:
        raise faults.not_found(f"Host {host.name} is no member of {switch.name}.")
    if change.operation == "edit":
        return (
            current_proxy
            if change.backing is None
            else replace(current_proxy, nics=_nics(switch, host, change.backing))
        )
    if change.operation != "remove":
        raise faults.wrong_argument("spec.host.operation")
    _may_leave(switch, host)
    return None


def _may_join(switch: DistributedSwitchEntity, host: HostEntity) -> None:
    if _datacenter(host) is not _datacenter(switch):
        raise faults.wrong_argument("spec.host.host", f"Host {host.name} is not in the datacenter of {switch.name}.")
    if host.state.connection != "connected":
        raise _bulk_fault(host, faults.host_not_connected(host.name))


def _may_leave(switch: DistributedSwitchEntity, host: HostEntity) -> None:
    users = [vm.name for vm, _ in switch.connections().values() if vm.host() is host]
    users += [adapter.device for owner, adapter in switch.adapters().values() if owner is host]
    if users:
        raise faults.resource_in_use(host.name, f"The switch {switch.name} is used by {users[0]} on {host.name}.")


def _datacenter(entity: Any) -> Any:
    return next(ancestor for ancestor in ancestors(entity) if ancestor.wsdl_name == "Datacenter")


def _nics(switch: DistributedSwitchEntity, host: HostEntity, backing: Any) -> tuple[str, ...]:
    """The physical adapters of a backing. Raises DvsOperationBulkFault for one that does not exist or is in use."""
    named = tuple(nic_spec.pnicDevice for nic_spec in (backing.pnicSpec if backing is not None else ()))
    network = host.state.network
    other_switches = [(switch_state.name, switch_state.nics) for switch_state in network.switches]
    other_switches += [
        (host.world.get(other_proxy.switch).name, other_proxy.nics)
        for other_proxy in network.proxies
        if other_proxy.switch != switch.moid
    ]
    nics_of_host = nic_names(host.state)
    for nic in named:
        if nic not in nics_of_host:
            raise _bulk_fault(host, faults.host_config(f"Host {host.name} has no physical adapter {nic}."))
        owner = next((name for name, nics in other_switches if nic in nics), None)
        if owner is not None:
            raise _bulk_fault(host, faults.resource_in_use(nic, f"{nic} is an uplink of {owner}."))
    if len(named) > len(switch.uplinks):
        raise _bulk_fault(host, faults.host_config(f"{switch.name} has {len(switch.uplinks)} uplinks for each host."))
    return named


def _bulk_fault(host: HostEntity, cause: Exception) -> Exception:
    kind = vim.fault.DvsOperationBulkFault
    text = f"A distributed switch operation failed on host {host.name}: {cause.msg}"  # type: ignore[attr-defined]
    fault: Exception = kind(msg=text, hostFault=[kind.FaultOnHost(host=host.ref, fault=cause)])
    return fault


def show_networks(host: HostEntity, moids: tuple[str, ...]) -> None:
    """Let the host have these networks."""
    changed = {*moids} ^ {*host.state.networks}
    host.state.networks = moids
    host.touch("network")
    host.compute_resource().touch("network")
    for moid in changed:
        host.world.get(moid).touch("host", "vm")


def set_proxy(switch: DistributedSwitchEntity, host: HostEntity, proxy: ProxySwitch | None) -> None:
    """Let a host be a member with these adapters, or none."""
    if proxy is not None:
        proxy = _with_uplink_ports(switch, proxy)
    host.state.network = host.state.network.with_proxy(switch.moid, proxy)
    other_networks = tuple(moid for moid in host.state.networks if moid not in switch.portgroup_moids)
    show_networks(host, (*other_networks, *(switch.portgroup_moids if proxy is not None else ())))
    host.network_changed()


def _with_uplink_ports(switch: DistributedSwitchEntity, proxy: ProxySwitch) -> ProxySwitch:
    missing = len(switch.uplinks) - len(proxy.ports)
    return replace(proxy, ports=(*proxy.ports, *switch.new_ports(max(0, missing)))[: len(switch.uplinks)])


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
