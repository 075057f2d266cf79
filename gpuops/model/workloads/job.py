"""Jobs: images and commands that want a share of a GPU for a while, each in a container in a VM of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from gpuops.model.stored import stored_as


class ContainerRuntime(StrEnum):
    """What runs the container in the guest."""

    PODMAN = "podman"
    APPTAINER = "apptainer"
    DOCKER = "docker"


@stored_as("Mount", source="source", target="target", writable="writable")
@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the guest that the container sees; both paths are absolute and have no `..`."""

    source: str
    target: str
    writable: bool = False


@stored_as(
    "ContainerJob",
    name="name",
    image="image",
    command="command",
    profile="profile",
    vcpus="vcpus",
    memory_mib="memory_mib",
    run_time="run_time",
    runtime="runtime",
    mounts="mounts",
    network="network",
    priority="priority",
    owner="owner",
    busy="busy",
    like="like",
    checkpoint="checkpoint",
    resumes="resumes",
)
@dataclass(frozen=True, slots=True)
class ContainerJob:
    """One job. Its VM has one vGPU of `profile`, and runs nothing else."""

    name: str
    image: str
    """With its registry: `quay.io/lab/train:2` or `quay.io/lab/train@sha256:...`."""
    command: tuple[str, ...]
    """Program and arguments, as words; no shell reads them."""
    profile: str
    vcpus: int
    memory_mib: int
    run_time: timedelta
    """What it takes with the GPU alone."""
    runtime: ContainerRuntime = ContainerRuntime.PODMAN
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    """Whether it has any network but its own loopback."""
    priority: int = 0
    """Higher is placed earlier."""
    owner: str | None = None
    busy: float | None = None
    """Stated: the share of the time, 0 to 1, that it keeps a GPU busy alone."""
    like: str | None = None
    """A VM that did the same work: its history says how busy."""
    checkpoint: tuple[str, ...] = ()
    """What saves its state, run in the container; () = it cannot be interrupted."""
    resumes: int = 0
    """How often it may go on from its checkpoint."""
