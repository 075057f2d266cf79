"""Networking of a host: standard switches, port groups, VMkernel adapters, physical adapters and the firewall."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.render.defaults import default, default_fields, filled
from gpuops.sim.render.pci import NIC_NAME, network_ports
from gpuops.sim.state.host_state import HostState, KernelAdapter, NetworkPort, PortGroup, VirtualSwitch

GATEWAY: Final = "203.0.113.254"
SWITCH_PORTS: Final = 128
SWITCH_MTU: Final = 1500
NIC_TYPES: Final = (
    "faultToleranceLogging", "management", "vmotion", "vSphereProvisioning", "vSphereReplication",
    "vSphereReplicationNFC", "vsan", "vsanWitness", "nvmeTcp", "nvmeRdma",
)  # fmt: skip
"""The services that a VMkernel adapter can be selected for (vSphere API, HostVirtualNicManager.NicType)."""


def info(host: HostState) -> Any:
    """HostNetworkInfo."""
    return default(
        "HostNetworkInfo",
        vswitch=[_switch(host, switch) for switch in host.network.switches],
        portgroup=[_group(host, group) for group in host.network.groups],
        pnic=[_pnic(host, number, port) for number, port in enumerate(network_ports(host))],
        rdmaDevice=_rdma_devices(host),
        vnic=vnics(host),
        dnsConfig=_dns(host),
        ipRouteConfig=_route(),
        netStackInstance=[default("HostNetStackInstance", dnsConfig=_dns(host), ipRouteConfig=_route())],
    )


def config(host: HostState) -> Any:
    """HostNetworkConfig: the configuration that leads to the network that `info` returns."""
    network = info(host)
    return vim.host.NetworkConfig(
        vswitch=[vim.host.VirtualSwitch.Config(name=switch.name, spec=switch.spec) for switch in network.vswitch],
        portgroup=[vim.host.PortGroup.Config(spec=group.spec) for group in network.portgroup],
        pnic=[vim.host.PhysicalNic.Config(device=nic.device, spec=nic.spec) for nic in network.pnic],
        vnic=[
            vim.host.VirtualNic.Config(device=adapter.device, portgroup=adapter.portgroup, spec=adapter.spec)
            for adapter in network.vnic
        ],
        dnsConfig=network.dnsConfig,
        ipRouteConfig=network.ipRouteConfig,
        ipV6Enabled=network.ipV6Enabled,
    )


def vnics(host: HostState) -> list[Any]:
    """HostVirtualNic of each VMkernel adapter."""
    return [_vnic(host, number, adapter) for number, adapter in enumerate(host.network.adapters)]


def selections(host: HostState) -> Any:
    """HostVirtualNicManagerInfo: the VMkernel adapters that carry each type of traffic, such as vMotion."""
    return vim.host.VirtualNicManagerInfo(
        netConfig=[
            vim.host.VirtualNicManager.NetConfig(
                nicType=kind,
                multiSelectAllowed=True,
                candidateVnic=[_candidate(kind, adapter) for adapter in vnics(host)],
                selectedVnic=[_candidate_key(kind, adapter.device) for adapter in _adapters_for(host, kind)],
            )
            for kind in NIC_TYPES
        ]
    )


def vmotion(host: HostState) -> Any:
    """HostVMotionInfo."""
    adapters = _adapters_for(host, "vmotion")
    return vim.host.VMotionInfo(
        netConfig=vim.host.VMotionSystem.NetConfig(
            candidateVnic=[_candidate("VMotionConfig.vmotion", adapter) for adapter in vnics(host)],
            selectedVnic=_candidate_key("VMotionConfig.vmotion", adapters[0].device) if adapters else None,
        )
    )


def _adapters_for(host: HostState, service: str) -> list[KernelAdapter]:
    return [adapter for adapter in host.network.adapters if service in adapter.services]


def _candidate_key(kind: str, device: str) -> str:
    return f"{kind}.key-vim.host.VirtualNic-{device}"


def _candidate(kind: str, vnic: Any) -> Any:
    """Return the HostVirtualNic as a candidate: its key, which is set here, begins with the service."""
    vnic.key = _candidate_key(kind, vnic.device)
    return vnic


def _switch(host: HostState, switch: VirtualSwitch) -> Any:
    return vim.host.VirtualSwitch(
        name=switch.name,
        key=f"key-vim.host.VirtualSwitch-{switch.name}",
        numPorts=SWITCH_PORTS,
        numPortsAvailable=SWITCH_PORTS,
        mtu=SWITCH_MTU,
        portgroup=[_group_key(group.name) for group in host.network.groups if group.switch == switch.name],
        pnic=[f"key-vim.host.PhysicalNic-{nic}" for nic in switch.nics],
        spec=vim.host.VirtualSwitch.Specification(
            numPorts=SWITCH_PORTS,
            mtu=SWITCH_MTU,
            bridge=vim.host.VirtualSwitch.BondBridge(nicDevice=list(switch.nics)),
            policy=_policy(switch),
        ),
    )


def _group_key(name: str) -> str:
    return f"key-vim.host.PortGroup-{name}"


def _group(host: HostState, group: PortGroup) -> Any:
    switch = next(candidate for candidate in host.network.switches if candidate.name == group.switch)
    kind = vim.host.NetworkPolicy
    # empty policies: the port group inherits those of its switch
    inherited = kind(
        security=kind.SecurityPolicy(), nicTeaming=kind.NicTeamingPolicy(), shapingPolicy=kind.TrafficShapingPolicy()
    )
    return vim.host.PortGroup(
        key=_group_key(group.name),
        vswitch=f"key-vim.host.VirtualSwitch-{group.switch}",
        computedPolicy=_policy(switch),
        spec=vim.host.PortGroup.Specification(name=group.name, vlanId=0, vswitchName=group.switch, policy=inherited),
    )


def _policy(switch: VirtualSwitch) -> Any:
    """The policy of a new standard switch: its three security settings are Reject; the port chooses the uplink.

    Source: VMware, vSphere Networking.
    """
    kind = vim.host.NetworkPolicy
    order = kind.NicOrderPolicy(activeNic=list(switch.nics))
    return kind(
        security=kind.SecurityPolicy(allowPromiscuous=False, macChanges=False, forgedTransmits=False),
        nicTeaming=default("HostNicTeamingPolicy", policy="loadbalance_srcid", nicOrder=order),
        offloadPolicy=default("HostNetOffloadCapabilities"),
        shapingPolicy=kind.TrafficShapingPolicy(enabled=False),
    )


def _pnic(host: HostState, number: int, port: NetworkPort) -> Any:
    return default(
        "PhysicalNic",
        key=f"key-vim.host.PhysicalNic-vmnic{number}",
        device=f"vmnic{number}",
        pci=port.pci_id,
        linkSpeed=vim.host.PhysicalNic.LinkSpeedDuplex(speedMb=port.speed_mbit, duplex=True) if port.link else None,
        mac=_mac(host, number),
    )


def _rdma_devices(host: HostState) -> list[Any]:
    """HostRdmaDevice of each network port with RDMA; its state is `active` while the port has a link (from memory)."""
    kind = vim.host.RdmaDevice
    ports = [(number, port) for number, port in enumerate(network_ports(host)) if port.rdma]
    return [
        kind(
            key=f"key-vim.host.RdmaDevice-vmrdma{device}",
            device=f"vmrdma{device}",
            driver="nmlx5_rdma",
            description=NIC_NAME,
            backing=kind.PnicBacking(pairedUplink=f"key-vim.host.PhysicalNic-vmnic{number}"),
            connectionInfo=kind.ConnectionInfo(
                state="active" if port.link else "down", mtu=4096, speedInMbps=port.speed_mbit
            ),
            capability=kind.Capability(roceV1Capable=True, roceV2Capable=True, iWarpCapable=False),
        )
        for device, (number, port) in enumerate(ports)
    ]


def _uuid_tail(host: HostState) -> int:
    """Return the last two bytes of the host's uuid as a number; its MAC and IP addresses are made from it."""
    return int(host.uuid.replace("-", "")[-4:], 16)


