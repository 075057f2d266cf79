"""Hosts, their NUMA nodes, clusters and datastores as one snapshot shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, PciAddress, PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.host_settings import DeviceGroup, HostSettings
from gpuops.model.vcenter.vm import VmDrs

_GRAPHICS: Final = ("config.graphicsInfo", "config.sharedPassthruGpuTypes", "config.sharedGpuCapabilities")


class NumaPolicy(StrEnum):
    """How much a request insists that CPU, memory and GPU share a NUMA node."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NONE = "none"


@stored_as("NumaNode")
@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node of a host (vSphere API, HostNumaNode): logical CPUs, memory, and the PCI devices beside it."""

    id: int
    logical_cpus: int
    memory_mib: int
    devices: tuple[PciAddress, ...] = ()


@stored_as("OfferedProfile")
@dataclass(frozen=True, slots=True)
class OfferedProfile:
    """A vGPU profile a host says it can run (HostSharedGpuCapabilities); None = the host does not tell."""

    name: str
    suspend: bool | None = None
    migrate: bool | None = None
    disk_snapshot: bool | None = None
    memory_snapshot: bool | None = None


@stored_as("PassthroughTarget")
@dataclass(frozen=True, slots=True)
class PassthroughTarget:
    """A device of EnvironmentBrowser.QueryConfigTarget(host).pciPassthrough: what a static backing must carry."""

    address: PciAddress
    name: str
    system_id: str
    vendor_id: int
    device_id: int


@stored_as("DynamicTarget")
@dataclass(frozen=True, slots=True)
class DynamicTarget:
    """A device type offered for Dynamic DirectPath I/O (VirtualMachineDynamicPassthroughInfo)."""

    vendor_id: int
    device_id: int
    device_name: str = ""
    label: str | None = None


@stored_as("StunEstimate")
@dataclass(frozen=True, slots=True)
class StunEstimate:
    """vCenter's own estimate of how long a vMotion stops a VM with one vGPU of this profile, at one bandwidth
    (vSphere API 8.0.2.0, VirtualMachineVMotionStunTimeInfo)."""

    profile: str
    bandwidth_mbps: int
    stun_s: int


@stored_as("ConfigTarget")
@dataclass(frozen=True, slots=True)
class ConfigTarget:
    """What EnvironmentBrowser.QueryConfigTarget(host) offers beyond the bulk read."""

    passthrough: tuple[PassthroughTarget, ...] = ()
    dynamic: tuple[DynamicTarget, ...] = ()
    device_groups: tuple[DeviceGroup, ...] = ()
    stuns: tuple[StunEstimate, ...] = ()
    """Of C and Q profiles, from vCenter 8.0.2 on; a profile that is not among them has no estimate."""


@stored_as("DeviceBinding")
@dataclass(frozen=True, slots=True)
class DeviceBinding:
    """Which VM holds a DirectPath device now (HostAssignableHardwareBinding, or a running VM's static backing)."""

    address: PciAddress
    vm: str


@stored_as("Host")
@dataclass(frozen=True, slots=True)
class Host:
    """One ESXi host."""

    ref: str
    name: str
    cluster: str | None = None
    """Managed object id of its cluster; None for a standalone host."""
    connected: bool | None = None
    in_maintenance: bool | None = None
    booted: datetime | None = None
    """When it last booted, by its own clock."""
    uuid: str | None = None
    """Of its hardware: the same when it is removed from vCenter and added again under another id; None = not known."""
    version: str | None = None
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    cpu_cores: int | None = None
    cpu_threads: int | None = None
    cpu_mhz: int | None = None
    numa_nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[PhysicalGpu, ...] = ()
    """NVIDIA's, and those that the graphics stack lists and that have no PCI ids in sight."""
    others: tuple[OtherDevice, ...] = ()
    """Further devices that a VM may be given whole."""
    profiles: tuple[OfferedProfile, ...] | None = None
    default_graphics_type: GraphicsType | None = None
    assignment_policy: AssignmentPolicy | None = None
    bindings: tuple[DeviceBinding, ...] = ()
    datastores: tuple[str, ...] | None = None
    """Managed object ids of the datastores it sees; None = not known."""
    config_target: ConfigTarget | None = None
    """None = not asked for (the bulk read never does); see Vcenter.with_config_targets."""
    unreadable: tuple[str, ...] = field(default=())
    """Property paths this login could not read."""
    tags: tuple[str, ...] | None = None
    """`category:tag` names; None = not asked for."""
    settings: HostSettings | None = None
    """None = not asked for (the bulk read never does); see Hosts.with_settings."""

    def gpu(self, address: PciAddress) -> PhysicalGpu | None:
        return next((gpu for gpu in self.gpus if gpu.address == address), None)

    @property
    def devices(self) -> tuple[PhysicalGpu | OtherDevice, ...]:
        """Return all devices that a VM may get as a whole."""
        return (*self.gpus, *self.others) if self.others else self.gpus

    def device(self, address: PciAddress) -> PhysicalGpu | OtherDevice | None:
        return next((device for device in self.devices if device.address == address), None)

    @property
    def gives_others(self) -> bool:
        """Return whether a device that is not an NVIDIA GPU is given to VMs."""
        return any(device.passed_through for device in self.others)

    @property
    def readable(self) -> bool:
        """Return whether its facts can be relied on: vCenter reaches the host, and this login may read its graphics."""
        return self.connected is True and not any(path.startswith(_GRAPHICS) for path in self.unreadable)

    def offers(self, profile: str) -> OfferedProfile | None:
        return next((offered for offered in self.profiles or () if offered.name == profile), None)


def has_booted(now: datetime | None, before: datetime | None) -> bool:
    """Return whether the boot time of a host changed, by more than a second; False if one of them is unknown."""
    return now is not None and before is not None and abs((now - before).total_seconds()) > 1


@stored_as("AdmissionControl")
@dataclass(frozen=True, slots=True)
class AdmissionControl:
    """What HA of a cluster keeps free for a failure (ClusterDasConfigInfo.admissionControlPolicy); one of three ways.

    It counts memory and CPU, never GPUs.
    """

    failover_hosts: tuple[str, ...] = ()
    """Refs of hosts that are kept empty."""
    memory_percent: int | None = None
    """Of the cluster's memory."""
    cpu_percent: int | None = None
    """Of the cluster's CPU."""
    failover_level: int | None = None
    """How many hosts, the largest, must be spared."""


class RuleKind(StrEnum):
    """What a DRS rule says of its VMs (vSphere API, ClusterRuleInfo and the types derived from it)."""

    TOGETHER = "together"
    """All on one host."""
    APART = "apart"
    """No two on one host."""
    HOSTS = "hosts"
    """On some hosts, or not on some."""


@stored_as("DrsRule")
@dataclass(frozen=True, slots=True)
class DrsRule:
    """One enabled rule of a cluster, its groups resolved. VMs and hosts are managed object ids."""

    name: str
    kind: RuleKind
    vms: tuple[str, ...]
    on: tuple[str, ...] | None = None
    """The hosts they are to be on; None = the rule names none."""
    off: tuple[str, ...] = ()
    """The hosts they are not to be on."""
    mandatory: bool | None = None

    def allows(self, host: str) -> bool:
        """Return whether the rule, mandatory or not, allows its VMs on the host; rules between VMs are not checked."""
        return (self.on is None or host in self.on) and host not in self.off


@stored_as("Cluster")
@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster and the DRS facts a plan needs."""

    ref: str
    name: str
    drs_enabled: bool | None = None
    drs_behavior: str | None = None
    drs_overrides: tuple[tuple[str, str], ...] = ()
    """(VM ref, behavior) of each per-VM DRS override."""
    admission: AdmissionControl | None = None
    """None = HA refuses no power-on here, or it cannot be read."""
    rules: tuple[DrsRule, ...] | None = None
    """Its enabled DRS rules; None = not read."""
    drs_excluded: tuple[str, ...] = ()
    """Refs of VMs whose DRS override says that DRS leaves them alone (ClusterDrsVmConfigInfo.enabled)."""
    drs_options: tuple[tuple[str, str], ...] | None = None
    """(name, value) of each advanced option of DRS (ClusterDrsConfigInfo.option); None = not read."""

    def drs_of(self, vm: str) -> VmDrs | None:
        """Return what DRS does with a VM of this cluster; None = it cannot be read."""
        if self.drs_enabled is None:
            return None
        if vm in self.drs_excluded:
            return VmDrs.OFF
        behaviour = dict(self.drs_overrides).get(vm) or VmDrs.CLUSTER
        return next((drs for drs in VmDrs if drs == behaviour), None)

    def has_override(self, vm: str) -> bool:
        """Return whether the VM has its own override, whatever its content."""
        return vm in dict(self.drs_overrides)


@stored_as("Datastore")
@dataclass(frozen=True, slots=True)
class Datastore:
    """One datastore: free space for suspend files."""

    ref: str
    name: str
    free_mib: int | None = None
    accessible: bool | None = None
