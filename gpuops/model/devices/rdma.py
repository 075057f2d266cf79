"""RDMA network cards of hosts, and the distributed switches and port groups that VMs reach them through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuops.model.devices.gpu import PciAddress


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device of a host (vSphere API 7.0, HostRdmaDevice)."""

    name: str
    """`vmrdma0`."""
    driver: str | None = None
    uplink: str | None = None
    """The physical network adapter that it belongs to: `vmnic4`; None = not known."""
    roce_v1: bool = False
    roce_v2: bool = False
    link_up: bool | None = None


@dataclass(frozen=True, slots=True)
class PhysicalNic:
    """A physical network adapter of a host (PhysicalNic and, where it has virtual functions, HostSriovInfo)."""

    name: str
    """`vmnic4`."""
    address: PciAddress | None = None
    speed_mbps: int | None = None
    """None = no link, or not known."""
    functions: int | None = None
    """Virtual functions of SR-IOV that are in force; None = it has no SR-IOV, or it is not known."""
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class VmkernelAdapter:
    """A VMkernel adapter of a host (HostVirtualNic)."""

    name: str
    """`vmk2`."""
    switch: str | None = None
    """The uuid of its distributed switch; None = on a standard switch."""
    mtu: int | None = None


@dataclass(frozen=True, slots=True)
class HostRdma:
    """What a host has for RDMA between VMs."""

    devices: tuple[RdmaDevice, ...] = ()
    nics: tuple[PhysicalNic, ...] = ()
    adapters: tuple[VmkernelAdapter, ...] = ()
    tagged: str | None = None
    """The VMkernel adapter that is tagged for paravirtual RDMA (advanced setting `Net.PVRDMAVmknic`); None = none."""
    firewall_open: bool | None = None
    """Whether the rule set `pvrdma` of its firewall is enabled; None = not known, or the host has none."""


@dataclass(frozen=True, slots=True)
class DistributedSwitch:
    """A vSphere distributed switch."""

    ref: str
    name: str
    uuid: str
    version: str | None = None
    mtu: int | None = None
    uplinks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By host ref, the physical network adapters that are its uplinks there: `{'host-12': ('vmnic4',)}`."""


@dataclass(frozen=True, slots=True)
class DistributedPortGroup:
    """A port group of a distributed switch."""

    ref: str
    name: str
    key: str
    """As a port connection names it (DistributedVirtualPortgroup.key)."""
    switch: str
    """The uuid of its switch."""


@dataclass(frozen=True, slots=True)
class Networks:
    """Distributed switches and what the hosts have for RDMA; read when it is asked for, never by the bulk read."""

    switches: tuple[DistributedSwitch, ...] = ()
    port_groups: tuple[DistributedPortGroup, ...] = ()
    hosts: Mapping[str, HostRdma] = field(default_factory=dict)
    """By host ref; a host that could not be read is not among them."""
