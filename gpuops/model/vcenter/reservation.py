"""The capacity of vGPU profiles and complete devices in vCenter 9.0, and the part reserved for other VMs."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.stored import stored_as


@stored_as("ProfileCapacity")
@dataclass(frozen=True, slots=True)
class ProfileCapacity:
    """One vGPU profile in one place (vSphere API 9.0, DirectPathProfileManagerCapacityInfo), in vGPUs."""

    profile: str
    place: str
    """Ref of the cluster, or of a host of none."""
    consumed: int
    """By VMs that are powered on."""
    maximum: int
    """With no VM running."""
    remaining: int
    """Not assigned to a VM that is powered on, whether or not it is reserved."""
    unused_reservation: int
    """Reserved and not assigned yet: only VMs for which it was reserved start on it."""


@stored_as("DeviceCapacity")
@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """The devices of one DirectPath profile of Dynamic DirectPath I/O in one place, each given whole."""

    name: str
    """Of the DirectPath profile."""
    allowed: tuple[tuple[int, int], ...]
    """(vendor id, device id) pairs: any of these."""
    label: str | None
    """Their hardware label; None = any."""
    place: str
    """Ref of the cluster, or of a host of none."""
    consumed: int
    maximum: int
    remaining: int
    unused_reservation: int
    """These four as those of `ProfileCapacity`."""

    def is_of(self, device: PhysicalGpu | OtherDevice) -> bool:
        """Return whether the reservation is for devices of this kind, once they are given to DirectPath I/O."""
        label = device.passthrough.label if device.passthrough is not None else None
        return (device.vendor_id, device.device_id) in self.allowed and self.label in (None, label)


@stored_as("UnknownCapacity")
@dataclass(frozen=True, slots=True)
class UnknownCapacity:
    """What vCenter did not tell; an empty profile stands for any."""

    place: str
    reason: str
    profile: str = ""


@stored_as("Reservations")
@dataclass(frozen=True, slots=True)
class Reservations:
    """The capacity of vGPU profiles and devices with a DirectPath profile; only these can be reserved."""

    capacities: tuple[ProfileCapacity, ...] = ()
    devices: tuple[DeviceCapacity, ...] = ()
    unknown: tuple[UnknownCapacity, ...] = ()

    def in_place(self, ref: str) -> tuple[ProfileCapacity, ...]:
        """Return the profiles of a cluster, or of a host outside clusters."""
        return tuple(capacity for capacity in self.capacities if capacity.place == ref)

    def devices_in(self, ref: str) -> tuple[DeviceCapacity, ...]:
        """Return the devices of a cluster, or of a host outside clusters."""
        return tuple(capacity for capacity in self.devices if capacity.place == ref)

    def why_unknown(self, ref: str) -> str:
        """Return why the reservations there are not known; empty = they are known."""
        return next((capacity.reason for capacity in self.unknown if capacity.place in (ref, "")), "")
