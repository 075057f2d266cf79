"""A job, the records of what happened to it, and its state by these records. Pure.

A job is a container image with a command that needs a vGPU for some time; it runs in a VM of its own. Records are only
ever added. `BEGUN` and `STOPPING` are on disk before their action starts; all others are written after gpuops saw the
event. So the run after a crash knows what may have happened, and checks it.

    waits --BEGUN--> runs --ENDED--> finished (exit code 0), or failed
      ^                +----NOT_STARTED: waits as before, and nothing is counted
      +--INTERRUPTED---+    the (resumes + 1)th interruption: failed
    waits or runs --CANCELLED--> cancelled"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from gpuops.model.devices.shared_gpu import ShareText, read_share
from gpuops.model.file_keys import NOT_IN_FILE, Before, Key, Reads, Text, reads_by
from gpuops.model.stored import stored_as
from gpuops.model.workloads.job_rules import FilePath
from gpuops.model.workloads.workload import Memory, Vcpus, memory_mib

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


def _listed(names: object) -> object:
    return [names] if isinstance(names, str) else names


Word = Annotated[str, Reads(_word, Annotated[str, Meta(min_length=1, max_length=4096)])]
_Variables = Annotated[
    dict[
        Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")],
        Annotated[str, Reads(_word, Annotated[str, Meta(max_length=4096)])],
    ],
    Meta(max_length=256),
]
_Secrets = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")], FilePath], Meta(max_length=32)
]
_SIZE: Final = reads_by(memory_mib)
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


@stored_as("ArrayTask", array="array", index="index", size="size")
@dataclass(frozen=True, slots=True)
class ArrayTask:
    """The place of a job in an array: jobs that differ only in their index."""

    array: str
    """Name of the array; that of the job is `ARRAY-INDEX`."""
    index: int
    """From 0 on."""
    size: int


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
    gpus="gpus",
    env="env",
    secrets="secrets",
    shm_mib="shm_mib",
    workdir="workdir",
    after="after",
    task="task",
)
@dataclass(frozen=True, slots=True)
class ContainerJob:
    """One job. Its VM has `gpus` vGPUs of `profile`, and runs nothing else."""

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
    gpus: Annotated[int, Meta(ge=1, le=16)] = 1
    """Number of vGPUs."""
    env: Annotated[Mapping[str, str], Reads(dict, _Variables)] = field(default_factory=dict, hash=False)
    """Environment variables."""
    secrets: Annotated[Mapping[str, str], Reads(dict, _Secrets)] = field(default_factory=dict, hash=False)
    """Name -> file of the machine of `gpuops job run`; the container finds its content in `/run/secrets/NAME`."""
    shm_mib: Annotated[int | None, Key("shm"), _SIZE] = None
    """Size of `/dev/shm`; None = half of the memory."""
    workdir: FilePath | None = None
    """Directory in the container in which the command starts; None = that of the image."""
    after: Annotated[tuple[Text, ...], Meta(max_length=100), Before(_listed, tuple[Text, ...] | Text)] = ()
    """Names of jobs or arrays that must have finished before it starts."""
    task: Annotated[ArrayTask | None, NOT_IN_FILE] = None

    @property
    def shm_size_mib(self) -> int:
        # half of the memory is what Linux gives a tmpfs, so the /dev/shm of a program without a container (tmpfs(5));
        # the default of podman and docker is 64 MiB, too little for PyTorch's data loaders
        return self.shm_mib or max(1, self.memory_mib // 2)

    @property
    def names(self) -> frozenset[str]:
        """Return the names that mean this job: its own, and that of its array."""
        return frozenset({self.name, *((self.task.array,) if self.task is not None else ())})


class JobState(StrEnum):
    """How a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    """Its container was started, or may have been; or its VM is off, and gpuops has not checked since."""
    INTERRUPTED = "interrupted"
    """It was stopped, and goes on in a later night."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobEvent(StrEnum):
    """What a record tells."""

    BEGUN = "begun"
    """Its container is about to be started in a VM."""
    STARTED = "started"
    """Its container was seen to run."""
    NOT_STARTED = "not-started"
    """It did not begin to run."""
    CANCEL = "cancel"
    """Somebody wants it cancelled while it runs."""
    STOPPING = "stopping"
    """Its checkpoint is over, and it is about to be stopped."""
    INTERRUPTED = "interrupted"
    ENDED = "ended"
    """Its container ended by itself."""
    CANCELLED = "cancelled"


ENDED_STATES: Final = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
WAITING_STATES: Final = frozenset({JobState.QUEUED, JobState.INTERRUPTED})
_WHEN_WAITING: Final = frozenset({JobEvent.BEGUN, JobEvent.CANCELLED})
_WHEN_RUNNING: Final = frozenset(JobEvent) - {JobEvent.BEGUN}


@stored_as(
    "JobRecord",
    event="event",
    at="at",
    vm="vm",
    vm_name="vm_name",
    exit_code="exit_code",
    ran="ran_s",
    saved="saved",
    reason="reason",
)
@dataclass(frozen=True, slots=True)
class JobRecord:
    """One record."""

    event: JobEvent
    at: datetime
    vm: str = ""
    """Of BEGUN: instance uuid of the VM."""
    vm_name: str = ""
    exit_code: int | None = None
    """Of ENDED."""
    ran: timedelta | None = None
    """Of ENDED and INTERRUPTED: how long its container ran this time; None = not known."""
    saved: bool = False
    """Of STOPPING: whether its checkpoint command succeeded."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One time that a job ran, or may have."""

    number: int
    """From 1 on."""
    vm: str
    vm_name: str
    began: datetime
    started: bool = False
    """Whether its container was seen to run."""
    stopping: bool = False
    """Whether it may have been stopped by gpuops."""
    saved: bool = False


