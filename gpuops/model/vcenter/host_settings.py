"""Settings of a host that no bulk read shows, its vendor device groups, and how hosts are rebooted in turn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuops.model.devices.device_mode import HostDevice
from gpuops.model.devices.gpu import HEALTHY, GpuHealth, PciAddress
from gpuops.model.stored import stored_as
from gpuops.model.window import Window

UNASKED: Final = "nvidia-smi: "
"""What begins the reason in `unread` why a host's own nvidia-smi did not answer."""


@stored_as("DeviceGroupMember")
@dataclass(frozen=True, slots=True)
class DeviceGroupMember:
    """One component device of a vendor device group, in the group's order."""

    kind: str
    """`nvidiaVgpu`, `pciPassthru`, `sriovNic` or `dvx` (vSphere API, VendorDeviceGroupInfo)."""
    sequence_id: int
    profile: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None


@stored_as("DeviceGroup")
@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """A vendor device group a host offers, e.g. `Nvidia:2@grid_a100d-80c%NVLink`."""

    name: str
    members: tuple[DeviceGroupMember, ...]


class SharedType(StrEnum):
    """How a GPU serves VMs (vSphere API, HostGraphicsConfigGraphicsType)."""

    SHARED = "shared"
    """By vSphere's own shared graphics."""
    SHARED_DIRECT = "sharedDirect"
    """By vGPUs."""


class SizeMode(StrEnum):
    """Which vGPUs may share a GPU (vSphere API 8.0.3, HostGraphicsConfigVgpuMode)."""

    SAME_SIZE = "sameSize"
    MIXED_SIZE = "mixedSize"


@stored_as("SoftwarePackage")
@dataclass(frozen=True, slots=True)
class SoftwarePackage:
    """An installed software package (VIB), as HostImageConfigManager.fetchSoftwarePackages names it."""

    name: str
    version: str
    vendor: str


@stored_as("GraphicsDevice")
@dataclass(frozen=True, slots=True)
class GraphicsDevice:
    """What is configured for one GPU of the host's graphics stack, in the API's own words."""

    address: PciAddress
    graphics_type: str
    vgpu_mode: str | None = None
    """`sameSize` or `mixedSize`; None in MIG mode, and before API 8.0.3."""


@stored_as("GraphicsSettings")
@dataclass(frozen=True, slots=True)
class GraphicsSettings:
    """HostGraphicsConfig, which is always written whole."""

    default_type: str
    assignment_policy: str
    devices: tuple[GraphicsDevice, ...] = ()


@stored_as("PassthroughState")
@dataclass(frozen=True, slots=True)
class PassthroughState:
    """HostPciPassthruInfo of one device: `enabled` is configured, `active` is in force."""

    address: PciAddress
    capable: bool
    enabled: bool
    active: bool
    label: str | None = None
    depends_on: str | None = None
    """The device it can only be passed through together with (dependentDevice); its own id if there is no other one."""
    mode: str | None = None
    """The mode that is configured (`DeviceMode`); None = not told, as by every vCenter before 9.1."""
    configurable: tuple[str, ...] = ()
    """The modes that it can be configured to."""


@stored_as("SmiState")
@dataclass(frozen=True, slots=True)
class SmiState:
    """MIG mode, ECC and health of one GPU, by the host's own nvidia-smi; None = unknown, or it has none."""

    address: PciAddress
    current: bool | None
    pending: bool | None
    """MIG mode from the next reset or boot on."""
    ecc: bool | None = None
    ecc_pending: bool | None = None
    unread: str = ""
    """What nvidia-smi printed in place of MIG mode, for example `GPU requires reset`; empty = its MIG mode was read,
    or it has none (`[N/A]`, `[Not Supported]`)."""
    health: GpuHealth = HEALTHY


