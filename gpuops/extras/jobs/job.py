"""Jobs: images and commands that want a share of a GPU for a while, each in a container in a VM of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from gpuops.model.devices.shared_gpu import ShareText, read_share
from gpuops.model.file_keys import Reads, Text
from gpuops.model.stored import stored_as
from gpuops.model.workloads.workload import Memory, Vcpus

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_HOST: Final = r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::[0-9]{1,5})?|localhost(?::[0-9]{1,5})?|[a-z0-9-]+:[0-9]{1,5})"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(rf"(?!-){_HOST}(?:/{_PART})+(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>.*))?", re.ASCII)
"""A name of an image with its registry (OCI distribution specification, pulling manifests)."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_RUN_TIME: Final = re.compile(r"(?=[0-9])(?:(?P<hours>[0-9]{1,4})h)? ?(?:(?P<minutes>[0-9]{1,4})m(?:in)?)?")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("should be a name for VMs too: at most 50 small letters and digits, with - between them")
    return text


def _image(text: str) -> str:
    match = _IMAGE.fullmatch(text)
    if match is None:
        raise ValueError("is no image with its registry; write quay.io/lab/train:2, or quay.io/lab/train@sha256:...")
    digest = match["digest"]
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise ValueError("has no digest after @; it is sha256: and 64 hexadecimal digits")
    if digest is not None and match["tag"] is not None:
        raise ValueError("has a tag and a digest; the digest says which image: leave the tag out")
    return text


def _word(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a control character in it; a script with several lines belongs into the image")
    return text


def _run_time(text: str) -> timedelta:
    match = _RUN_TIME.fullmatch(text)
    parts = {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    if not (run_time := timedelta(**parts)):
        raise ValueError("is no time to run; write 3h, 90m or 1h30m")
    return run_time


Word = Annotated[str, Reads(_word, Annotated[str, Meta(min_length=1, max_length=4096)])]
OneLine = Annotated[str, Reads(_word, Text)]
Busy = Annotated[float, Reads(lambda share: float(read_share(share)), ShareText)]


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

    name: Annotated[str, Reads(_name)]
    image: Annotated[str, Reads(_image, Annotated[str, Meta(max_length=500)])]
    """With its registry: `quay.io/lab/train:2` or `quay.io/lab/train@sha256:...`."""
    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=256)]
    """Program and arguments, as words; no shell reads them."""
    profile: Text
    vcpus: Vcpus
    memory_mib: Memory
    run_time: Annotated[timedelta, Reads(_run_time, Text)]
    """What it takes with the GPU alone."""
    runtime: ContainerRuntime = ContainerRuntime.PODMAN
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    """Whether it has any network but its own loopback."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Higher is placed earlier."""
    owner: OneLine | None = None
    busy: Busy | None = None
    """Stated: the share of the time, 0 to 1, that it keeps a GPU busy alone."""
    like: OneLine | None = None
    """A VM that did the same work: its history says how busy."""
    checkpoint: Annotated[tuple[Word, ...], Meta(max_length=256)] = ()
    """What saves its state, run in the container; () = it cannot be interrupted."""
    resumes: Annotated[int, Meta(ge=0, le=100)] = 0
    """How often it may go on from its checkpoint."""
