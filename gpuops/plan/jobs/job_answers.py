"""What is answered about submitted jobs: what became of them, their queue, and what a pass did. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.model.workloads.job_record import SubmittedJob
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.jobs.turns import JobTurn


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """What became of jobs that somebody submits: all of them wait, or none is added."""

    added: tuple[SubmittedJob, ...] = ()
    there: tuple[SubmittedJob, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    @property
    def exit_code(self) -> int:
        return 3 if self.rejections else 0


@dataclass(frozen=True, slots=True)
class JobListing:
    """The jobs of a vCenter, and what those that wait can expect."""

    jobs: tuple[SubmittedJob, ...]
    turns: Mapping[int, JobTurn] = field(default_factory=dict)
    """By number."""
    places: Mapping[int, int] = field(default_factory=dict)
    """By number, the place among those that wait, from 1 on."""
    starts_at: Mapping[int, datetime] = field(default_factory=dict)
    """By number, when its VM is expected to start."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """By number, why it does not start in the next night."""


@dataclass(frozen=True, slots=True)
class JobDeed:
    """What a pass did with one job, or why nothing."""

    job: SubmittedJob
    what: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class JobVmDeed:
    """What a pass did with one VM of the template, or why nothing."""

    vm: str
    """Its name."""
    what: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class JobsRun:
    """What one pass came to."""

    deeds: tuple[JobDeed, ...]
    stopped: bool
    """Whether it was a pass that stops."""
    vms: tuple[JobVmDeed, ...] = ()

    @property
    def exit_code(self) -> int:
        """4 when a guest refused something, or a VM of the template could not be made or removed."""
        failed = any(deed.failed for deed in self.deeds) or any(deed.failed for deed in self.vms)
        return 4 if failed else 0