@dataclass(frozen=True, slots=True)
class SmiVgpu:
    """One running vGPU as the host's own nvidia-smi tells it."""

    gpu: PciAddress
    vm_name: str
    profile: str
    start: int | None = None
    """As `VgpuPlacement.start`."""
    utilization_percent: int | None = None
    """None = it does not tell, as of every MIG-backed vGPU."""
    encoder_percent: int | None = None
    licensed: bool | None = None
    """Whether its guest has a licence; None = it does not tell."""
    instance_slices: int | None = None
    """Size of its GPU instance, in the memory slices in which `start` is counted; None = it is in none."""


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """How one GPU is, as the host's own nvidia-smi tells it; None = it has none, or does not tell."""

    address: PciAddress
    utilization_percent: int | None = None
    clock_mhz: int | None = None
    """Of its streaming multiprocessors."""
    temperature_c: int | None = None
    ecc_uncorrected: int | None = None
    """Errors of its memory since the last boot that were not corrected."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    """Of its link as it is now: a GPU at rest may have a lower generation."""
    power_limit_w: int | None = None
    """The limit in force, whatever set it."""
    slowed_by_heat: bool | None = None
    """Whether it is clocked down because it is too hot,"""
    slowed_by_power: bool | None = None
    """or for want of power."""


@dataclass(frozen=True, slots=True)
class SmiReadings:
    """What the nvidia-smi of one host tells in one look."""

    gpus: tuple[SmiGpu, ...]
    vgpus: tuple[SmiVgpu, ...]


@stored_as("Custody")
@dataclass(frozen=True, slots=True)
class Custody:
    """Other tools that manage a host's configuration, and may set it back. None = it cannot be read."""

    profiles: tuple[str, ...] | None = None
    """Names of the host profiles attached to it or to its cluster."""
    configured: bool | None = None
    """Whether its cluster keeps the configuration of its hosts (ComputeResource.configManagerEnabled)."""


@stored_as("HostSettings")
@dataclass(frozen=True, slots=True)
class HostSettings:
    """What one host says of itself when asked. None = it does not tell, or this login may not ask."""

    module_options: str | None = None
    """Options of the `nvidia` kernel module for the next boot."""
    loaded_options: str | None = None
    """Those that the loaded module was given at the last boot."""
    has_module: bool | None = None
    """Whether the `nvidia` kernel module is installed."""
    packages: tuple[SoftwarePackage, ...] | None = None
    graphics: GraphicsSettings | None = None
    passthrough: tuple[PassthroughState, ...] | None = None
    rebinds_without_reboot: bool | None = None
    """Whether a change of passthrough is in force at once (HostCapability.deviceRebindWithoutRebootSupported)."""
    takes_labels: bool | None = None
    """Whether devices may have hardware labels (HostCapability.assignHwPciConfigSupported)."""
    device_groups: tuple[DeviceGroup, ...] | None = None
    """The vendor device groups that it offers now; before API 8.0 no host has any."""
    mig: tuple[SmiState, ...] | None = None
    """None = not asked: vCenter cannot tell, only a shell on the host can."""
    sets_modes: bool | None = None
    """Whether modes of devices are set by the call of vSphere 9.1; None = not known, so that they are not."""
    devices: tuple[HostDevice, ...] | None = None
    """Its DirectPath devices; None = not asked, or the vCenter does not list them."""
    custody: Custody = Custody()
    unread: tuple[str, ...] = ()
    """Why something above is not known, a reason each."""

    @property
    def silent(self) -> bool:
        """Return whether its nvidia-smi was asked and did not answer."""
        return any(reason.startswith(UNASKED) for reason in self.unread)

    @property
    def reboot_pending(self) -> bool | None:
        """Return whether the next boot brings other module options into force; None = unknown."""
        if self.module_options is None or self.loaded_options is None:
            return None
        return self.module_options != self.loaded_options


class Displacement(StrEnum):
    """What may be done to a VM that runs on a host that goes down. It comes back to it afterwards."""

    MOVE = "move"
    """By vMotion alone: a host with a VM that cannot be moved is refused."""
    SHUT_DOWN = "shut-down"
    """One that cannot be moved is shut down by its guest, and started again."""
    POWER_OFF = "power-off"
    """One whose guest does not shut down in time is powered off."""


class VsanMode(StrEnum):
    """What vSAN does with the data of a host that enters maintenance mode (vSphere API, VsanHostDecommissionMode)."""

    ENSURE = "ensureObjectAccessibility"
    EVACUATE = "evacuateAllData"
    NO_ACTION = "noAction"


@dataclass(frozen=True, slots=True)
class Rolling:
    """How the hosts of a change are rebooted."""

    max_hosts: int = 1
    """At most so many hosts are down at once."""
    window: Window | None = None
    """Only while it is open is a host taken out of service; None = at any time. Its name is how it was written."""
    vms: Displacement = Displacement.MOVE
    vsan_mode: VsanMode = VsanMode.ENSURE
