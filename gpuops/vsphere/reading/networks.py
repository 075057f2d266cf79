"""Reads the distributed switches and the RDMA devices and settings of hosts, in at most two bulk reads.

The first reads switches, port groups and the network adapters of all hosts. The second reads the advanced settings and
the firewall of hosts with an RDMA device: a host has a thousand settings, and they cannot be read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.other_device import (
    DistributedPortGroup,
    DistributedSwitch,
    HostRdma,
    Networks,
    PhysicalNic,
    RdmaDevice,
    VmkernelAdapter,
)
from gpuops.vsphere.reading.bulk.pages import (
    ReadObject,
    child,
    children,
    flag,
    items,
    leaf_owner,
    leaf_text,
    leaves,
    leaves_by_name,
    number,
    text,
    texts,
    whole,
)
from gpuops.vsphere.reading.bulk.reader import (
    NETWORK_OF_HOST,
    PORT_GROUP,
    RDMA_SETTINGS,
    SWITCH,
    reading,
    supported_paths,
)
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.messages import pci_address

PVRDMA_ADAPTER: Final = "Net.PVRDMAVmknic"
RULE_SET: Final = "pvrdma"
_SWITCH: Final = "VmwareDistributedVirtualSwitch"
_PORT_GROUP: Final = "DistributedVirtualPortgroup"
_ACTIVE: Final = "active"


@dataclass(frozen=True, slots=True)
class _Switch:
    switch: DistributedSwitch
    uplink_groups: frozenset[str]
    """Refs of the port groups that its uplinks are in."""


@dataclass(frozen=True, slots=True)
class _Host:
    ref: str
    rdma: HostRdma


def read_networks(session: Session) -> Networks:
    """Return the distributed switches and the RDMA configuration of hosts. Raises NotConnected and its subclasses."""
    with reading(session) as reader:
        records = reader.read_all(
            {
                _SWITCH: SWITCH,
                _PORT_GROUP: PORT_GROUP,
                "HostSystem": supported_paths(NETWORK_OF_HOST, session.api_version),
            },
            _decode,
        )
        hosts = {host.ref: host.rdma for host in records if isinstance(host, _Host)}
        with_rdma = [("HostSystem", ref) for ref, host in hosts.items() if host.devices]
        settings = reader.read_named({"HostSystem": RDMA_SETTINGS}, with_rdma, _settings) if with_rdma else []
    hosts |= {ref: replace(hosts[ref], tagged=tagged, firewall_open=opened) for ref, tagged, opened in settings}
    switches = [switch for switch in records if isinstance(switch, _Switch)]
    uuids = {switch.switch.ref: switch.switch.uuid for switch in switches}
    # these port groups connect the switch with physical adapters: no VM uses them
    uplink_groups = {ref for switch in switches for ref in switch.uplink_groups}
    groups = tuple(
        replace(group, switch=uuids[group.switch])
        for group in records
        if isinstance(group, DistributedPortGroup) and group.ref not in uplink_groups and group.switch in uuids
    )
    return Networks(tuple(switch.switch for switch in switches), groups, hosts)


def _decode(read_object: ReadObject) -> _Switch | DistributedPortGroup | _Host | None:
    properties = read_object.properties
    if read_object.type == "HostSystem":
        # if a property cannot be read, the host is unknown: it may have RDMA
        return _Host(read_object.ref, _host(properties)) if not read_object.unreadable else None
    if read_object.type == _SWITCH:
        return _switch(read_object.ref, read_object.name, text(properties.get("uuid")) or "", properties.get("config"))
    switch = text(properties.get("config.distributedVirtualSwitch")) or ""  # its ref, until all of them are known
    key = text(properties.get("key")) or read_object.ref
    return DistributedPortGroup(read_object.ref, read_object.name, key, switch)


def _switch(ref: str, name: str, uuid: str, config: Any) -> _Switch:
    uplinks = {}
    for member in children(config, "host"):
        member_config = child(member, "config")
        nic_specs = children(child(member_config, "backing"), "pnicSpec")
        if (host := text(member_config, "host")) is not None:
            uplinks[host] = tuple(nic for nic_spec in nic_specs if (nic := text(nic_spec, "pnicDevice")) is not None)
    version = text(child(config, "productInfo"), "version")
    switch = DistributedSwitch(ref, name, uuid, version, number(config, "maxMtu"), uplinks)
    return _Switch(switch, frozenset(texts(config, "uplinkPortgroup")))


def _host(properties: Mapping[str, Any]) -> HostRdma:
    """Return the RDMA devices, physical adapters and VMkernel adapters of a host."""
    function_counts = dict(_function_counts(properties.get("config.pciPassthruInfo")))
    numa_nodes = dict(_numa_nodes(properties.get("hardware.numaInfo")))
    nics, nic_names_by_key = [], {}
    for nic in items(properties.get("config.network.pnic")):
        fields = leaves(nic)
        name, address = leaf_text(fields.get("device")) or "", pci_address(leaf_text(fields.get("pci")))
        nic_names_by_key[leaf_text(fields.get("key"))] = name
        speed = number(child(nic, "linkSpeed"), "speedMb")
        function_count = function_counts.get(address) if address is not None else None
        numa_node = numa_nodes.get(address) if address is not None else None
        nics.append(PhysicalNic(name, address, speed, function_count, numa_node))
    return HostRdma(
        tuple(_device(device, nic_names_by_key) for device in items(properties.get("config.network.rdmaDevice"))),
        tuple(nics),
        tuple(_adapter(vnic) for vnic in items(properties.get("config.network.vnic"))),
    )


def _device(node: Any, nic_names_by_key: Mapping[str | None, str]) -> RdmaDevice:
    """Return the RDMA device, with the name of the physical adapter that it is paired with."""
    capability = child(node, "capability")
    state = text(child(node, "connectionInfo"), "state")
    return RdmaDevice(
        text(node, "device") or "",
        text(node, "driver"),
        nic_names_by_key.get(text(child(node, "backing"), "pairedUplink")),
        roce_v1=flag(capability, "roceV1Capable") is True,
        roce_v2=flag(capability, "roceV2Capable") is True,
        link_up=None if state is None else state == _ACTIVE,
    )


def _adapter(node: Any) -> VmkernelAdapter:
    spec = child(node, "spec")
    switch = text(child(spec, "distributedVirtualPort"), "switchUuid")
    return VmkernelAdapter(text(node, "device") or "", switch, number(spec, "mtu"))


def _function_counts(device_list: Any) -> Iterator[tuple[PciAddress, int]]:
    """Yield the number of active virtual functions of each SR-IOV device (HostSriovInfo)."""
    for fields in map(leaves, items(device_list)):
        address, count = pci_address(leaf_text(fields.get("id"))), whole(fields.get("numVirtualFunction"))
        if address is not None and count is not None:
            yield address, count


def _numa_nodes(numa_info: Any) -> Iterator[tuple[PciAddress, int]]:
    """Yield the NUMA node of each PCI device (HostNumaNode.pciId)."""
    for node in children(numa_info, "numaNode"):
        node_number = number(node, "typeId")
        for device in children(node, "pciId"):
            address = pci_address(text(device))
            if address is not None and node_number is not None:
                yield address, node_number


def _settings(read_object: ReadObject) -> tuple[str, str | None, bool | None]:
    """Return the ref of the host, the VMkernel adapter tagged for PVRDMA, and whether its firewall rule is on."""
    options = read_object.properties.get("config.option")
    tag_option = next((node for key, node in leaves_by_name(options, "key") if key == PVRDMA_ADAPTER), None)
    rules = children(read_object.properties.get("config.firewall"), "ruleset")
    opened = next((flag(rule, "enabled") for rule in rules if text(rule, "key") == RULE_SET), None)
    return read_object.ref, None if tag_option is None else text(leaf_owner(tag_option), "value"), opened
