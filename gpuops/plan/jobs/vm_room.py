"""How many jobs get a VM of a policy: one that is there, or one that is made of its template. Pure.

They are taken to be submitted now, behind those that are there already: who is served first, what quotas let, and which
VM runs which job is told as for a night (`turns`), what is made as by day (`template_vms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.job import ContainerJob
from gpuops.model.workloads.job_record import SubmittedJob
from gpuops.model.workloads.job_rules import JobRules, Submitter
from gpuops.plan.jobs.admission import with_owners
from gpuops.plan.jobs.template_vms import fitted_plan
from gpuops.plan.jobs.turns import job_turns


@dataclass(frozen=True, slots=True)
class JobVmRoom:
    """Names of jobs, in the order in which they are served."""

    there: tuple[str, ...]
    """Get a VM that is there, or is only to be given its vGPU."""
    of_template: tuple[str, ...]
    """Get one that is made."""
    without: tuple[tuple[str, str], ...]
    """Wait, each with the reason."""
    template: str | None
    """Of which VMs are made; None = of none."""


def job_vm_room(
    jobs: Sequence[ContainerJob],
    submitted: Sequence[SubmittedJob],
    who: Submitter,
    policy: Policy,
    rules: JobRules,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
) -> JobVmRoom:
    """The snapshot must know the devices of the template, and of VMs that were made for jobs. A job that is submitted
    already counts once. Raises UsageError for a template that means nothing."""
    known = {each.job.name: each.number for each in submitted if not each.ended}
    last = max((each.number for each in submitted), default=0)
    new = [job for job in with_owners(jobs, rules, who) if job.name not in known]
    asked = [SubmittedJob(last + at, job, now, str(who)) for at, job in enumerate(new, 1)]
    numbers = {each.number for each in asked} | {known[job.name] for job in jobs if job.name in known}
    every, share = (*submitted, *asked), policy.fair_share
    turns = job_turns(every, rules, inventory, catalog, now, share=share)
    plan = fitted_plan(every, policy, inventory, catalog, now).plan
    there = {turn.job.number for turn in turns if turn.vm is not None} | {job.number for _, job in plan.bare}
    made = {job.number for _, job in plan.new}
    mine = [turn for turn in turns if turn.job.number in numbers]
    return JobVmRoom(
        tuple(turn.job.job.name for turn in mine if turn.job.number in there),
        tuple(turn.job.job.name for turn in mine if turn.job.number in made),
        tuple(
            (turn.job.job.name, plan.waits.get(turn.job.number, turn.reason))
            for turn in mine
            if turn.job.number not in there | made
        ),
        rules.template.name if rules.template is not None else None,
    )