def _mac(host: HostState, last: int) -> str:
    uuid_tail = _uuid_tail(host)
    return f"00:50:56:{uuid_tail >> 8:02x}:{uuid_tail & 0xFF:02x}:{last:02x}"


def _vnic(host: HostState, number: int, adapter: KernelAdapter) -> Any:
    """Return a VMkernel adapter; on a distributed switch it names its port instead of a port group."""
    address = adapter.ip or f"203.0.113.{_uuid_tail(host) % 250 + 1}"  # from the documentation range
    return vim.host.VirtualNic(
        device=adapter.device,
        key=f"key-vim.host.VirtualNic-{adapter.device}",
        portgroup="" if adapter.switch else adapter.group,
        spec=default(
            "HostVirtualNicSpec",
            distributedVirtualPort=vim.dvs.PortConnection(
                switchUuid=adapter.switch, portgroupKey=adapter.group, portKey=adapter.port
            )
            if adapter.switch
            else None,
            ip=vim.host.IpConfig(dhcp=False, ipAddress=address, subnetMask="255.255.255.0"),
            mac=_mac(host, 0x60 + number),
            mtu=adapter.mtu,
        ),
    )


def _dns(host: HostState) -> Any:
    name, _, domain = host.name.partition(".")
    return filled(vim.host.DnsConfig, dhcp=False, hostName=name, domainName=domain)


def _route() -> Any:
    return vim.host.IpRouteConfig(defaultGateway=GATEWAY)


@cache
def installed_rulesets() -> dict[str, bool]:
    """Return whether each rule set of the firewall is enabled after the installation, by its key (`defaults.yaml`)."""
    return {ruleset.key: ruleset.enabled for ruleset in default_fields("HostFirewallInfo")["ruleset"]}


def firewall(host: HostState) -> Any:
    """HostFirewallInfo."""
    rulesets = [copy.copy(ruleset) for ruleset in default_fields("HostFirewallInfo")["ruleset"]]
    for ruleset in rulesets:
        ruleset.enabled = host.rulesets.get(ruleset.key, ruleset.enabled)
    return default("HostFirewallInfo", ruleset=rulesets)
