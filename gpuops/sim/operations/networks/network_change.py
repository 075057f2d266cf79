"""Does the changes of HostNetworkSystem and HostVirtualNicManager: standard switches, port groups, VMkernel adapters.

A port group that is the first of its name in the datacenter makes a network there, and the last one takes it away
(vSphere API, Network). Faults are those that the API declares; which one stands for what is from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.inventory.registration import new_moid
from gpuops.sim.operations.networks.port_connection import free_port, reachable
from gpuops.sim.render.host_network import NIC_TYPES
from gpuops.sim.render.pci import nic_names
from gpuops.sim.state.host_network import (
    SWITCH_POLICY,
    HostNetwork,
    KernelAdapter,
    NetworkPolicy,
    PortGroup,
    VirtualSwitch,
)

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.inventory.folder_entity import FolderEntity
    from gpuops.sim.inventory.switches import PortgroupEntity
    from gpuops.sim.world import World

Part = TypeVar("Part", VirtualSwitch, PortGroup, KernelAdapter)
MakeNetwork = Callable[["World", str, str, str], ManagedEntity]
"""(world, moid, name, folder) -> a network."""


def add_switch(host: HostEntity, call: Call, name: str, spec: Any) -> None:
    """AddVirtualSwitch. Raises AlreadyExists, ResourceInUse for a network card of another switch."""
    if host.state.network.switch(name) is not None:
        raise faults.already_exists(name)
    switch = _switch(host, VirtualSwitch(name), spec)
    _set(host, call, replace(host.state.network, switches=(*host.state.network.switches, switch)))


def update_switch(host: HostEntity, call: Call, name: str, spec: Any) -> None:
    """UpdateVirtualSwitch. Raises NotFound, ResourceInUse."""
    found = _found_switch(host, name)
    switch = _switch(host, found, spec)
    _swap(host, call, "switches", found, switch)


def remove_switch(host: HostEntity, call: Call, name: str) -> None:
    """RemoveVirtualSwitch, with its port groups. Raises NotFound, ResourceInUse."""
    switch, network = _found_switch(host, name), host.state.network
    for group in network.groups:
        if group.switch == name:
            _refuse_used(host, group.name)
    switches = tuple(each for each in network.switches if each is not switch)
    groups = tuple(each for each in network.groups if each.switch != name)
    _set(host, call, replace(network, switches=switches, groups=groups))
    _drop_networks(host)


def add_group(host: HostEntity, call: Call, spec: Any, make: MakeNetwork) -> None:
    """AddPortGroup. Raises AlreadyExists, NotFound for its switch."""
    if host.state.network.group(spec.name) is not None:
        raise faults.already_exists(spec.name)
    group = _group(host, spec)
    _set(host, call, replace(host.state.network, groups=(*host.state.network.groups, group)))
    _join_network(host, spec.name, make)


def update_group(host: HostEntity, call: Call, name: str, spec: Any, make: MakeNetwork) -> None:
    """UpdatePortGroup. Raises NotFound, AlreadyExists, ResourceInUse for another name while something is connected."""
    found, network = _found_group(host, name), host.state.network
    if spec.name != name:
        if network.group(spec.name) is not None:
            raise faults.already_exists(spec.name)
        _refuse_used(host, name)
    _swap(host, call, "groups", found, _group(host, spec))
    if spec.name != name:
        _drop_networks(host)
        _join_network(host, spec.name, make)


def remove_group(host: HostEntity, call: Call, name: str) -> None:
    """RemovePortGroup. Raises NotFound, ResourceInUse."""
    found = _found_group(host, name)
    _refuse_used(host, name)
    _swap(host, call, "groups", found)
    _drop_networks(host)


def add_adapter(host: HostEntity, call: Call, group: str, spec: Any) -> str:
    """AddVirtualNic: the device's name. Raises NotFound for the port group, HostConfigFault without a free port."""
    network = host.state.network
    taken = {each.device for each in network.adapters}
    device = next(name for number in range(len(taken) + 1) if (name := f"vmk{number}") not in taken)
    if spec.distributedVirtualPort is not None:
        adapter = _adapter(connected_adapter(host, device, _found_portgroup(host, spec.distributedVirtualPort)), spec)
    else:
        adapter = _adapter(KernelAdapter(device, _found_group(host, group).name), spec)
    _set(host, call, replace(network, adapters=(*network.adapters, adapter)))
    return device


