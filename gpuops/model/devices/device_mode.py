"""Modes of DirectPath devices as vSphere 9.1 has them, and the facts about such a device in a vCenter 9.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.stored import stored_as


class DeviceMode(StrEnum):
    """What a device is for (vSphere API 9.1, HostPciPassthruInfoDirectPathDeviceMode)."""

    NONE = "none"
    """Nothing of it is for VMs."""
    HOST = "host"
    """It is the host's own."""
    DIRECT_PATH = "directPath"
    ENHANCED_DIRECT_PATH = "enhancedDirectPath"
    VGPU_SAME_SIZE = "vGpuSameSize"
    VGPU_MIXED_SIZE = "vGpuMixedSize"
    SYSTEM_SELECT = "systemSelect"
    """The system chooses one of the others."""

    @property
    def whole(self) -> bool:
        """Return whether VMs get the device as a whole."""
        return self in (DeviceMode.DIRECT_PATH, DeviceMode.ENHANCED_DIRECT_PATH)


SERVED_AS: Final[Mapping[DeviceMode, VgpuMode]] = {
    DeviceMode.VGPU_SAME_SIZE: VgpuMode.SAME_SIZE,
    DeviceMode.VGPU_MIXED_SIZE: VgpuMode.MIXED_SIZE,
}
"""The modes of a GPU that serves vGPUs, and how the host's graphics name what is in force (HostGraphicsInfo)."""


class ConfigureImpact(StrEnum):
    """What a change of a mode takes before it is in force (vSphere Automation API 9.1, ConfigureImpact)."""

    NONE = "NONE"
    MAINTENANCE_MODE = "HOST_MAINTENANCE_MODE_REQUIRED"
    REBOOT = "HOST_REBOOT_REQUIRED"


Impacts = frozenset[ConfigureImpact]


@stored_as("VmClassReservation")
@dataclass(frozen=True, slots=True)
class VmClassReservation:
    """What of a device's cluster is reserved for a VM class of a Supervisor; None = not told."""

    vm_class: str
    zone: str | None = None
    profile: str | None = None
    """Id of the DirectPath profile."""
    in_use: int | None = None
    total: int | None = None


@stored_as("HostDevice")
@dataclass(frozen=True, slots=True)
class HostDevice:
    """One device in the list of a host's DirectPath devices (vSphere Automation API 9.1); None = not told."""

    id: str
    """As vCenter names it; that of the devices seen so far is their PCI address."""
    address: PciAddress | None
    """None = its id is no PCI address."""
    name: str
    mode: str
    """In force; a `DeviceMode`, or a word that this version of gpuops does not know."""
    configurable: tuple[str, ...] = ()
    interconnect: str | None = None
    driver_name: str | None = None
    driver_version: str | None = None
    used_mib: int | None = None
    total_mib: int | None = None
    reserved_used_mib: int | None = None
    reserved_mib: int | None = None
    vms: tuple[str, ...] | None = None
    """Refs of the VMs that use it."""
    vm_classes: tuple[VmClassReservation, ...] | None = None
    profiles: tuple[str, ...] | None = None
    """Ids of the DirectPath profiles that use it."""
