"""The closed vocabulary of changes of hosts; `steps.py` has those of VMs, and says how one is added."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpuops.model.devices.device_mode import DeviceMode
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.host_settings import GraphicsSettings, VsanMode


@stored_as("GpuDifference", gpu="gpu", before="before", after="after")
@dataclass(frozen=True, slots=True)
class GpuDifference:
    """What a change of a host means for one of its GPUs, in words."""

    gpu: PciAddress
    before: str
    after: str


@stored_as("ConfigureModule", host="host", before="before", after="after", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureModule:
    """Replace the option string of a host's `nvidia` kernel module. In force after the host's next boot."""

    host: str
    before: str
    """The string it was planned on: another one there, and the change is not made."""
    after: str
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ConfigureGraphics", host="host", before="before", after="after", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureGraphics:
    """Replace the graphics configuration of a host; what it was planned on must still be there."""

    host: str
    before: GraphicsSettings
    after: GraphicsSettings
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("PassthroughChange", address="address", enabled="enabled", label="label")
@dataclass(frozen=True, slots=True)
class PassthroughChange:
    """DirectPath I/O of one device switched on or off, and its hardware label; None leaves the label as it is."""

    address: PciAddress
    enabled: bool
    label: str | None = None


@stored_as("ConfigurePassthrough", host="host", devices="devices", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigurePassthrough:
    """Change DirectPath I/O of devices of a host, in one call."""

    host: str
    devices: tuple[PassthroughChange, ...]
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ModeChange", address="address", before="before", after="after")
@dataclass(frozen=True, slots=True)
class ModeChange:
    """Another mode of one device; `before` is the word that vCenter had for what was configured."""

    address: PciAddress
    before: str
    after: DeviceMode


@stored_as("ConfigureModes", host="host", devices="devices", labels="labels", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureModes:
    """Change the modes of devices of a host by the call of vSphere 9.1, which tells what that takes; and their labels.

    Each device is a call of its own, and so are the labels.
    """

    host: str
    devices: tuple[ModeChange, ...]
    labels: tuple[PassthroughChange, ...] = ()
    gpus: tuple[GpuDifference, ...] = ()


@stored_as("ConfigureMig", host="host", devices="devices", on="on", gpus="gpus")
@dataclass(frozen=True, slots=True)
class ConfigureMig:
    """Switch MIG mode of GPUs of a host on or off, by the host's own nvidia-smi: vCenter has no call for it."""

    host: str
    devices: tuple[PciAddress, ...]
    on: bool
    gpus: tuple[GpuDifference, ...] = ()


HostStep = ConfigureModule | ConfigureGraphics | ConfigurePassthrough | ConfigureModes | ConfigureMig
"""A change of a host's settings, on a host alone: whoever asks for it waits until it is made."""


@stored_as("EnterMaintenance", host="host", vsan_mode="vsan_mode", limit_s="limit_s")
@dataclass(frozen=True, slots=True)
class EnterMaintenance:
    """Have a host enter maintenance mode; it waits for the VMs that DRS still moves away, `limit_s` at the most."""

    host: str
    vsan_mode: VsanMode = VsanMode.ENSURE
    limit_s: int = 1800


@stored_as("LeaveMaintenance", host="host")
@dataclass(frozen=True, slots=True)
class LeaveMaintenance:
    """Have a host serve VMs again."""

    host: str


@stored_as("RebootHost", host="host", booted="booted")
@dataclass(frozen=True, slots=True)
class RebootHost:
    """Reboot a host in maintenance mode; done when it is back, with another boot time than `booted`."""

    host: str
    booted: datetime | None


HostTask = EnterMaintenance | LeaveMaintenance | RebootHost
"""A step of a host that vCenter makes a task of."""


@stored_as("EndTurn", host="host")
@dataclass(frozen=True, slots=True)
class EndTurn:
    """A line in the journal and nothing in vCenter: all that a rolling change had to do with this host is done."""

    host: str