def connected_adapter(host: HostEntity, device: str, portgroup: PortgroupEntity) -> KernelAdapter:
    """A VMkernel adapter at a free port of a distributed port group. Raises HostConfigFault where there is none."""
    switch = portgroup.switch()
    port = free_port(portgroup, switch.taken_ports())
    if port is None:
        raise faults.host_config(f"No port of {portgroup.name} is free for {device} of host {host.name}.")
    return KernelAdapter(device, portgroup.moid, switch=switch.uuid, port=port)


def _found_portgroup(host: HostEntity, asked: Any) -> PortgroupEntity:
    found = reachable(host, asked)
    if found is None:
        raise faults.not_found(f"Host {host.name} has no distributed port group {asked.portgroupKey}.")
    return found


def update_adapter(host: HostEntity, call: Call, device: str, spec: Any) -> None:
    """UpdateVirtualNic. Raises NotFound."""
    found = _found_adapter(host, device)
    _swap(host, call, "adapters", found, _adapter(found, spec))


def remove_adapter(host: HostEntity, call: Call, device: str) -> None:
    """RemoveVirtualNic. Raises NotFound; the last management adapter stays (HostConfigFault, from memory)."""
    found, network = _found_adapter(host, device), host.state.network
    if [each for each in network.adapters if "management" in each.services] == [found]:
        raise faults.host_config(f"{device} is the only management adapter of {host.name}.")
    _swap(host, call, "adapters", found)


def select_adapter(host: HostEntity, call: Call, service: str, device: str, *, on: bool) -> None:
    """SelectVnicForNicType and DeselectVnicForNicType. Raises InvalidArgument."""
    if service not in NIC_TYPES:
        raise faults.wrong_argument("nicType")
    found = host.state.network.adapter(device)
    if found is None:
        raise faults.wrong_argument("device")
    others = tuple(each for each in found.services if each != service)
    _swap(host, call, "adapters", found, replace(found, services=(*others, service) if on else others))


def _set(host: HostEntity, call: Call, network: HostNetwork) -> None:
    before, host.state.network = host.state.network, network
    host.network_changed()
    for switch in host.world.by_type("DistributedVirtualSwitch") if before.adapters != network.adapters else ():
        switch.changed()
    host.world.ledger.record(call, host, before={"network": asdict(before)}, after={"network": asdict(network)})


def _swap(host: HostEntity, call: Call, parts: str, old: Any, *new: Any) -> None:
    """Put `new` in the place of `old` among the switches, groups or adapters of the host; without it `old` goes."""
    network = host.state.network
    changed = tuple(kept for part in getattr(network, parts) for kept in (new if part is old else (part,)))
    _set(host, call, replace(network, **{parts: changed}))


def _found_switch(host: HostEntity, name: str) -> VirtualSwitch:
    return _existing(host, host.state.network.switch(name), f"virtual switch {name}")


def _found_group(host: HostEntity, name: str) -> PortGroup:
    return _existing(host, host.state.network.group(name), f"port group {name}")


def _found_adapter(host: HostEntity, device: str) -> KernelAdapter:
    return _existing(host, host.state.network.adapter(device), f"VMkernel adapter {device}")


def _existing(host: HostEntity, part: Part | None, name: str) -> Part:
    if part is None:
        raise faults.not_found(f"Host {host.name} has no {name}.")
    return part


def _refuse_used(host: HostEntity, group: str) -> None:
    users = [each.device for each in host.state.network.adapters if each.group == group]
    users += [vm.name for vm in host.vms() if any(card.network_name == group for card in vm.state.network_cards)]
    if users:
        raise faults.resource_in_use(group, f"The port group {group} is used by {users[0]}.")


