"""Predicts which jobs get a VM of a policy: an existing one, or one that is created from its template. Pure.

The jobs are treated as submitted now, after the existing ones. Their order, quotas and VMs are decided as for a night
(`turns`), and new VMs are planned as during the day (`template_vms`).
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
    """Jobs that get an existing VM, which may still need its vGPU."""
    of_template: tuple[str, ...]
    """Jobs that get a new VM."""
    without: tuple[tuple[str, str], ...]
    """Jobs that wait, each with the reason."""
    template: str | None
    """The template of new VMs; None = the policy has none."""


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
    """Return which of these jobs get a VM. Jobs that are already submitted count once.

    The snapshot must have the devices of the template and of VMs that were created for jobs. Raises UsageError for an
    invalid template.
    """
    number_by_name = {job.job.name: job.number for job in submitted if not job.ended}
    last = max((job.number for job in submitted), default=0)
    new = [job for job in with_owners(jobs, rules, who) if job.name not in number_by_name]
    requested = [SubmittedJob(last + at, job, now, str(who)) for at, job in enumerate(new, 1)]
    numbers = {job.number for job in requested} | {
        number_by_name[job.name] for job in jobs if job.name in number_by_name
    }
    all_jobs, share = (*submitted, *requested), policy.fair_share
    turns = job_turns(all_jobs, rules, inventory, catalog, now, share=share)
    plan = fitted_plan(all_jobs, policy, inventory, catalog, now).plan
    with_existing_vm = {turn.job.number for turn in turns if turn.vm is not None} | {job.number for _, job in plan.bare}
    with_new_vm = {job.number for _, job in plan.new}
    requested_turns = [turn for turn in turns if turn.job.number in numbers]
    return JobVmRoom(
        tuple(turn.job.job.name for turn in requested_turns if turn.job.number in with_existing_vm),
        tuple(turn.job.job.name for turn in requested_turns if turn.job.number in with_new_vm),
        tuple(
            (turn.job.job.name, plan.waits.get(turn.job.number, turn.reason))
            for turn in requested_turns
            if turn.job.number not in with_existing_vm | with_new_vm
        ),
        rules.template.name if rules.template is not None else None,
    )
