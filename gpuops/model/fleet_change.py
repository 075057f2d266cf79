"""Changes of a fleet that nobody has made: what `gpuops what-if` is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.gpu_layout import GpuLayout


class GpuServing(StrEnum):
    """How a GPU serves vGPUs, in words of the command line."""

    SAME_SIZE = "same-size"
    MIXED_SIZE = "mixed-size"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class AddHosts:
    """More hosts, each made as one that is there."""

    count: int
    model: str | None = None
    """GPU model, as people write it: `l40s`; None = the GPUs of the host that they are made as."""
    gpus: int | None = None
    """So many of that model in each host; None beside None."""
    like: str | None = None
    """Name of the host whose cores, memory, NUMA nodes, release, cluster and datastores they have; None = gpuops
    chooses one."""
    mode: GpuServing | None = None
    """How their GPUs serve vGPUs; None = same size, or as in the host that they are made as."""


@dataclass(frozen=True, slots=True)
class LoseHost:
    """A host that is dead."""

    host: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class LoseGpu:
    """A GPU that is gone."""

    host: str
    gpu: PciAddress


@dataclass(frozen=True, slots=True)
class ChangeGpuMode:
    """GPUs that serve vGPUs in another way."""

    mode: GpuServing
    host: str | None = None
    """Shell pattern over the names of hosts; None = all."""
    model: str | None = None
    """Only GPUs of this model."""
    gpu: tuple[PciAddress, ...] = ()
    """Only GPUs at these addresses."""


@dataclass(frozen=True, slots=True)
class ApplyLayout:
    """GPUs that have the GPU instances of a named layout, or that are out of MIG mode where it says so."""

    layout: GpuLayout
    host: str | None = None
    """Shell pattern over the names of hosts; None = all."""
    model: str | None = None
    """Only GPUs of this model."""
    gpu: tuple[PciAddress, ...] = ()
    """Only GPUs at these addresses."""


@dataclass(frozen=True, slots=True)
class ChangeProfile:
    """VMs whose vGPUs are of another profile."""

    of: str
    """A pool of the policy, or a shell pattern over the names of VMs."""
    profile: str


@dataclass(frozen=True, slots=True)
class AddVms:
    """More VMs that run, made as some that are there."""

    count: int
    of: str
    """A pool of the policy, or a vGPU profile."""


FleetChange = AddHosts | LoseHost | LoseGpu | ChangeGpuMode | ApplyLayout | ChangeProfile | AddVms
