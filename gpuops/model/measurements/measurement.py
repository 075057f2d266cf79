"""What vCenter's performance counters say of VMs and hosts, and what these use at a moment by the newest samples.

Units are those of the counters (vSphere API reference, PerfCounterInfo): percentages are in hundredths, memory is in
kB, throughput in kB/s, latency in ms, CPU ready in ms within a sample of 20 s. None = not known, never zero.

What is measured of a vCenter, how long that is kept and where, and how its hosts are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.file_keys import Reads
from gpuops.model.stored import stored_as

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CPU_MHZ: Final = "cpu.usagemhz.average"
"""The CPU that a VM uses, in MHz."""
# assumption: gpu-counter-names
GPU_USE: Final = "gpu.utilization.average"
GPU_MEMORY: Final = "gpu.mem.used.average"
MEMORY_BALLOONED: Final = "mem.vmmemctl.average"
MEMORY_SWAPPED: Final = "mem.swapped.average"
GPU_TEMPERATURE: Final = "gpu.temperature.average"
GPU_POWER: Final = "gpu.power.used.latest"
OF_GPUS: Final = "gpu."
"""How the names of all counters of GPUs begin."""

VM_COUNTERS: Final = (
    CPU_MHZ,
    "cpu.ready.summation",
    "mem.active.average",
    "mem.consumed.average",
    "disk.usage.average",
    "disk.maxTotalLatency.latest",
    "net.usage.average",
    "net.droppedRx.summation",
    "net.droppedTx.summation",
    GPU_USE,
    GPU_MEMORY,
    "gpu.encode.utilization.latest",
    "gpu.decode.utilization.latest",
    MEMORY_BALLOONED,
    MEMORY_SWAPPED,
)
"""What is measured of a VM. vCenter has no latency of a VM's network: packets that were dropped stand for it."""
HOST_COUNTERS: Final = (
    CPU_MHZ,
    "mem.consumed.average",
    "disk.usage.average",
    "disk.maxTotalLatency.latest",
    "net.usage.average",
    GPU_USE,
    GPU_MEMORY,
    "gpu.encode.utilization.latest",
    "gpu.decode.utilization.latest",
    GPU_TEMPERATURE,
    GPU_POWER,
)
"""What is measured of a host, and of each of its GPUs."""
VGPU_USE: Final = "smi.vgpu.utilization.latest"
"""How much the vGPU of a VM is used that is used most, as its host's own nvidia-smi tells it."""
SMI_VM_COUNTERS: Final = (
    VGPU_USE,
    "smi.vgpu.encoder.latest",
    "smi.vgpu.licensed.latest",
)
"""Readings of a VM's vGPUs by its host's nvidia-smi: the highest of several; licensed = 1 if all of them are, or 0."""
SMI_USE: Final = "smi.gpu.utilization.latest"
SMI_CLOCK: Final = "smi.gpu.clock.latest"
SMI_TEMPERATURE: Final = "smi.gpu.temperature.latest"
SMI_ECC: Final = "smi.gpu.eccUncorrected.latest"
SMI_SLOWED_BY_HEAT: Final = "smi.gpu.slowedByHeat.latest"
SMI_SLOWED_BY_POWER: Final = "smi.gpu.slowedByPower.latest"
SMI_GPU_COUNTERS: Final = (
    SMI_USE,
    SMI_CLOCK,
    SMI_TEMPERATURE,
    SMI_ECC,
    "smi.gpu.pcieGeneration.latest",
    "smi.gpu.pcieWidth.latest",
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
)
"""Readings of each GPU by nvidia-smi; slowed = 1, not slowed = 0."""
SMI_POWER_LIMIT: Final = "smi.gpu.powerLimit.latest"
"""The limit of power of each GPU in watts, which diagnoses have as a fact and not as a series."""

FREE_MEMORY: Final = "gpuops.gpu.freeMemory"
FRAGMENTED_MEMORY: Final = "gpuops.gpu.fragmentedMemory"
FREE_GPUS: Final = "gpuops.gpu.free"
UNUSABLE_GPUS: Final = "gpuops.gpu.unusable"
FRAGMENTATION_COUNTERS: Final = (FREE_MEMORY, FRAGMENTED_MEMORY, FREE_GPUS, UNUSABLE_GPUS)
"""What gpuops computes of a host at each observation: memory in MiB, and numbers of GPUs."""


