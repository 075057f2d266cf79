"""PCI devices of a host that a VM may be given whole and that are no NVIDIA GPU: GPUs of other vendors, FPGAs, NICs.

They never run vGPUs, and no count of GPUs has them: NVIDIA's vGPU manager, modes, MIG and schedulers mean nothing to
them. What they have in common with GPUs is DirectPath I/O, dynamic or not, and a NUMA node.
"""

from __future__ import annotations

from dataclasses import dataclass
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
