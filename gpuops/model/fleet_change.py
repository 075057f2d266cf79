"""Hypothetical changes of a fleet, for `gpuops what-if`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.mig import GpuLayout
from gpuops.model.file_keys import Reads, Text, reads_by

Address = Annotated[PciAddress, reads_by(PciAddress.parse)]
ChosenGpus = Annotated[
    tuple[PciAddress, ...],
    Reads(lambda gpus: tuple(dict.fromkeys(gpus)), Annotated[tuple[Address, ...], Meta(max_length=1000)]),
]


class GpuServing(StrEnum):
    """How a GPU serves vGPUs, in the words of `host mode set`."""

    SAME_SIZE = "sameSize"
    MIXED_SIZE = "mixedSize"
    MIG = "mig"

    @property
    def adjective(self) -> str:
        """Return the word for sentences: `mixed-size`."""
        return self.value.replace("Size", "-size")


@dataclass(frozen=True, slots=True)
class AddHosts:
    """More hosts, each made as one that is there."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    model: Text | None = None
    """GPU model, as people write it: `l40s`; None = the GPUs of the host that they are made as."""
    gpus: Annotated[int, Meta(ge=1, le=16)] | None = None
    """So many of that model in each host; None beside None."""
    like: Text | None = None
    """Name of the host whose cores, memory, NUMA nodes, release, cluster and datastores they have; None = gpuops
    chooses one."""
    mode: GpuServing | None = None
    """How their GPUs serve vGPUs; None = same size, or as in the host that they are made as."""

    def __post_init__(self) -> None:
        if (self.model is None) is not (self.gpus is None):
            raise ValueError("`model` and `gpus` belong together: which GPUs, and how many in each host")
        if self.model is None and self.like is None:
            raise ValueError("set `model` and `gpus`, or `like`: a host whose GPUs they have")


@dataclass(frozen=True, slots=True)
class LoseHost:
    """A host that is dead."""

    host: str
    """Its name."""


@dataclass(frozen=True, slots=True)
class LoseGpu:
    """A GPU that is gone."""

    host: Text
    gpu: Address


@dataclass(frozen=True, slots=True)
class ChangeGpuMode:
    """GPUs that change their vGPU mode: same-size, mixed-size or MIG."""

    mode: GpuServing
    host: Text | None = None
    """Shell pattern over the names of hosts; None = all."""
    model: Text | None = None
    """Only GPUs of this model."""
    gpu: ChosenGpus = ()
    """Only GPUs at these addresses."""


@dataclass(frozen=True, slots=True)
class ApplyLayout:
    """GPUs that have the GPU instances of a named layout, or that are out of MIG mode where it says so."""

    layout: GpuLayout
    host: Text | None = None
    """Shell pattern over the names of hosts; None = all."""
    model: Text | None = None
    """Only GPUs of this model."""
    gpu: ChosenGpus = ()
    """Only GPUs at these addresses."""


@dataclass(frozen=True, slots=True)
class ChangeProfile:
    """VMs whose vGPUs are of another profile."""

    of: Text
    """A pool of the policy, or a shell pattern over the names of VMs."""
    profile: Text


@dataclass(frozen=True, slots=True)
class AddVms:
    """More VMs that run, made as some that are there."""

    count: Annotated[int, Meta(ge=1, le=10_000)]
    of: Text
    """A pool of the policy, or a vGPU profile."""


FleetChange = AddHosts | LoseHost | LoseGpu | ChangeGpuMode | ApplyLayout | ChangeProfile | AddVms