@stored_as("CounterWindow")
@dataclass(frozen=True, slots=True)
class CounterWindow:
    """What one counter of a VM said in each sample of a while. Missing samples are missing, never zero."""

    highest: int
    """Of all samples that are there, in the counter's own unit; percentages are in hundredths (135 = 1.35 %)."""
    since: datetime
    until: datetime
    """From when until when each sample is there, without a gap."""
    asked: datetime
    """By vCenter's clock, when it was asked."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one VM or host in vCenter: the values of each series at the same moments."""

    entity: str
    """Its managed object id."""
    ends: NDArray[np.int64]
    """When each sample ends, in seconds since 1970, oldest first."""
    values: Mapping[str, NDArray[np.int64]]
    """By the name of the series: the counter, and after an @ the GPU that it is of. Negative = missing."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a counter said in one step of time."""

    average: int
    highest: int | None
    """Of its samples; None = unknown, of a step that is known by vCenter's own average alone."""
    covered: float
    """Of how much of the step there are samples; 1 = of all of it."""


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """What a counter said in a while, step by step; None = missing, never zero."""

    begin: datetime
    step: timedelta
    steps: tuple[Measured | None, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A while without a gap."""

    begin: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class NewestUse:
    """What GPUs are used for, by the newest steps of a store."""

    until: datetime
    """Until when it was observed."""
    averages: Mapping[str, Mapping[str, int]]
    """By managed object id of the VM or host, and by series; what was not measured, or is old, is left out."""


@dataclass(frozen=True, slots=True)
class StoredTier:
    """What a store holds at one length of steps."""

    step: timedelta
    entities: int
    blocks: int
    stored_bytes: int
    since: datetime | None
    """The begin of its oldest block; None = no blocks."""


@dataclass(frozen=True, slots=True)
class StoredVcenter:
    """What a store holds of one vCenter."""

    vcenter: str
    """Its instance uuid."""
    observed: tuple[Span, ...]
    """When it was observed, oldest first; between two of them it was not."""
    tiers: tuple[StoredTier, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store of measurements holds."""

    store: str
    """The file, or the database without its password."""
    vcenters: tuple[StoredVcenter, ...] = ()


@dataclass(frozen=True, slots=True)
class Cycle:
    """One look at the counters of a vCenter, written into the store."""

    vcenter: str
    begin: datetime | None
    """From when on it is measured; None = another look had been so close that there was nothing to do."""
    until: datetime | None
    filled: Span | None
    """What was filled from vCenter's five-minute averages, since its hosts keep one hour alone."""
    vms: int
    vms_measured: int
    """Of how many there was a sample."""
    vms_gpu_unknown: int
    """VMs with vGPUs of whose GPU use nothing is known: MIG-backed, or no counter that can be believed."""
    hosts: int
    hosts_measured: int
    calls: int
    hosts_entered: int | None = None
    """Of how many the own nvidia-smi told something; None = none was asked."""


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """What one GPU, or the vGPUs of one VM together, use."""

    utilization_percent: float | None = None
    memory_used_mib: int | None = None
    temperature_c: int | None = None
    """Known of GPUs only."""
    power_w: int | None = None
    """Known of GPUs only, as the following ones. From here on they come from the nvidia-smi of the host."""
    power_limit_w: int | None = None
    clock_mhz: int | None = None
    """Of its streaming multiprocessors."""
    ecc_uncorrected: int | None = None
    """Memory errors since the host's last boot that were not corrected."""
    slowed_by_heat: bool | None = None
    slowed_by_power: bool | None = None


UNKNOWN_USE = MeasuredUse()


@dataclass(frozen=True, slots=True)
class CurrentUse:
    """What was asked for, of GPUs by the host (ref) and the address, of VMs by ref; what is not there is unknown."""

    asked: datetime
    """By vCenter's clock."""
    gpus: Mapping[tuple[str, PciAddress], MeasuredUse] = field(default_factory=dict)
    vms: Mapping[str, MeasuredUse] = field(default_factory=dict)

    def gpu(self, host: str, address: PciAddress) -> MeasuredUse:
        return self.gpus.get((host, address), UNKNOWN_USE)

    def vm(self, ref: str) -> MeasuredUse:
        return self.vms.get(ref, UNKNOWN_USE)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long measurements are kept."""

    fine_days: int = 14
    """Steps of five minutes."""
    hourly_days: int = 400


@dataclass(frozen=True, slots=True)
class HostLogin:
    """How hosts are entered for their own nvidia-smi."""

    username: str = "root"
    known_hosts: str | None = None
    """The file of the hosts' SSH keys; None = ~/.ssh/known_hosts."""
    key: str | None = None
    """The file of the key; None = the agent's and those of ~/.ssh."""
    port: int = 22


def _known_counters(names: tuple[str, ...]) -> frozenset[str]:
    kept_names = tuple(dict.fromkeys((*VM_COUNTERS, *HOST_COUNTERS)))
    unknown = next((name for name in names if name not in kept_names), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is not one of the counters that are kept: {', '.join(kept_names)}")
    return frozenset(names)


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """What is measured, how long it is kept and where, and whether hosts are asked themselves."""

    store_dir: str | None = None
    """The directory of `measurements.sqlite`; by default the state directory."""
    store_url: str | None = field(default=None, repr=False)
    """The PostgreSQL database that keeps them instead; by default that of the journal."""
    counters: (
        Annotated[frozenset[str], Reads(_known_counters, Annotated[tuple[str, ...], Meta(min_length=1)])] | None
    ) = None
    """Which performance counters are kept; by default all that are known here."""
    fine_days: Annotated[int, Meta(ge=1, le=366)] = Retention().fine_days
    hourly_days: Annotated[int, Meta(ge=1, le=3660)] = Retention().hourly_days
    host_shell: Literal["none", "ssh"] = "none"
    """Whether the hosts' own nvidia-smi is asked, and how."""
    ssh_user: Annotated[str, Meta(min_length=1)] = "root"
    ssh_known_hosts: str | None = None
    ssh_key: str | None = None
    ssh_port: Annotated[int, Meta(ge=1, le=65535)] = 22

    def __post_init__(self) -> None:
        if self.store_dir is not None and self.store_url is not None:
            raise ValueError("store_dir and store_url exclude each other: the store is one of them")

    @property
    def retention(self) -> Retention:
        return Retention(self.fine_days, self.hourly_days)

    @property
    def hosts(self) -> HostLogin | None:
        """Return how hosts are entered; None = they are not."""
        if self.host_shell == "none":
            return None
        return HostLogin(self.ssh_user, self.ssh_known_hosts, self.ssh_key, self.ssh_port)


UNSAID: Final = MeasurementSettings()
"""What holds where the configuration says nothing."""