def _switch(host: HostEntity, switch: VirtualSwitch, spec: Any) -> VirtualSwitch:
    nics = tuple(spec.bridge.nicDevice) if spec and spec.bridge else ()
    network = host.state.network
    others = [(each.name, each.nics) for each in network.switches if each.name != switch.name]
    others += [(host.world.get(each.switch).name, each.nics) for each in network.proxies]
    for name, used in others:
        taken = next((nic for nic in nics if nic in used), None)
        if taken is not None:
            raise faults.resource_in_use(taken, f"{taken} is an uplink of {name}.")
    known = nic_names(host.state)
    if unknown := [nic for nic in nics if nic not in known]:
        raise faults.host_config(f"Host {host.name} has no physical adapter {unknown[0]}.")
    if spec is None:
        return switch
    policy = _policy(spec.policy).over(SWITCH_POLICY)
    return replace(switch, nics=nics, ports=spec.numPorts or switch.ports, mtu=spec.mtu or switch.mtu, policy=policy)


def _group(host: HostEntity, spec: Any) -> PortGroup:
    if not spec.name:
        raise faults.wrong_argument("portgrp.name")
    if not 0 <= spec.vlanId <= 4095:
        raise faults.wrong_argument("portgrp.vlanId")
    return PortGroup(spec.name, _found_switch(host, spec.vswitchName).name, spec.vlanId, _policy(spec.policy))


def _policy(policy: Any) -> NetworkPolicy:
    security, teaming = (policy.security, policy.nicTeaming) if policy else (None, None)
    order = teaming.nicOrder if teaming else None
    return NetworkPolicy(
        promiscuous=security.allowPromiscuous if security else None,
        mac_changes=security.macChanges if security else None,
        forged_transmits=security.forgedTransmits if security else None,
        teaming=teaming.policy if teaming else None,
        active=tuple(order.activeNic) if order else None,
        standby=tuple(order.standbyNic) if order else None,
    )


def _adapter(adapter: KernelAdapter, spec: Any) -> KernelAdapter:
    address = spec.ip.ipAddress if spec.ip and not spec.ip.dhcp else None
    return replace(
        adapter,
        group=(None if adapter.switch else spec.portgroup) or adapter.group,
        ip=address or adapter.ip,
        mask=(spec.ip.subnetMask if spec.ip else None) or adapter.mask,
        dhcp=bool(spec.ip.dhcp) if spec.ip else adapter.dhcp,
        mtu=spec.mtu or adapter.mtu,
    )


def _folder(host: HostEntity) -> FolderEntity:
    """The network folder of its datacenter."""
    datacenter: Any = next(each for each in ancestors(host) if each.wsdl_name == "Datacenter")
    found: FolderEntity = datacenter.folders["network"]
    return found


def _join_network(host: HostEntity, name: str, make: MakeNetwork) -> None:
    folder, world = _folder(host), host.world
    standard = [each for each in folder.children.values() if each.wsdl_name == "Network"]
    network = next((each for each in standard if each.name == name), None)
    if network is None:
        network = make(world, new_moid(world, "network"), name, folder.moid)
        world.register(network)
        folder.add(network)
    show_networks(host, (*host.state.networks, network.moid))


def _drop_networks(host: HostEntity) -> None:
    """Leave the networks for which the host has no port group; one that no host has any more is gone."""
    world = host.world
    named = {each.name for each in host.state.network.groups}
    standard = [moid for moid in host.state.networks if world.get(moid).wsdl_name == "Network"]
    gone = [moid for moid in standard if world.get(moid).name not in named]
    show_networks(host, tuple(moid for moid in host.state.networks if moid not in gone))
    for moid in gone:
        if not any(moid in each.state.networks for each in world.by_type("HostSystem")):
            network = world.get(moid)
            _folder(host).remove(network)
            world.unregister(network)


def show_networks(host: HostEntity, moids: tuple[str, ...]) -> None:
    """Let the host have these networks."""
    changed = {*moids} ^ {*host.state.networks}
    host.state.networks = moids
    host.touch("network")
    host.compute_resource().touch("network")
    for moid in changed:
        host.world.get(moid).touch("host", "vm")


def hints(host: HostEntity, devices: list[str]) -> Any:
    """QueryNetworkHint: what is heard on the wire: nothing. Raises NotFound."""
    known = nic_names(host.state)
    if unknown := [device for device in devices if device not in known]:
        raise faults.not_found(f"Host {host.name} has no physical adapter {unknown[0]}.")
    return [vim.host.PhysicalNic.NetworkHint(device=device) for device in devices or known]
