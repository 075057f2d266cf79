"""Vendor device groups: devices that a VM gets together or not at all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceGroupMember:
    """One component device of a vendor device group, in the group's order."""

    kind: str
    """`nvidiaVgpu`, `pciPassthru`, `sriovNic` or `dvx` (vSphere API, VendorDeviceGroupInfo)."""
    sequence_id: int
    profile: str | None = None
    vendor_id: int | None = None
    device_id: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """A vendor device group a host offers, e.g. `Nvidia:2@grid_a100d-80c%NVLink`."""

    name: str
    members: tuple[DeviceGroupMember, ...]
