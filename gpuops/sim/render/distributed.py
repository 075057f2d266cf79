"""A distributed switch on the wire: its settings, its members, its port groups and its ports."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.render.defaults import default, filled
from gpuops.sim.state.host_state import KernelAdapter

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
    from gpuops.sim.state.host_state import ProxySwitch

Dvs = vim.dvs.VmwareDistributedVirtualSwitch
PORTS_OF_PROXY: Final = 512
VERSIONS: Final = ("6.6.0", "7.0.0", "7.0.2", "7.0.3", "8.0.0", "8.0.3")
"""The versions of distributed switches that vCenter 8.0 offers (VMware, vSphere Networking, "Create a vSphere
Distributed Switch"; the updates from memory)."""


def products(release: str) -> list[Any]:
    """The DistributedVirtualSwitchProductSpecs that a vCenter of this release offers, oldest first."""
    newest = tuple(int(number) for number in release.split(".")[:3])
    return [product(version) for version in VERSIONS if tuple(int(number) for number in version.split(".")) <= newest]


def product(version: str) -> Any:
    return vim.dvs.ProductSpec(name="DVS", vendor="VMware, Inc.", version=version, forwardingClass="etherswitch")


def default_setting(uplinks: list[str]) -> Any:
    """The VMwareDVSPortSetting of a new switch."""
    order = Dvs.UplinkPortOrderPolicy(inherited=False, activeUplinkPort=uplinks)
    teaming = Dvs.UplinkPortTeamingPolicy(inherited=False, uplinkPortOrder=order)
    return merged(default("VMwareDVSPortSetting"), Dvs.VmwarePortConfigPolicy(uplinkTeamingPolicy=teaming))


def merged(current: Any, changes: Any) -> Any:
    """Return a copy of an object of the API in which the fields that `changes` sets have the new values."""
    merged_value = copy.copy(current)
    for field in changes._GetPropertyList():
        value = getattr(changes, field.name)
        if value is None or (isinstance(value, list) and not value):
            continue
        current_value = getattr(current, field.name)
        nested = isinstance(value, VmomiSupport.DataObject) and isinstance(current_value, type(value))
        setattr(merged_value, field.name, merged(current_value, value) if nested else value)
    return merged_value


def effective_policy(inherited_policy: Any, own_setting: Any) -> Any:
    """Return the policy with each inherited field taken from `inherited_policy` and marked as inherited.

    `inherited_policy` is for example the one of a port's port group (vSphere API, InheritablePolicy).
    """
    if own_setting is None or own_setting.inherited:  # the complete policy is inherited
        if inherited_policy is None:
            return own_setting
        own_setting = type(inherited_policy)(inherited=True)
    if not isinstance(inherited_policy, type(own_setting)):
        return own_setting
    effective = type(own_setting)()
    for field in own_setting._GetPropertyList():
        inherited_field, own_field = getattr(inherited_policy, field.name), getattr(own_setting, field.name)
        if isinstance(inherited_field, vim.InheritablePolicy):
            setattr(effective, field.name, effective_policy(inherited_field, own_field))
        else:
            setattr(effective, field.name, inherited_field if own_field is None or own_field == [] else own_field)
    return effective


def effective_setting(portgroup: PortgroupEntity) -> Any:
    """Return the VMwareDVSPortSetting of a port group; fields that it does not set are inherited from its switch."""
    switch_setting, own_config = (
        portgroup.switch().stored_config.defaultPortConfig,
        portgroup.stored_config.defaultPortConfig,
    )
    effective = type(switch_setting)()
    for field in switch_setting._GetPropertyList():
        value = getattr(switch_setting, field.name)
        if isinstance(value, vim.InheritablePolicy):
            setattr(effective, field.name, effective_policy(value, getattr(own_config, field.name, None)))
    return effective


def config(switch: DistributedSwitchEntity) -> Any:
    """VMwareDVSConfigInfo."""
    rendered = copy.copy(switch.stored_config)
    rendered.name = switch.name
    rendered.numPorts = sum(len(portgroup.port_keys()) for portgroup in switch.portgroups())
    rendered.uplinkPortgroup = [portgroup.ref for portgroup in switch.portgroups() if portgroup.is_uplink]
    rendered.host = [_member(switch, host, proxy) for host, proxy in switch.members()]
    rendered.configVersion = str(switch.version)
    return rendered


def _member(switch: DistributedSwitchEntity, host: HostEntity, proxy: ProxySwitch) -> Any:
    kind = vim.dvs.HostMember
    return filled(
        kind,
        config=filled(
            kind.ConfigInfo, host=host.ref, maxProxySwitchPorts=PORTS_OF_PROXY, backing=_backing(switch, proxy)
        ),
        productInfo=switch.stored_config.productInfo,
        uplinkPortKey=list(proxy.ports),
        status=_status(host),
    )


def _backing(switch: DistributedSwitchEntity, proxy: ProxySwitch) -> Any:
    uplink = next(portgroup for portgroup in switch.portgroups() if portgroup.is_uplink)
    kind = vim.dvs.HostMember
    return kind.PnicBacking(
        pnicSpec=[
            kind.PnicSpec(pnicDevice=nic, uplinkPortKey=key, uplinkPortgroupKey=uplink.moid)
            for nic, key in zip(proxy.nics, proxy.ports, strict=False)
        ]
    )


def _status(host: HostEntity) -> str:
    return "up" if host.state.connection == "connected" else "disconnected"


def summary(switch: DistributedSwitchEntity) -> Any:
    """DVSSummary."""
    hosts = [host.ref for host, _ in switch.members()]
    switch_config = config(switch)
    return vim.DistributedVirtualSwitch.Summary(
        name=switch.name,
        uuid=switch.uuid,
        numPorts=switch_config.numPorts,
        productInfo=switch_config.productInfo,
        hostMember=hosts,
        vm=[vm.ref for vm in dict.fromkeys(vm for vm, _ in switch.connections().values())],
        host=hosts,
        portgroupName=[portgroup.name for portgroup in switch.portgroups()],
        description=switch_config.description,
        contact=switch_config.contact,
        numHosts=len(hosts),
    )


def runtime(switch: DistributedSwitchEntity) -> Any:
    """DVSRuntimeInfo."""
    kind = vim.DistributedVirtualSwitch
    members = [vim.dvs.HostMember.RuntimeInfo(host=host.ref, status=_status(host)) for host, _ in switch.members()]
    return kind.RuntimeInfo(hostMemberRuntime=members)


def portgroup_config(portgroup: PortgroupEntity) -> Any:
    """DVPortgroupConfigInfo."""
    rendered = copy.copy(portgroup.stored_config)
    rendered.key, rendered.name = portgroup.moid, portgroup.name
    rendered.numPorts = len(portgroup.port_keys())
    rendered.distributedVirtualSwitch = portgroup.switch().ref
    rendered.defaultPortConfig = effective_setting(portgroup)
    rendered.configVersion = str(portgroup.version)
    return rendered


def portgroup_info(portgroup: PortgroupEntity) -> Any:
    """Return the DistributedVirtualPortgroupInfo for a config target."""
    switch = portgroup.switch()
    return default(
        "DistributedVirtualPortgroupInfo",
        switchName=switch.name,
        switchUuid=switch.uuid,
        portgroupName=portgroup.name,
        portgroupKey=portgroup.moid,
        portgroupType=portgroup.stored_config.type,
        uplinkPortgroup=portgroup.is_uplink,
        portgroup=portgroup.ref,
    )


def switch_info(switch: DistributedSwitchEntity) -> Any:
    """DistributedVirtualSwitchInfo, as config targets list it."""
    return vim.dvs.DistributedVirtualSwitchInfo(
        switchName=switch.name,
        switchUuid=switch.uuid,
        distributedVirtualSwitch=switch.ref,
        networkReservationSupported=True,
    )


def ports(switch: DistributedSwitchEntity) -> list[Any]:
    """The DistributedVirtualPort of each port, in the order of the port groups."""
    connections, adapters = switch.connections(), switch.adapters()
    uplinks = {key: (host, number) for host, proxy in switch.members() for number, key in enumerate(proxy.ports)}
    return [
        _port(switch, portgroup, key, port_setting, connections.get(key) or adapters.get(key), uplinks.get(key))
        for portgroup in switch.portgroups()
        for port_setting in (effective_setting(portgroup),)  # made once for all ports of the port group
        for key in portgroup.port_keys()
    ]


def _port(
    switch: DistributedSwitchEntity,
    portgroup: PortgroupEntity,
    key: str,
    port_setting: Any,
    connection: Any,
    uplink: Any,
) -> Any:
    """Return the DistributedVirtualPort of a key.

    `connection` is (VM, its card) or (host, its VMkernel adapter), `uplink` is (host, index of the uplink); None
    without them.
    """
    kind = vim.dvs.DistributedVirtualPort
    port = filled(
        kind,
        key=key,
        config=kind.ConfigInfo(
            name=switch.uplinks[uplink[1]] if uplink else "", setting=port_setting, configVersion="1"
        ),
        dvsUuid=switch.uuid,
        portgroupKey=portgroup.moid,
        conflict=False,
        lastStatusChange=switch.stored_config.createTime,
    )
    if connection is not None and isinstance(connection[1], KernelAdapter):
        host, adapter = connection
        port.connectee = vim.dvs.PortConnectee(connectedEntity=host.ref, nicKey=adapter.device, type="hostVmkVnic")
        port.proxyHost = host.ref
        port.state = _state(port_setting, up=True)
    elif connection is not None:
        vm, card = connection
        port.connectee = vim.dvs.PortConnectee(connectedEntity=vm.ref, nicKey=str(card.key), type="vmVnic")
        port.connectionCookie = card.cookie
        port.proxyHost = vm.host().ref
        port.state = _state(port_setting, up=vm.state.power == "poweredOn" and card.starts_connected)
    elif uplink is not None:
        host, number = uplink
        proxy = host.state.network.proxy(switch.moid)
        port.proxyHost = host.ref
        if number < len(proxy.nics):
            port.connectee = vim.dvs.PortConnectee(connectedEntity=host.ref, nicKey=proxy.nics[number], type="pnic")
            port.state = _state(port_setting, up=True)
    return port


def _state(port_setting: Any, *, up: bool) -> Any:
    kind = vim.dvs.DistributedVirtualPort
    return filled(kind.State, runtimeInfo=filled(kind.RuntimeInfo, linkUp=up, blocked=port_setting.blocked.value))


def proxy_switches(host: HostEntity) -> list[Any]:
    """HostProxySwitch of each distributed switch that a host is a member of."""
    return [_proxy(host.world.get(proxy.switch), proxy) for proxy in host.state.network.proxies]


def _proxy(switch: DistributedSwitchEntity, proxy: ProxySwitch) -> Any:
    names = zip(proxy.ports, switch.uplinks, strict=True)
    return vim.host.HostProxySwitch(
        dvsUuid=switch.uuid,
        dvsName=switch.name,
        key=f"DvsPortset-{switch.moid.rpartition('-')[2]}",
        numPorts=PORTS_OF_PROXY,
        configNumPorts=PORTS_OF_PROXY,
        numPortsAvailable=PORTS_OF_PROXY,
        uplinkPort=[vim.KeyValue(key=key, value=name) for key, name in names],
        mtu=switch.stored_config.maxMtu,
        pnic=[f"key-vim.host.PhysicalNic-{nic}" for nic in proxy.nics],
        spec=vim.host.HostProxySwitch.Specification(backing=_backing(switch, proxy)),
    )
