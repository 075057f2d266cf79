"""The section of a policy that names the ML VMs which run at night, and how the return stops them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from gpuops.config.decoding import Section
from gpuops.model.file_keys import Mistaken, Reads
from gpuops.model.nights.ml_queue import OF_THE_QUEUE, Checkpoint, MlStop, QueuedVm
from gpuops.model.workloads.job_rules import JobRules, is_pattern


def _checked_entry(queued: QueuedVm) -> QueuedVm:
    if (queued.vm is None) == (queued.vms is None):
        raise Mistaken("say either `vm` or `vms`")
    for name in queued.names:
        if is_pattern(name) and not name.strip("*?"):
            raise Mistaken(f"{name!r} would start every VM", "name what they have in common: `ml-*`")
    if queued.count is not None and not is_pattern(queued.names[0]) and queued.count > len(queued.names):
        raise Mistaken(f"`count: {queued.count}`, and {len(queued.names)} named", "name more VMs, or a pattern: `ml-*`")
    return queued


def _checked_rules(rules: JobRules) -> JobRules:
    if not rules.names:
        raise Mistaken("no VM runs jobs", "say `vms`, or a `template` of which they are made")
    return rules


class MlSection(Section):
    """The queue whole."""

    queue: tuple[Annotated[QueuedVm, Reads(_checked_entry, QueuedVm)], ...] = ()
    stop: MlStop = MlStop()
    checkpoint: Checkpoint = Checkpoint()
    jobs: Annotated[JobRules, Reads(_checked_rules, JobRules)] | None = None

    def __post_init__(self) -> None:
        names = [name for queued in self.queue for name in queued.names]
        names += self.jobs.vms if self.jobs is not None else []
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Mistaken(f"the VM of the queue {twice[0]!r} is there twice", "name each VM in one entry")

        if self.jobs is not None and not self.stop.then_off:
            raise Mistaken("`jobs` and `then: leave-running`: a VM of a job is off in the morning", "say power-off")

    def queued(self) -> tuple[QueuedVm, ...]:
        """Return the entries with their checkpoints, and the entry by which a return knows the VMs of jobs."""
        entries = tuple(
            replace(queued, checkpoint=self.checkpoint) if queued.checkpoint is OF_THE_QUEUE else queued
            for queued in self.queue
        )
        if self.jobs is None:
            return entries
        rules = self.jobs
        of_jobs = QueuedVm(
            vms=rules.names, relocate=rules.relocate, priority=rules.priority, minimum_run=rules.minimum_run,
            for_jobs=True
        )  # fmt: skip
        return (*entries, of_jobs)
