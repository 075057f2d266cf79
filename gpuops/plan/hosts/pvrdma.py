"""Checks the prerequisites of hosts for paravirtual RDMA (PVRDMA).

A host is checked if it is a member of a distributed switch on which any host has a VMkernel adapter tagged for PVRDMA.
An RDMA adapter alone is not enough: it may serve storage. Sources: VMware vSphere Networking, "PVRDMA Support" and
"Configure an ESXi Host for PVRDMA".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.other_device import DistributedSwitch, HostRdma, Networks
from gpuops.model.vcenter.host import Host

LARGEST_ROCE_MTU: Final = 4096
"""The largest payload in bytes (InfiniBand architecture, path MTU)."""


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """The result of one check. `passed` is None if it is unknown; `next_move` is empty if it passes."""

    subject: str
    check: str
    passed: bool | None
    says: str
    next_move: str = ""

    @property
    def state(self) -> str:
        return {True: "pass", False: "fail", None: "unknown"}[self.passed]


def pvrdma_obstacles(hosts: Sequence[Host], networks: Networks) -> Iterator[Prerequisite]:
    """Yield the checks that these hosts do not pass. Hosts whose network cannot be read are skipped."""
    for switch in networks.switches:
        if not any(_tagged_on(host_rdma, switch) for host_rdma in networks.hosts.values()):
            continue
        for host in hosts:
            rdma, uplinks = networks.hosts.get(host.ref), switch.uplinks.get(host.ref, ())
            if rdma is not None and uplinks:
                yield from (row for row in pvrdma_rows(host, rdma, uplinks, switch) if not row.passed)


def _tagged_on(rdma: HostRdma, switch: DistributedSwitch) -> bool:
    return any(adapter.name == rdma.tagged and adapter.switch == switch.uuid for adapter in rdma.adapters)


def pvrdma_rows(
    host: Host, rdma: HostRdma, uplinks: tuple[str, ...], switch: DistributedSwitch
) -> Iterator[Prerequisite]:
    """Yield the checks of the host for paravirtual RDMA on a switch. `uplinks`: adapters of the host on this switch."""
    yield _roce_uplink(host, rdma, uplinks, switch)
    yield _tagged_adapter(host, rdma, switch)
    yield _firewall(host, rdma)
    yield _mtu(host, rdma, switch)


def _roce_uplink(host: Host, rdma: HostRdma, uplinks: tuple[str, ...], switch: DistributedSwitch) -> Prerequisite:
    """Check that the switch has one uplink, and that its RDMA device supports RoCE."""
    names = f"{', '.join(uplinks)} of switch {switch.name}"
    fix = "use a port group of a switch whose uplink is RoCE-capable"
    if len(uplinks) > 1:
        says = f"{names}: the RDMA adapter must be the only uplink, because PVRDMA does not support teaming"
        return Prerequisite(host.name, "uplink", False, says, "remove the other uplinks from the switch")
    devices = [device for device in rdma.devices if device.uplink == uplinks[0]]
    if not devices:
        return Prerequisite(host.name, "uplink", False, f"{names} has no RDMA device", fix)
    device = devices[0]
    if not (device.roce_v1 or device.roce_v2):
        return Prerequisite(host.name, "uplink", False, f"{device.name} of {names} does not support RoCE", fix)
    if device.link_up is False:
        return Prerequisite(host.name, "uplink", False, f"{device.name} of {names} has no link", "check its cable")
    says = f"{device.name} of {uplinks[0]}, RoCE v{2 if device.roce_v2 else 1}"
    return Prerequisite(host.name, "uplink", True, says)


def _tagged_adapter(host: Host, rdma: HostRdma, switch: DistributedSwitch) -> Prerequisite:
    """Check that a VMkernel adapter on this switch is tagged for PVRDMA."""
    fix = "tag a VMkernel adapter on that switch: advanced setting Net.PVRDMAVmknic"
    if rdma.tagged is None:
        return Prerequisite(host.name, "VMkernel adapter", False, "none is tagged for paravirtual RDMA", fix)
    adapter = next((adapter for adapter in rdma.adapters if adapter.name == rdma.tagged), None)
    if adapter is None:
        says = f"Net.PVRDMAVmknic names {rdma.tagged}, which does not exist"
        return Prerequisite(host.name, "VMkernel adapter", False, says, fix)
    if adapter.switch != switch.uuid:
        says = f"{adapter.name}, which is tagged, is not on switch {switch.name}"
        return Prerequisite(host.name, "VMkernel adapter", False, says, fix)
    return Prerequisite(host.name, "VMkernel adapter", True, f"{adapter.name} is tagged, on {switch.name}")


def _firewall(host: Host, rdma: HostRdma) -> Prerequisite:
    says = {
        True: "rule set pvrdma is open",
        False: "rule set pvrdma is closed",
        None: "the state of rule set pvrdma is unknown",
    }
    next_move = "" if rdma.firewall_open else "enable the rule set pvrdma of its firewall"
    return Prerequisite(host.name, "firewall", rdma.firewall_open, says[rdma.firewall_open], next_move)


def _mtu(host: Host, rdma: HostRdma, switch: DistributedSwitch) -> Prerequisite:
    """Check that frames of the VMkernel adapter pass the switch. RoCE packets have at most 4096 bytes."""
    adapter = next((adapter for adapter in rdma.adapters if adapter.name == rdma.tagged), None)
    if adapter is None or adapter.mtu is None or switch.mtu is None:
        fix = "check the MTU of the switch and of the VMkernel adapter"
        return Prerequisite(host.name, "MTU", None, "it cannot be read", fix)
    says = f"{adapter.name} {adapter.mtu}, switch {switch.name} {switch.mtu}"
    if adapter.mtu > switch.mtu:
        fix = "set the MTU of the switch to at least that of the adapter: it drops larger frames"
        return Prerequisite(host.name, "MTU", False, says, fix)
    if adapter.mtu < LARGEST_ROCE_MTU:
        says = f"{says}; 9000 would carry RoCE's largest packets"
    return Prerequisite(host.name, "MTU", True, says)
