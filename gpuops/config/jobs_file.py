"""Jobs as YAML, checked and made into values.

`templates/jobs.yaml` is the commented example. `gpuops job plan` reads it here.

A file may be written by people who may do less than who reads it: a name, an image or a path that could be taken for
an option, a separator or a terminal's escape is refused here, and every command is a list of words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import Section, WrongContent, decode, read_as
from gpuops.config.workloads_file import Busy
from gpuops.errors import PolicyError, UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Reads, Text, reads_by
from gpuops.model.workloads.job import ContainerJob, ContainerRuntime, Mount
from gpuops.model.workloads.workload import memory_mib

MOST_JOBS: Final = 1000
"""In one file, each counted as often as it says."""
_HINT: Final = "templates/jobs.yaml shows every key, with comments"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?")
_HOST: Final = r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::[0-9]{1,5})?|localhost(?::[0-9]{1,5})?|[a-z0-9-]+:[0-9]{1,5})"
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(rf"(?!-){_HOST}(?:/{_PART})+(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>.*))?", re.ASCII)
"""A name of an image with its registry (OCI distribution specification, pulling manifests)."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PATH: Final = re.compile(r"(/[A-Za-z0-9_.@+-]+)+")
_RUN_TIME: Final = re.compile(r"(?=[0-9])(?:(?P<hours>[0-9]{1,4})h)? ?(?:(?P<minutes>[0-9]{1,4})m(?:in)?)?")
_SYSTEM: Final = frozenset({"proc", "sys", "dev", "run", "etc"})
"""What a container has of its own, or what speaks to its guest: nothing is mounted over it."""


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("should be a name for VMs too: small letters, digits and - between them, 50 at the most")
    return text


def _image(text: str) -> str:
    found = _IMAGE.fullmatch(text)
    if found is None:
        raise ValueError("is no image with its registry; write quay.io/lab/train:2, or quay.io/lab/train@sha256:...")
    digest = found["digest"]
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise ValueError("has no digest after @; it is sha256: and 64 hexadecimal digits")
    if digest is not None and found["tag"] is not None:
        raise ValueError("has a tag and a digest; the digest says which image: leave the tag out")
    return text


def _word(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a control character in it; a script with several lines belongs into the image")
    return text


def read_guest_path(text: str) -> str:
    if not _PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError("is no path for a mount: absolute, without . and .., of letters, digits and _ . @ + -")
    if text.split("/")[1] in _SYSTEM:
        raise ValueError(f"lies below /{text.split('/')[1]}, which is the system's: mount data of another directory")
    return text


def _run_time(text: str) -> timedelta:
    match = _RUN_TIME.fullmatch(text)
    parts = {unit: int(number) for unit, number in match.groupdict().items() if number} if match else {}
    if not (run_time := timedelta(**parts)):
        raise ValueError("is no time to run; write 3h, 90m or 1h30m")
    return run_time


def mount_path(text: str, option: str) -> str:
    """A directory below which mounts may lie. Raises UsageError that names the option."""
    try:
        return read_guest_path(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", hint=f"write {option} /data") from None


GuestPath = Annotated[str, Reads(read_guest_path, Text)]
Word = Annotated[str, Reads(_word, Annotated[str, Meta(min_length=1, max_length=4096)])]
OneLine = Annotated[str, Reads(_word, Text)]


class MountSection(Section):
    """One directory."""

    source: GuestPath
    target: GuestPath | None = None
    writable: bool = False


class JobSection(Section):
    """One job, or `count` of them."""

    name: Annotated[str, Reads(_name)]
    image: Annotated[str, Reads(_image, Annotated[str, Meta(max_length=500)])]
    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=256)]
    profile: Text
    vcpu: Annotated[int, Meta(ge=1, le=4096)]
    memory: Annotated[int, reads_by(memory_mib)]
    run_time: Annotated[timedelta, Reads(_run_time, Text)]
    count: Annotated[int, Meta(ge=1, le=64)] = 1
    runtime: ContainerRuntime = ContainerRuntime.PODMAN
    mounts: Annotated[tuple[MountSection, ...], Meta(max_length=64)] = ()
    network: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    owner: OneLine | None = None
    busy: Busy | None = None
    like: OneLine | None = None
    checkpoint: Annotated[tuple[Word, ...], Meta(max_length=256)] = ()
    resumes: Annotated[int, Meta(ge=0, le=100)] = 0

    def __post_init__(self) -> None:
        if self.resumes and not self.checkpoint:
            raise ValueError("`resumes` needs `checkpoint`: what saves the state that it goes on from")
        if self.checkpoint and self.runtime is ContainerRuntime.APPTAINER:
            raise ValueError("`checkpoint` is run in the container, which apptainer cannot enter: use podman or docker")
        targets = Counter(each.target or each.source for each in self.mounts)
        if twice := [target for target, times in targets.items() if times > 1]:
            raise ValueError(f"mounts {twice[0]} twice")

    def jobs(self) -> Iterator[ContainerJob]:
        """`train`, or `train-1`, `train-2`, ... of several."""
        for number in range(1, self.count + 1):
            yield ContainerJob(
                name=self.name if self.count == 1 else f"{self.name}-{number}",
                image=self.image,
                command=self.command,
                profile=self.profile,
                vcpus=self.vcpu,
                memory_mib=self.memory,
                run_time=self.run_time,
                runtime=self.runtime,
                mounts=tuple(Mount(each.source, each.target or each.source, each.writable) for each in self.mounts),
                network=self.network,
                priority=self.priority,
                owner=self.owner,
                busy=None if self.busy is None else float(self.busy),
                like=self.like,
                checkpoint=self.checkpoint,
                resumes=self.resumes,
            )


class JobsFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    jobs: Annotated[tuple[JobSection, ...], Meta(min_length=1, max_length=MOST_JOBS)]


def job_of_options(values: Mapping[str, Any]) -> ContainerJob:
    """The job that these keys of a file say; those that are None are not given. Raises UsageError, one line."""
    given = {key: value for key, value in values.items() if value is not None}
    try:
        (job,) = decode(JobSection, given).jobs()
    except WrongContent as error:
        place, reason, _ = error.mistakes[0]
        key = str(place[0]) if place else "job"
        said = {"mounts": "--mount", "command": "-- COMMAND"}.get(key, f"--{key.replace('_', '-')}")
        hint = "gpuops schema jobs says what each may be"
        raise UsageError(f"{said}: {reason}", hint=hint) from error
    return job


def name_of_image(image: str) -> str:
    """What a job is called whose name nobody says: `train` of `quay.io/lab/train:2`."""
    last = image.rsplit("/", 1)[-1].split("@")[0].split(":")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", last)[:50].strip("-") or "job"


def mount_of_option(text: str) -> dict[str, Any]:
    """`/data`, `/data:/in` or `/out:/out:rw`, as the file says it."""
    source, *rest = text.split(":")
    writable = rest[-1:] == ["rw"]
    target = rest[0] if rest and rest != ["rw"] else None
    if len(rest) > (2 if writable else 1):
        raise UsageError(f"--mount {text!r} has too many colons", hint="write --mount /data, or /data:/in:rw")
    return {"source": source, "target": target, "writable": writable}


def load_jobs(path: Path) -> tuple[ContainerJob, ...]:
    """The jobs in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    return parse_jobs(read_text(path), str(path))


def parse_jobs(text: str, name: str) -> tuple[ContainerJob, ...]:
    """The jobs of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    found = read_as(JobsFile, parse_yaml(text, name), name, _HINT)
    if (total := sum(each.count for each in found.jobs)) > MOST_JOBS:
        raise PolicyError(f"{name}: has {total} jobs in all; {MOST_JOBS} can be planned at once", hint=_HINT)
    jobs = tuple(job for each in found.jobs for job in each.jobs())
    twice = [known for known, times in Counter(job.name for job in jobs).items() if times > 1]
    if twice:
        raise PolicyError(f"{name}: the job {twice[0]!r} is there twice", hint="`count` says how many there are of one")
    return jobs
