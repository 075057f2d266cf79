"""Whether jobs may be submitted under a policy: by whom, mounts, profiles, and how many an owner may have. Pure."""

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
    """The jobs; those that say no owner are the one's for whom this person may submit."""
    owner = rules.owner_of(who)
    return tuple(job if job.owner else replace(job, owner=owner) for job in jobs)


def objections(
    jobs: Sequence[ContainerJob], rules: JobRules, submitted: Sequence[SubmittedJob], who: Submitter
) -> tuple[Rejection, ...]:
    """Every reason against these jobs beside those that were submitted; one of the same name is counted once."""
    return tuple(_objections(jobs, rules, submitted, who))


def may_run(job: ContainerJob, rules: JobRules, who: Submitter) -> Rejection | None:
    """What the policy of the night has against it; the one that it was submitted under may have been another."""
    quota = rules.quota(job.owner)
    if quota is None:
        known = ", ".join(sorted(rules.quotas))
        owner = f"owner {job.owner}" if job.owner else "without an owner"
        return Rejection(job.name, f"{owner}: `quotas` of the policy name {known} alone", hint="say `owner`")
    if not quota.lets(who):
        others = f"owner {job.owner}: {who} is none of its submitters, {', '.join(quota.submitters or ())}"
        return Rejection(job.name, others, hint="`submitters` of the policy say who submits for which owner")
    wrong = forbidden_mount(job, rules.mounts)
    if wrong:
        return Rejection(job.name, wrong, hint="see `ml.jobs.mounts` of the policy")
    profile = without_brand(job.profile.lower())
    if not any(fnmatchcase(name, wanted) for name in (job.profile, profile) for wanted in quota.profiles):
        allowed = ", ".join(quota.profiles)
        return Rejection(job.name, f"profile {job.profile}: its owner may have {allowed}", hint="choose one of those")
    return None


def may_cancel(job: SubmittedJob, rules: JobRules, who: Submitter) -> Rejection | None:
    """What the policy has against it: who submitted a job may, and who may submit for its owner."""
    quota = rules.quota(job.job.owner)
    if quota is None or quota.lets(who) or job.by == str(who):
        return None
    others = f"owner {job.job.owner}: {who} has not submitted it and is none of its submitters"
    return Rejection(f"job {job.job.name}", others, hint=f"ask {', '.join(quota.submitters or ())}, or {job.by}")


def forbidden_mount(job: ContainerJob, allowed: Sequence[str]) -> str:
    """The first mount that lies in no directory of these; empty = all do."""
    inside = tuple(f"{each}/" for each in allowed)
    wrong = next((each.source for each in job.mounts if not f"{each.source}/".startswith(inside)), None)
    if wrong is None:
        return ""
    return f"mounts {wrong}: " + (f"mounts may lie in {', '.join(allowed)}" if allowed else "no mounts are allowed")


def _objections(
    jobs: Sequence[ContainerJob], rules: JobRules, submitted: Sequence[SubmittedJob], who: Submitter
) -> Iterator[Rejection]:
    new = {job.name for job in jobs}
    had = Counter(each.job.owner for each in submitted if not each.ended and each.job.name not in new)
    wanted = Counter(job.owner for job in jobs)
    for job in jobs:
        refused = may_run(job, rules, who)
        if refused is not None:
            yield refused
    for owner, number in wanted.items():
        quota = rules.quota(owner)
        if quota is not None and quota.waiting is not None and had[owner] + number > quota.waiting:
            rule = f"jobs that have not ended: may have {quota.waiting}, has {had[owner]}, {number} more asked for"
            yield Rejection(owner or "(no owner)", rule, hint="wait for one to end, or gpuops job cancel one")
