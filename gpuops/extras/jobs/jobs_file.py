"""Jobs as YAML, checked and made into values.

`templates/jobs.yaml` is the commented example. `gpuops job plan` reads it here.

A file may be written by people who may do less than who reads it: a name, an image or a path that could be taken for
an option, a separator or a terminal's escape is refused here, and every command is a list of words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import Section, WrongContent, decode, read_as
from gpuops.errors import PolicyError, UsageError
from gpuops.extras.jobs.job import ArrayTask, ContainerJob, ContainerRuntime, Mount
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.file_keys import Reads
from gpuops.model.workloads.job_rules import GuestPath, read_guest_path

MOST_JOBS: Final = 1000
"""In one file, each counted as often as it says."""
_HINT: Final = "templates/jobs.yaml shows every key, with comments"


def mount_path(text: str, option: str) -> str:
    """A directory below which mounts may lie. Raises UsageError that names the option."""
    try:
        return read_guest_path(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", hint=f"write {option} /data") from None


class MountSection(Section):
    """One directory."""

    source: GuestPath
    target: GuestPath | None = None
    writable: bool = False


def _mount(section: MountSection) -> Mount:
    return Mount(section.source, section.target or section.source, section.writable)


@dataclass(frozen=True, slots=True)
class JobEntry(ContainerJob):
    """One job, `count` of them, or an array."""

    mounts: Annotated[tuple[Annotated[Mount, Reads(_mount, MountSection)], ...], Meta(max_length=64)] = ()
    count: Annotated[int, Meta(ge=1, le=64)] = 1
    array: Annotated[int, Meta(ge=1, le=MOST_JOBS)] | None = None

    def __post_init__(self) -> None:
        if self.resumes and not self.checkpoint:
            raise ValueError("`resumes` needs `checkpoint`, the command that saves the state to continue from")
        if self.checkpoint and self.runtime is ContainerRuntime.APPTAINER:
            raise ValueError("`checkpoint` is run in the container, which apptainer cannot enter: use podman or docker")
        targets = Counter(mount.target for mount in self.mounts)
        if self.count > 1 and self.array is not None:
            raise ValueError("has `count` and `array`: leave one of them out")
        if self.shm_mib is not None and self.shm_mib > self.memory_mib:
            raise ValueError(f"`shm` is {self.shm_mib} MiB and `memory` only {self.memory_mib} MiB")
        if self.shm_mib is not None and self.runtime is ContainerRuntime.APPTAINER:
            raise ValueError("apptainer has no option for `shm`: use podman or docker")
        if twice := [target for target, times in targets.items() if times > 1]:
            raise ValueError(f"mounts {twice[0]} twice")

    def jobs(self) -> Iterator[ContainerJob]:
        """Yield `train`; `train-1`, `train-2`, ... for `count`; `train-0`, `train-1`, ... for `array`."""
        settings = {field.name: getattr(self, field.name) for field in fields(ContainerJob)}
        if self.array is not None:
            for index in range(self.array):
                task = ArrayTask(self.name, index, self.array)
                yield ContainerJob(**settings | {"name": f"{self.name}-{index}", "task": task})
            return
        for number in range(1, self.count + 1):
            yield ContainerJob(**settings | {"name": self.name if self.count == 1 else f"{self.name}-{number}"})


class JobsFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    jobs: Annotated[tuple[JobEntry, ...], Meta(min_length=1, max_length=MOST_JOBS)]


def jobs_of_options(options: Mapping[str, Any]) -> tuple[ContainerJob, ...]:
    """Return the jobs of these keys of a file; keys with None are left out. Raises UsageError, one line."""
    keys = {key: option for key, option in options.items() if option is not None}
    try:
        return tuple(decode(JobEntry, keys).jobs())
    except WrongContent as error:
        place, reason, _ = error.mistakes[0]
        subject = option_of_key(str(place[0])) if place else "the job"
        hint = "gpuops schema jobs says what each may be"
        raise UsageError(f"{subject}: {reason}", hint=hint) from error


def option_of_key(key: str) -> str:
    """Return the option of `gpuops job submit` for a key of a job, for example `--duration` for `run_time`."""
    names = {"mounts": "--mount", "command": "-- COMMAND", "run_time": "--duration", "secrets": "--secret"}
    return names.get(key, f"--{key}")


def name_of_image(image: str) -> str:
    """Return the default name of a job, from its image: `train` for `quay.io/lab/train:2`."""
    last = image.rsplit("/", 1)[-1].split("@")[0].split(":")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", last)[:50].strip("-") or "job"


def mount_of_option(text: str) -> dict[str, Any]:
    """Return the mount of `/data`, `/data:/in` or `/out:/out:rw`, as in a file. Raises UsageError."""
    source, *parts = text.split(":")
    writable = parts[-1:] == ["rw"]
    target = parts[0] if parts and parts != ["rw"] else None
    if len(parts) > (2 if writable else 1):
        raise UsageError(f"--mount {text!r} has too many colons", hint="write --mount /data, or /data:/in:rw")
    return {"source": source, "target": target, "writable": writable}


def pairs_of_option(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Return the keys and values of `NAME=VALUE` texts. Raises UsageError that names the option."""
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"{option} {pair!r} has no =", hint=f"write {option} NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def load_jobs(path: Path) -> tuple[ContainerJob, ...]:
    """The jobs in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    return parse_jobs(read_text(path), str(path))


def parse_jobs(text: str, name: str) -> tuple[ContainerJob, ...]:
    """The jobs of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    jobs_file = read_as(JobsFile, parse_yaml(text, name), name, _HINT)
    if (total := sum(entry_of_file.array or entry_of_file.count for entry_of_file in jobs_file.jobs)) > MOST_JOBS:
        raise PolicyError(
            f"{name}: has {total} jobs in all; {MOST_JOBS} is the maximum", hint="split the file, and submit each part"
        )
    jobs = tuple(job for entry_of_file in jobs_file.jobs for job in entry_of_file.jobs())
    twice = [name_of_job for name_of_job, times in Counter(job.name for job in jobs).items() if times > 1]
    if twice:
        raise PolicyError(
            f"{name}: two jobs have the name {twice[0]!r}", hint="use `count` for several jobs of one kind"
        )
    return jobs
