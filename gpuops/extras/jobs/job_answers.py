"""The answers about submitted jobs: the submission, their queue, and the actions of a pass. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.errors import report_exit_code
from gpuops.extras.jobs.job import SubmittedJob
from gpuops.extras.jobs.job_turns import JobTurn
from gpuops.plan.core.rejection import Rejection


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """The outcome of a submission: either all jobs are added, or none."""

    added: tuple[SubmittedJob, ...] = ()
    there: tuple[SubmittedJob, ...] = ()
    rejections: tuple[Rejection, ...] = ()

    @property
    def exit_code(self) -> int:
        return report_exit_code(refused=self.rejections)


@dataclass(frozen=True, slots=True)
class JobListing:
    """The jobs of a vCenter, and the prospects of those that wait."""

    jobs: tuple[SubmittedJob, ...]
    turns: Mapping[int, JobTurn] = field(default_factory=dict)
    """By number."""
    places: Mapping[int, int] = field(default_factory=dict)
    """By number, the place among the waiting jobs, from 1."""
    starts_at: Mapping[int, datetime] = field(default_factory=dict)
    """By number, when its VM is expected to start."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """By number, why it does not start in the next night."""


@dataclass(frozen=True, slots=True)
class JobDeed:
    """What a pass did with one job, or why it did nothing."""

    job: SubmittedJob
    what: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class JobVmDeed:
    """What a pass did with one VM of the template, or why it did nothing."""

    vm: str
    """Its name."""
    what: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class JobsRun:
    """The actions of one pass."""

    deeds: tuple[JobDeed, ...]
    stopped: bool
    """Whether the pass stopped jobs."""
    vms: tuple[JobVmDeed, ...] = ()

    @property
    def exit_code(self) -> int:
        """4 if a guest refused an action, or a VM of the template could not be created or removed."""
        failed = any(deed.failed for deed in self.deeds) or any(deed.failed for deed in self.vms)
        return report_exit_code(partly=failed)
