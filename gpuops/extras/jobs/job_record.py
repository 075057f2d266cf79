"""A job that was submitted: its records, and what they say of it. Pure.

Records are only ever added. `BEGUN` and `STOPPING` are on disk before their action starts; all others are written after
gpuops saw the event. So the run after a crash knows what may have happened, and checks it.

    waits --BEGUN--> runs --ENDED--> finished (exit code 0), or failed
      ^                +----NOT_STARTED: waits as before, and nothing is counted
      +--INTERRUPTED---+    the (resumes + 1)th interruption: failed
    waits or runs --CANCELLED--> cancelled
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuops.extras.jobs.job import ContainerJob
from gpuops.model.stored import stored_as


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
    """Of STOPPING: whether its checkpoint command did well."""
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

    @property
    def state(self) -> JobState:
        state = before = JobState.QUEUED
        interruptions = 0
        for record in self.records:
            match record.event:
                case JobEvent.BEGUN:
                    before, state = state, JobState.RUNNING
                case JobEvent.NOT_STARTED:
                    state = before
                case JobEvent.INTERRUPTED:
                    interruptions += 1
                    state = JobState.INTERRUPTED if interruptions <= self.job.resumes else JobState.FAILED
                case JobEvent.ENDED:
                    state = JobState.FINISHED if record.exit_code == 0 else JobState.FAILED
                case JobEvent.CANCELLED:
                    state = JobState.CANCELLED
                case JobEvent.STARTED | JobEvent.CANCEL | JobEvent.STOPPING:
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
        """Return the last attempt, whatever its outcome; None if the job was never started."""
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