@stored_as(
    "SubmittedJob",
    number="number",
    job="job",
    submitted_at="at",
    by="by",
    records="records",
    after="after",
)
@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """One job and all that happened to it."""

    number: int
    """Of its vCenter, from 1 on."""
    job: ContainerJob
    submitted_at: datetime
    by: str
    """A `Submitter`, as text."""
    records: tuple[JobRecord, ...] = ()
    after: tuple[int, ...] = ()
    """Numbers of the jobs that `job.after` meant when it was submitted."""

    @property
    def state(self) -> JobState:
        """Return the state after the last record; see the diagram at the top of this file."""
        state = before = JobState.QUEUED  # `before`: the state before the last attempt
        interruptions = 0
        for record in self.records:
            match record.event:
                case JobEvent.BEGUN:
                    before, state = state, JobState.RUNNING
                case JobEvent.NOT_STARTED:  # the attempt does not count
                    state = before
                case JobEvent.INTERRUPTED:
                    interruptions += 1
                    state = JobState.INTERRUPTED if interruptions <= self.job.resumes else JobState.FAILED
                case JobEvent.ENDED:
                    state = JobState.FINISHED if record.exit_code == 0 else JobState.FAILED
                case JobEvent.CANCELLED:
                    state = JobState.CANCELLED
                case JobEvent.STARTED | JobEvent.CANCEL | JobEvent.STOPPING:  # steps within an attempt
                    pass
        return state

    @property
    def waits(self) -> bool:
        return self.state in WAITING_STATES

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def interruptions(self) -> int:
        return sum(record.event is JobEvent.INTERRUPTED for record in self.records)

    @property
    def attempt(self) -> Attempt | None:
        """Return the last attempt, also one that has ended or whose container was never seen; None = there was none."""
        attempt, number = None, 0
        for record in self.records:
            if record.event is JobEvent.BEGUN:
                number += 1
                attempt = Attempt(number, record.vm, record.vm_name, record.at)
            elif attempt is not None and record.event is JobEvent.STARTED:
                attempt = replace(attempt, started=True)
            elif attempt is not None and record.event is JobEvent.STOPPING:
                attempt = replace(attempt, stopping=True, saved=record.saved)
        return attempt

    @property
    def attempt_name(self) -> str:
        """Return the name of the container of the last attempt: the same on every machine and after every crash."""
        attempt = self.attempt
        return f"{self.job.name}-{self.number}-{attempt.number if attempt is not None else 1}"

    @property
    def cancel_wanted(self) -> bool:
        return any(record.event is JobEvent.CANCEL for record in self.records)

    @property
    def exit_code(self) -> int | None:
        return next((record.exit_code for record in self.records if record.event is JobEvent.ENDED), None)

    @property
    def reason(self) -> str:
        """Return why it was last stopped, or did not start; empty = unknown."""
        return self.records[-1].reason if self.records else ""

    @property
    def ran(self) -> timedelta:
        """Return the time that it ran in all attempts, as far as that is known."""
        return sum((record.ran for record in self.records if record.ran is not None), timedelta())

    @property
    def resumes_from_checkpoint(self) -> bool:
        """Whether a checkpoint of it did well in an earlier attempt."""
        return any(record.event is JobEvent.STOPPING and record.saved for record in self.records)

    def may_have(self, event: JobEvent) -> bool:
        """Whether such a record may follow: what ended has no more of them, and what runs is not begun twice."""
        if self.ended:
            return False
        return event in (_WHEN_WAITING if self.waits else _WHEN_RUNNING)

    def with_record(self, record: JobRecord) -> SubmittedJob:
        return replace(self, records=(*self.records, record))
