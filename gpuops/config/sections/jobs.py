"""The section of a policy about jobs in containers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuops.config.decoding import Section
from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.nights.ml_queue import QueuedVm, is_pattern
from gpuops.model.workloads.job import GuestPath
from gpuops.model.workloads.job_rules import JobQuota, JobRules, JobTemplate

_Names = Annotated[tuple[Text, ...], Meta(max_length=1000)]


def _no_pattern_of_all(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if is_pattern(name) and not name.strip("*?"):
            raise Mistaken(f"{name!r} would start every VM", "name what they have in common: `job-*`")
    return names


class JobsSection(Section):
    """How nights run jobs."""

    vms: Annotated[tuple[str, ...], Reads(_no_pattern_of_all, _Names)] = ()
    template: JobTemplate | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    relocate: bool = False
    mounts: Annotated[tuple[GuestPath, ...], Meta(max_length=100)] = ()
    checkpoint_s: Annotated[int, Meta(ge=10, le=3600)] = 300
    minimum_run_minutes: Annotated[int, Meta(ge=0, le=24 * 60)] = 15
    quotas: Annotated[dict[Text, JobQuota], Meta(max_length=1000)] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.vms and self.template is None:
            raise Mistaken("no VM runs jobs", "say `vms`, or a `template` of which they are made")

    def _names(self) -> tuple[str, ...]:
        """Those that are said, and those of the VMs that are made."""
        made = () if self.template is None else (self.template.pattern,)
        return tuple(dict.fromkeys((*self.vms, *made)))

    def rules(self) -> JobRules:
        return JobRules(
            self._names(),
            self.mounts,
            self.quotas,
            timedelta(seconds=self.checkpoint_s),
            timedelta(minutes=self.minimum_run_minutes),
            self.template,
        )

    def queued(self) -> QueuedVm:
        """The entry by which a return knows these VMs; by itself it starts none of them."""
        name, *others = self._names()
        return QueuedVm(
            name,
            self.relocate,
            others=tuple(others),
            priority=self.priority,
            minimum_run=timedelta(minutes=self.minimum_run_minutes),
            for_jobs=True,
        )
