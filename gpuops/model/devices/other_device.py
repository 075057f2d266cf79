"""PCI devices of a host that a VM may be given whole and that are no NVIDIA GPU: GPUs of other vendors, FPGAs, NICs.

They never run vGPUs, and no count of GPUs has them: NVIDIA's vGPU manager, modes, MIG and schedulers mean nothing to
them. What they have in common with GPUs is DirectPath I/O, dynamic or not, and a NUMA node. VMs reach RDMA network
cards through the port groups of distributed switches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuops.model.devices.gpu import Passthrough, PciAddress
from gpuops.model.stored import stored_as


class DeviceKind(StrEnum):
    """What a device is, as its PCI class and its names tell."""

    GPU = "GPU"
    """Of another vendor than NVIDIA."""
    FPGA = "FPGA"
    ACCELERATOR = "accelerator"
    NIC = "NIC"
    STORAGE = "storage controller"
    OTHER = "PCI device"

    @property
    def made_for_vms(self) -> bool:
        """Return whether a host itself never uses such a device; other kinds may carry the host's network, disks or
        boot."""
        return self in (DeviceKind.GPU, DeviceKind.FPGA, DeviceKind.ACCELERATOR)


@stored_as("OtherDevice")
@dataclass(frozen=True, slots=True)
class OtherDevice:
    """One such device of a host. A bulk read yields GPUs, FPGAs and accelerators that can be passed through, and all
    devices that are passed through; only `Hosts.with_other_devices` yields NICs and storage controllers of the host."""

    address: PciAddress
    name: str
    kind: DeviceKind
    vendor_id: int
    device_id: int
    subsystem_id: int | None = None
    memory_mib: int | None = None
    """As the host's graphics stack tells it, which most devices are not part of; None = it does not."""
    numa_node: int | None = None
    passthrough: Passthrough | None = None
    carries: tuple[str, ...] | None = None
    """The host's own use of it: `vmnic0 is an uplink of vSwitch0`; None = not read, or not completely known."""

    @property
    def passed_through(self) -> bool:
        """Return whether VMs get the device, now or after a reboot of the host."""
        return self.passthrough is not None and (self.passthrough.active or self.passthrough.enabled)


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
