"""Reads the distributed switches and what the hosts have for RDMA between VMs, in at most two bulk reads.

The first has switches, port groups, and the network adapters of all hosts; the second, only where a host has an RDMA
device, its advanced settings and its firewall, for a host has a thousand settings and none can be asked for alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.rdma import (
    DistributedPortGroup,
    DistributedSwitch,
    HostRdma,
    Networks,
    PhysicalNic,
    RdmaDevice,
    VmkernelAdapter,
)
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.property_paths import NETWORK_OF_HOST, PORT_GROUP, RDMA_SETTINGS, SWITCH, known
from gpuops.vsphere.reading.bulk.reader import reading
from gpuops.vsphere.reading.bulk.values import (
    child,
    children,
    each_with,
    flag,
    items,
    leaves,
    number,
    owner,
    said,
    text,
    whole,
)
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.xml_values import pci_address

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
    """The distributed switches, and what the hosts have for RDMA. Raises NotConnected in its kinds."""
    with reading(session) as reader:
        found = reader.read_all(
            {_SWITCH: SWITCH, _PORT_GROUP: PORT_GROUP, "HostSystem": known(NETWORK_OF_HOST, session.api_version)},
            _decode,
        )
        hosts = {each.ref: each.rdma for each in found if isinstance(each, _Host)}
        with_rdma = [("HostSystem", ref) for ref, host in hosts.items() if host.devices]
        settings = reader.read_named({"HostSystem": RDMA_SETTINGS}, with_rdma, _settings) if with_rdma else []
    told = {ref: replace(hosts[ref], tagged=tagged, firewall_open=opened) for ref, tagged, opened in settings}
    switches = [each for each in found if isinstance(each, _Switch)]
    uuids = {each.switch.ref: each.switch.uuid for each in switches}
    inner = {ref for each in switches for ref in each.uplink_groups}
    groups = [each for each in found if isinstance(each, DistributedPortGroup)]
    return Networks(
        tuple(each.switch for each in switches),
        tuple(
            replace(group, switch=uuids[group.switch])
            for group in groups
            if group.ref not in inner and group.switch in uuids
        ),
        {**hosts, **told},
    )


def _decode(found: ReadObject) -> _Switch | DistributedPortGroup | _Host | None:
    values = found.properties
    if found.type == "HostSystem":
        # one of which a property could not be read is unknown, not without RDMA
        return _Host(found.ref, _host(values)) if not found.unreadable else None
    if found.type == _SWITCH:
        return _switch(found.ref, found.name, text(values.get("uuid")) or "", values.get("config"))
    switch = text(values.get("config.distributedVirtualSwitch")) or ""  # its ref, until all of them are known
    return DistributedPortGroup(found.ref, found.name, text(values.get("key")) or found.ref, switch)


def _switch(ref: str, name: str, uuid: str, config: Any) -> _Switch:
    uplinks = {}
    for member in children(config, "host"):
        told = child(member, "config")
        nics = (text(each, "pnicDevice") for each in children(child(told, "backing"), "pnicSpec"))
        host = text(told, "host")
        if host is not None:
            uplinks[host] = tuple(nic for nic in nics if nic is not None)
    switch = DistributedSwitch(
        ref, name, uuid, text(child(config, "productInfo"), "version"), number(config, "maxMtu"), uplinks
    )
    groups = (text(each) for each in children(config, "uplinkPortgroup"))
    return _Switch(switch, frozenset(group for group in groups if group is not None))


def _host(values: Mapping[str, Any]) -> HostRdma:
    functions = dict(_functions(values.get("config.pciPassthruInfo")))
    nodes = dict(_nodes(values.get("hardware.numaInfo")))
    nics, names = [], {}
    for each in items(values.get("config.network.pnic")):
        told = leaves(each)
        name, address = said(told.get("device")) or "", pci_address(said(told.get("pci")))
        names[said(told.get("key"))] = name
        speed = number(child(each, "linkSpeed"), "speedMb")
        given = (functions.get(address), nodes.get(address)) if address is not None else (None, None)
        nics.append(PhysicalNic(name, address, speed, *given))
    return HostRdma(
        tuple(_device(each, names) for each in items(values.get("config.network.rdmaDevice"))),
        tuple(nics),
        tuple(_adapter(each) for each in items(values.get("config.network.vnic"))),
    )


def _device(node: Any, names: Mapping[str | None, str]) -> RdmaDevice:
    capability = child(node, "capability")
    state = text(child(node, "connectionInfo"), "state")
    return RdmaDevice(
        text(node, "device") or "",
        text(node, "driver"),
        names.get(text(child(node, "backing"), "pairedUplink")),
        roce_v1=flag(capability, "roceV1Capable") is True,
        roce_v2=flag(capability, "roceV2Capable") is True,
        link_up=None if state is None else state == _ACTIVE,
    )


def _adapter(node: Any) -> VmkernelAdapter:
    spec = child(node, "spec")
    switch = text(child(spec, "distributedVirtualPort"), "switchUuid")
    return VmkernelAdapter(text(node, "device") or "", switch, number(spec, "mtu"))


def _functions(value: Any) -> Iterator[tuple[PciAddress, int]]:
    """How many virtual functions are in force, of each device that can have some (HostSriovInfo)."""
    for told in map(leaves, items(value)):
        address, count = pci_address(said(told.get("id"))), whole(told.get("numVirtualFunction"))
        if address is not None and count is not None:
            yield address, count


def _nodes(value: Any) -> Iterator[tuple[PciAddress, int]]:
    for node in children(value, "numaNode"):
        number_of_node = number(node, "typeId")
        for each in children(node, "pciId"):
            address = pci_address(text(each))
            if address is not None and number_of_node is not None:
                yield address, number_of_node


def _settings(found: ReadObject) -> tuple[str, str | None, bool | None]:
    """(ref, the VMkernel adapter that is tagged, whether the rule set is open)."""
    options = found.properties.get("config.option")
    tag = next((each for key, each in each_with(options, "key") if key == PVRDMA_ADAPTER), None)
    rules = children(found.properties.get("config.firewall"), "ruleset")
    opened = next((flag(each, "enabled") for each in rules if text(each, "key") == RULE_SET), None)
    return found.ref, None if tag is None else text(owner(tag), "value"), opened
