"""Makes, changes and removes distributed switches and their port groups, and connects hosts and VMs to them.

A new switch gets an uplink port group, which goes with it (VMware, vSphere Networking). numPorts, autoExpand and
configVersion: vSphere API, DVPortgroupConfigSpec and DVSConfigSpec. Hosts join with physical adapters as uplinks, which
are adapters of no other switch, and change them; they leave with the switch. A copy of a VM gets ports of its own.
Settings that no cluster with RDMA needs raise NotSupported. The faults are those that the API declares; which of them a
vCenter raises in each case is from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.core.inventory_tree import datacenter_of
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import new_moid, new_uuid
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.render import distributed
from gpuops.sim.render.defaults import default
from gpuops.sim.render.distributed import Dvs
from gpuops.sim.render.pci import nic_names
from gpuops.sim.state.host_state import ProxySwitch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import FolderEntity, HostEntity, VmEntity
    from gpuops.sim.state.hardware import NetworkCard
    from gpuops.sim.world import World


MakeSwitch = Callable[["World", str, str, str, Any], DistributedSwitchEntity]
MakePortgroup = Callable[["World", str, str, str, str, Any], PortgroupEntity]

CHANGE_S: Final = 1.0
UPLINK_COUNT: Final = 4
STATIC_BINDING: Final = "earlyBinding"
NOT_SETTINGS: Final = ("configVersion", "name", "host", "uplinkPortgroup", "numPorts")
"""Fields of a spec that are not copied to the settings of a switch or port group."""


def create_switch(folder: FolderEntity, call: Call, spec: Any, make: MakeSwitch, make_portgroup: MakePortgroup) -> Any:
    """Return CreateDVS_Task, whose result is the new switch with its uplink port group and member hosts."""
    world, config_spec = folder.world, spec.configSpec

    def begin() -> None:
        if folder.kind != "network":
            raise faults.not_supported("Distributed switches can only be made in a folder for networks.")
        folder.checked_name(config_spec.name or "")
        _offered_product(world, spec.productInfo)  # raises InvalidArgument for an unknown version
        _check_switch(config_spec)

    def finish() -> DistributedSwitchEntity:
        begin()  # checked again: the name may have been taken while the task ran
        name = folder.checked_name(config_spec.name)
        config = distributed.merged(
            new_config(world, _offered_product(world, spec.productInfo)), _settings_in(config_spec)
        )
        if config_spec.uplinkPortPolicy is not None and config_spec.defaultPortConfig is None:
            config.defaultPortConfig = distributed.default_setting(list(config.uplinkPortPolicy.uplinkPortName))
        switch = enter_switch(folder, name, config, make, make_portgroup)
        try:
            change_members(switch, config_spec.host)
        except Exception:
            forget(switch)
            raise
        world.ledger.record(call, switch, before={}, after=_facts(switch))
        return switch

    return world.tasks.start(call, "CreateDVS_Task", folder, CHANGE_S, begin=begin, finish=finish)


def enter_switch(
    folder: FolderEntity, name: str, config: Any, make: MakeSwitch, make_portgroup: MakePortgroup
) -> DistributedSwitchEntity:
    """A new switch in the folder, with its uplink port group and without members."""
    world = folder.world
    switch = make(world, new_moid(world, "dvs"), name, folder.moid, config)
    world.register(switch)
    folder.add(switch)
    uplink = vim.dvs.DistributedVirtualPortgroup.ConfigInfo(type=STATIC_BINDING, uplink=True)
    number = switch.moid.rpartition("-")[2]
    _add_portgroup(switch, f"{name}-DVUplinks-{number}", uplink, make_portgroup)
    return switch


def change_hosts(switch: DistributedSwitchEntity, call: Call, spec: Any) -> Any:
    """ReconfigureDvs_Task: hosts join the switch or change their uplinks. Raises NotSupported for other changes."""
    world = switch.world
    world.authority.require(call, switch, "DVSwitch.Modify")
    world.authority.require(call, switch, "DVSwitch.HostOp")
    fields = {declared.name for declared in spec._GetPropertyList() if getattr(spec, declared.name)}
    if unsupported := sorted(fields - {"configVersion", "host"}):
        raise faults.not_supported(f"The simulated vCenter cannot change {unsupported[0]} of a distributed switch.")

    def begin() -> None:
        if spec.configVersion is None:
            raise faults.wrong_argument("spec.configVersion")
        if spec.configVersion != str(switch.version):
            raise faults.stale_change_version()

    def finish() -> None:
        begin()  # checked again: the switch may have changed while the task ran
        before = _facts(switch)
        change_members(switch, spec.host)
        switch.version += 1
        switch.changed()
        world.ledger.record(call, switch, before=before, after=_facts(switch))

    return world.tasks.start(call, "ReconfigureDvs_Task", switch, CHANGE_S, begin=begin, finish=finish, exclusive=True)


def new_config(world: World, product: Any) -> Any:
    """The VMwareDVSConfigInfo of a new switch."""
    uplinks = [f"Uplink {number}" for number in range(1, UPLINK_COUNT + 1)]
    return default(
        "VMwareDVSConfigInfo",
        uuid=_switch_uuid(world),
        uplinkPortPolicy=vim.DistributedVirtualSwitch.NameArrayUplinkPortPolicy(uplinkPortName=uplinks),
        defaultPortConfig=distributed.default_setting(uplinks),
        productInfo=product,
        createTime=world.clock.now(),
    )


def _switch_uuid(world: World) -> str:
    """A uuid in the form of the API: `50 2e 0a .. -.. ..` (vSphere API, DistributedVirtualSwitch.uuid)."""
    digits = new_uuid(world).replace("-", "")
    pairs = [digits[at : at + 2] for at in range(0, len(digits), 2)]
    return f"{' '.join(pairs[:8])}-{' '.join(pairs[8:])}"


def _offered_product(world: World, requested_product: Any) -> Any:
    offered = distributed.products(world.api_version)
    if requested_product is None or not requested_product.version:
        return offered[-1]
    offered_product = next((candidate for candidate in offered if candidate.version == requested_product.version), None)
    if offered_product is None:
        raise faults.wrong_argument(
            "spec.productInfo", f"No distributed switch has version {requested_product.version}."
        )
    return offered_product


def _settings_in(spec: Any) -> Any:
    """Return a copy of the spec without the fields of NOT_SETTINGS."""
    copied = type(spec)()
    for field in spec._GetPropertyList():
        if field.name not in NOT_SETTINGS:
            setattr(copied, field.name, getattr(spec, field.name))
    return copied


def _check_switch(spec: Any) -> None:
    for field in ("pvlanConfigSpec", "vspanConfigSpec", "numStandalonePorts"):
        if getattr(spec, field, None):
            raise faults.not_supported(f"The simulated vCenter does not support DVSConfigSpec.{field}.")
    _check_vlan(spec.defaultPortConfig)


def _check_vlan(setting: Any) -> None:
    vlan = getattr(setting, "vlan", None)
    if isinstance(vlan, (Dvs.TrunkVlanSpec, Dvs.PvlanSpec)):
        raise faults.not_supported("The simulated vCenter supports neither VLAN trunks nor private VLANs.")
    if vlan is not None and not 0 <= (vlan.vlanId or 0) <= 4094:
        raise faults.wrong_argument("spec.defaultPortConfig.vlan.vlanId")


# --- port groups ------------------------------------------------------------------------------------------------


def add_portgroups(switch: DistributedSwitchEntity, call: Call, specs: list[Any], make: MakePortgroup) -> Any:
    """AddDVPortgroup_Task: add all port groups or none."""
    world, folder = switch.world, switch.parent_object()
    assert folder is not None, "a switch is in a folder"

    def begin() -> None:
        names = [folder.checked_name(spec.name or "") for spec in specs]  # type: ignore[attr-defined]
        repeated_name = next((name for name in names if names.count(name) > 1), None)
        if repeated_name is not None:
            raise faults.duplicate_name(repeated_name, switch.ref)
        for spec in specs:
            _check_portgroup(spec)

    def finish() -> None:
        begin()  # checked again: a name may have been taken while the task ran
        portgroups = [enter_portgroup(switch, spec, make) for spec in specs]
        switch.version += 1
        switch.changed()
        for portgroup in portgroups:
            world.ledger.record(call, portgroup, before={}, after=_portgroup_facts(portgroup))

    return world.tasks.start(call, call.method, switch, CHANGE_S, begin=begin, finish=finish, exclusive=True)


def _check_portgroup(spec: Any) -> None:
    if spec.type != STATIC_BINDING or spec.backingType not in (None, "standard"):
        raise faults.not_supported("The simulated vCenter supports only port groups with static binding, without NSX.")
    if spec.numPorts is not None and spec.numPorts < 0:
        raise faults.wrong_argument("spec.numPorts")
    _check_vlan(spec.defaultPortConfig)


def enter_portgroup(switch: DistributedSwitchEntity, spec: Any, make: MakePortgroup) -> PortgroupEntity:
    """A new port group of the switch, as a checked DVPortgroupConfigSpec says."""
    config = distributed.merged(
        vim.dvs.DistributedVirtualPortgroup.ConfigInfo(autoExpand=True, backingType="standard", uplink=False),
        _settings_in(spec),
    )
    folder: Any = switch.parent_object()
    portgroup = _add_portgroup(switch, folder.checked_name(spec.name), config, make)
    portgroup.ports = switch.new_ports(spec.numPorts or 0)
    return portgroup


def _add_portgroup(switch: DistributedSwitchEntity, name: str, config: Any, make: MakePortgroup) -> PortgroupEntity:
    """Register a new port group in the folder of its switch, and show it on all member hosts."""
    world: World = switch.world
    if config.policy is None:
        config.policy = default("VMwareDVSPortgroupPolicy")
    if config.defaultPortConfig is None:
        config.defaultPortConfig = Dvs.VmwarePortConfigPolicy()
    folder: Any = switch.parent_object()
    portgroup = make(world, new_moid(world, "dvportgroup"), name, folder.moid, switch.moid, config)
    world.register(portgroup)
    folder.add(portgroup)
    switch.portgroup_moids.append(portgroup.moid)
    for host, _ in switch.members():
        show_networks(host, (*host.state.networks, portgroup.moid))
    return portgroup


# --- removal ----------------------------------------------------------------------------------------------------


def require_removable(entity: DistributedSwitchEntity | PortgroupEntity) -> None:
    """Raises ResourceInUse while VMs are connected, NotSupported for an uplink port group."""
    if isinstance(entity, DistributedSwitchEntity):
        if entity.taken_ports():
            raise faults.in_use(entity)
        return
    if entity.is_uplink:
        raise faults.not_supported("An uplink port group can only be removed with its switch.")
    if entity.switch().taken_ports().intersection(entity.port_keys()):
        raise faults.in_use(entity)


def forget(entity: DistributedSwitchEntity | PortgroupEntity) -> None:
    """Remove a port group, or a switch with its port groups, from the inventory and from its member hosts."""
    if isinstance(entity, DistributedSwitchEntity):
        for host, _ in entity.members():
            set_proxy(entity, host, None)
        for portgroup in entity.portgroups():
            drop(portgroup)
    else:
        switch = entity.switch()
        switch.portgroup_moids.remove(entity.moid)
        for host, _ in switch.members():
            show_networks(host, tuple(moid for moid in host.state.networks if moid != entity.moid))
        switch.changed()
    drop(entity)


def drop(entity: DistributedSwitchEntity | PortgroupEntity) -> None:
    """Remove a switch or port group from its folder and from the world; references to it are not changed."""
    folder: Any = entity.parent_object()
    folder.remove(entity)
    entity.world.unregister(entity)


def _facts(switch: DistributedSwitchEntity) -> dict[str, Any]:
    """Return what the ledger records about a switch."""
    return {
        "name": switch.name,
        "mtu": switch.stored_config.maxMtu,
        "uplinks": switch.uplinks,
        "hosts": {host.name: list(proxy.nics) for host, proxy in switch.members()},
    }


def _portgroup_facts(portgroup: PortgroupEntity) -> dict[str, Any]:
    return {"name": portgroup.name, "type": portgroup.stored_config.type, "ports": len(portgroup.port_keys())}


def change_members(switch: DistributedSwitchEntity, changes: list[Any]) -> None:
    """Let hosts join the switch or change their uplinks. On a fault no host is changed.

    Raises AlreadyExists to add a host that is a member already, NotFound to edit one that is no member, NotSupported
    for a removal, DvsOperationBulkFault for uplinks that are missing or in use.
    """
    members, changed = dict(switch.members()), list[tuple["HostEntity", ProxySwitch]]()
    for change in changes:
        host: HostEntity = switch.world.get(change.host)
        proxy = members.get(host)
        if change.operation == "add":
            if proxy is not None:
                raise faults.already_exists(host.name)
            _refuse_member(switch, host)
            proxy = ProxySwitch(switch.moid, ())
        elif change.operation != "edit":
            raise faults.not_supported(
                "The simulated vCenter removes a host from a distributed switch only by removing the switch."
            )
        elif proxy is None:
            raise faults.not_found(f"Host {host.name} is not a member of {switch.name}.")
        if change.backing is not None:
            proxy = replace(proxy, nics=_nics(switch, host, change.backing))
        changed.append((host, proxy))
    for host, proxy in changed:
        set_proxy(switch, host, proxy)


def _refuse_member(switch: DistributedSwitchEntity, host: HostEntity) -> None:
    if datacenter_of(host) is not datacenter_of(switch):
        raise faults.wrong_argument("spec.host.host", f"Host {host.name} is not in the datacenter of {switch.name}.")
    if host.state.connection != "connected":
        raise _bulk_fault(host, faults.host_not_connected(host.name))


def _nics(switch: DistributedSwitchEntity, host: HostEntity, backing: Any) -> tuple[str, ...]:
    """Return the names of the physical adapters in a member's backing, which become the switch's uplinks on the host.

    Raises DvsOperationBulkFault for an adapter that does not exist or is an uplink of another switch, and for more
    adapters than the switch has uplinks.
    """
    requested_nics = tuple(nic_spec.pnicDevice for nic_spec in (backing.pnicSpec if backing is not None else ()))
    network = host.state.network
    other_switches = [(switch_state.name, switch_state.nics) for switch_state in network.switches]
    other_switches += [
        (host.world.get(other_proxy.switch).name, other_proxy.nics)
        for other_proxy in network.proxies
        if other_proxy.switch != switch.moid
    ]
    nics_of_host = nic_names(host.state)
    for nic in requested_nics:
        if nic not in nics_of_host:
            raise _bulk_fault(host, faults.host_config(f"Host {host.name} has no physical adapter {nic}."))
        owner = next((name for name, nics in other_switches if nic in nics), None)
        if owner is not None:
            raise _bulk_fault(host, faults.resource_in_use(nic, f"{nic} is an uplink of {owner}."))
    if len(requested_nics) > len(switch.uplinks):
        raise _bulk_fault(
            host, faults.host_config(f"{switch.name} allows only {len(switch.uplinks)} uplinks on each host.")
        )
    return requested_nics


def _bulk_fault(host: HostEntity, cause: Exception) -> Exception:
    kind = vim.fault.DvsOperationBulkFault
    text = f"A distributed switch operation failed on host {host.name}: {cause.msg}"  # type: ignore[attr-defined]
    fault: Exception = kind(msg=text, hostFault=[kind.FaultOnHost(host=host.ref, fault=cause)])
    return fault


def show_networks(host: HostEntity, moids: tuple[str, ...]) -> None:
    """Set the networks of a host, and touch the networks that it gained or lost."""
    changed = {*moids} ^ {*host.state.networks}
    host.state.networks = moids
    host.touch("network")
    host.compute_resource().touch("network")
    for moid in changed:
        host.world.get(moid).touch("host", "vm")


def set_proxy(switch: DistributedSwitchEntity, host: HostEntity, proxy: ProxySwitch | None) -> None:
    """Make a host a member of the switch with these uplinks, or end its membership if `proxy` is None."""
    if proxy is not None:
        proxy = _with_uplink_ports(switch, proxy)
    host.state.network = host.state.network.with_proxy(switch.moid, proxy)
    other_networks = tuple(moid for moid in host.state.networks if moid not in switch.portgroup_moids)
    show_networks(host, (*other_networks, *(switch.portgroup_moids if proxy is not None else ())))
    host.network_changed()


def _with_uplink_ports(switch: DistributedSwitchEntity, proxy: ProxySwitch) -> ProxySwitch:
    """Return the proxy with one port for each uplink of the switch; it keeps the ports that it has."""
    missing = len(switch.uplinks) - len(proxy.ports)
    return replace(proxy, ports=(*proxy.ports, *switch.new_ports(max(0, missing)))[: len(switch.uplinks)])


def connected_card_fields(
    vm: VmEntity, cards: Iterable[NetworkCard], index: int, connection: Any, existing_card: NetworkCard | None
) -> dict[str, Any]:
    """Return the fields of a network card connected by a DistributedVirtualSwitchPortConnection.

    `cards` are all cards of the VM. `existing_card` is the card before the change; in the same port group it keeps its
    port. Raises InvalidDeviceBacking if the VM's host does not have the port group (the fault is from memory), or if
    the port is in use or no port is free.
    """
    portgroup = reachable_portgroup(vm.host(), connection)
    if portgroup is None:
        raise faults.device_fault(
            vim.fault.InvalidDeviceBacking, index, "The virtual machine's host does not have this network."
        )
    used_by_vm = {card.port for card in cards if card.switch == connection.switchUuid and card is not existing_card}
    used_ports = portgroup.switch().taken_ports(excluding=vm.moid) | used_by_vm
    port = connection.portKey
    if port is not None and (port not in portgroup.port_keys() or port in used_ports):
        text = f"Port {port} of {portgroup.name} does not exist or is in use."
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


def reachable_portgroup(host: HostEntity, connection: Any) -> PortgroupEntity | None:
    """Return the port group of a port connection; None if the host does not have it, or VMs cannot use it."""
    portgroup = host.world.find(connection.portgroupKey or "")
    if (
        not isinstance(portgroup, PortgroupEntity)
        or portgroup.is_uplink
        or portgroup.switch().uuid != connection.switchUuid
    ):
        return None
    return portgroup if portgroup.moid in host.state.networks else None


def free_port(portgroup: PortgroupEntity, used_ports: Collection[str]) -> str | None:
    """Return an unused port, a new one if none is free and the port group may grow, or None."""
    free = next((key for key in portgroup.ports if key not in used_ports), None)
    if free is None and portgroup.stored_config.autoExpand:
        [free] = portgroup.switch().new_ports(1)
        portgroup.ports.append(free)
        portgroup.changed()
    return free


def with_own_ports(world: World, cards: Iterable[NetworkCard], excluding: str | None = None) -> tuple[NetworkCard, ...]:
    """Return the cards, with a free port for each card whose port another VM uses.

    `excluding` is the moid of the VM whose ports do not count as used. A card keeps its port if its port group was
    removed or has no free port.
    """
    new_cards: list[NetworkCard] = []
    for card in cards:
        portgroup = world.find(card.network) if card.switch else None
        if isinstance(portgroup, PortgroupEntity):
            used_ports = portgroup.switch().taken_ports(excluding)
            if card.port in used_ports:
                port = free_port(portgroup, {*used_ports, *(new_card.port for new_card in new_cards)})
                card = replace(card, port=port or card.port)
        new_cards.append(card)
    return tuple(new_cards)
