"""Checks jobs against a policy: who may submit them, their mounts and profiles, and how many an owner may have.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gpuops.model.devices.profile_name import without_brand
from gpuops.model.workloads.job import ContainerJob
from gpuops.model.workloads.job_record import SubmittedJob
from gpuops.model.workloads.job_rules import JobRules, Submitter
from gpuops.plan.core.rejection import Rejection


def with_owners(jobs: Sequence[ContainerJob], rules: JobRules, who: Submitter) -> tuple[ContainerJob, ...]:
    """Return the jobs; jobs without an owner get the one for whom this person may submit."""
    owner = rules.owner_of(who)
    return tuple(job if job.owner else replace(job, owner=owner) for job in jobs)


def objections(
    jobs: Sequence[ContainerJob], rules: JobRules, submitted: Sequence[SubmittedJob], who: Submitter
) -> tuple[Rejection, ...]:
    """Return all reasons against these jobs, given the submitted ones. Jobs with the same name count once."""
    return tuple(_objections(jobs, rules, submitted, who))


def may_run(job: ContainerJob, rules: JobRules, who: Submitter) -> Rejection | None:
    """Return why the policy of the night does not allow the job, or None.

    The job may have been submitted under another policy.
    """
    quota = rules.quota(job.owner)
    if quota is None:
        owners = ", ".join(sorted(rules.quotas))
        owner = f"owner {job.owner}" if job.owner else "without an owner"
        return Rejection(job.name, f"{owner}: `quotas` of the policy name {owners} alone", hint="say `owner`")
    if not quota.lets(who):
        reason = f"owner {job.owner}: {who} is not one of its submitters, {', '.join(quota.submitters or ())}"
        return Rejection(job.name, reason, hint="`submitters` of the policy say who submits for which owner")
    mount_problem = forbidden_mount(job, rules.mounts)
    if mount_problem:
        return Rejection(job.name, mount_problem, hint="see `ml.jobs.mounts` of the policy")
    profile = without_brand(job.profile.lower())
    if not any(fnmatchcase(name, pattern) for name in (job.profile, profile) for pattern in quota.profiles):
        allowed = ", ".join(quota.profiles)
        return Rejection(job.name, f"profile {job.profile}: its owner may have {allowed}", hint="choose one of those")
    return None


def may_cancel(job: SubmittedJob, rules: JobRules, who: Submitter) -> Rejection | None:
    """Return why this person may not cancel the job, or None.

    The person who submitted it may, and everyone who may submit for its owner.
    """
    quota = rules.quota(job.job.owner)
    if quota is None or quota.lets(who) or job.by == str(who):
        return None
    reason = f"owner {job.job.owner}: {who} has not submitted it and is not one of its submitters"
    return Rejection(f"job {job.job.name}", reason, hint=f"ask {', '.join(quota.submitters or ())}, or {job.by}")


def forbidden_mount(job: ContainerJob, allowed: Sequence[str]) -> str:
    """Return the first mount outside of these directories, or an empty text."""
    inside = tuple(f"{directory}/" for directory in allowed)
    outside = next((mount.source for mount in job.mounts if not f"{mount.source}/".startswith(inside)), None)
    if outside is None:
        return ""
    return f"mounts {outside}: " + (f"mounts may lie in {', '.join(allowed)}" if allowed else "no mounts are allowed")


def _objections(
    jobs: Sequence[ContainerJob], rules: JobRules, submitted: Sequence[SubmittedJob], who: Submitter
) -> Iterator[Rejection]:
    new_names = {job.name for job in jobs}
    open_by_owner = Counter(
        job_before.job.owner
        for job_before in submitted
        if not job_before.ended and job_before.job.name not in new_names
    )
    new_by_owner = Counter(job.owner for job in jobs)
    for job in jobs:
        refusal = may_run(job, rules, who)
        if refusal is not None:
            yield refusal
    for owner, number in new_by_owner.items():
        quota = rules.quota(owner)
        if quota is not None and quota.waiting is not None and open_by_owner[owner] + number > quota.waiting:
            count = open_by_owner[owner]
            reason = f"jobs that have not ended: may have {quota.waiting}, has {count}, {number} more asked for"
            yield Rejection(owner or "(no owner)", reason, hint="wait for one to end, or gpuops job cancel one")
