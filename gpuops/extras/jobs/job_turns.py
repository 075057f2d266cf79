"""Which jobs are admitted, in which order they are served, in which VM, and to whose hours they count. Pure.

A policy says who may submit jobs, with which mounts and profiles, and how many jobs an owner may have.

Between owners the fair share decides (`advise/fair_share`): GPU-hours of their jobs count less the longer ago they
were, half after one half-life, a week unless the policy's `fair_share` says another; its weights are those of the team
of that name. Owners with equal use are served in the order of submission. Among the jobs of one owner the higher
priority comes first, then the job that has waited longer: a priority gives no advantage over other owners.

A job that must wait for others (`dependencies`) gets no VM before they have finished.

A VM runs one job at a time. An interrupted job continues in its VM, which has its files, as long as that VM exists. A
job whose outcome is still unknown also stays in its VM and comes before all others: gpuops looks at it first.

    vision used 8 GPU-hours recently, audio none: audio's first job gets the first VM that it fits, then vision's first

The hours of a VM are divided between the owners whose jobs ran in it in one night. The journal records one owner of a
VM when a night starts it, the owner of the first job. Time without a running job, such as the start of the guest, the
pull of images and the time between two jobs, counts for that owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final

from gpuops.advise.gpu_hours import Wish, fair_order, use_of_period
from gpuops.errors import report_exit_code
from gpuops.extras.jobs.dependencies import dependency_objections, unmet_dependencies
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobState, SubmittedJob
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.vgpu import without_brand
from gpuops.model.nights.fair_share import NO_OWNER, WEEK, FairShare
from gpuops.model.nights.history import HeldPeriod, JobTime, PastNight, PastVm
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Night
from gpuops.model.workloads.job_rules import JobRules, Submitter
from gpuops.plan.core.rejection import Rejection


def with_owners(jobs: Sequence[ContainerJob], rules: JobRules, who: Submitter) -> tuple[ContainerJob, ...]:
    """Return the jobs; jobs without an owner get the one for whom this person may submit."""
    owner = rules.owner_of(who)
    return tuple(job if job.owner else replace(job, owner=owner) for job in jobs)


def reason_not_to_run(job: ContainerJob, rules: JobRules, who: Submitter) -> Rejection | None:
    """Return why this policy does not allow the job (owner, submitter, mounts, profile), or None if it does.

    Called again for each night, because the job may have been submitted under another policy.
    """
    quota = rules.quota(job.owner)
    if quota is None:
        owners = ", ".join(sorted(rules.quotas))
        owner = f"owner {job.owner}" if job.owner else "without an owner"
        return Rejection(
            job.name, f"{owner}: the policy has `quotas` only for {owners}", hint="set `owner` to one of them"
        )
    if not quota.lets(who):
        reason = f"owner {job.owner}: {who} is not one of its submitters, {', '.join(quota.submitters or ())}"
        return Rejection(job.name, reason, hint="`submitters` in the policy names who may submit for which owner")
    mount_problem = forbidden_mount(job, rules.mounts)
    if mount_problem:
        return Rejection(job.name, mount_problem, hint="choose a directory in `ml.jobs.mounts` of the policy")
    allowed_secrets = rules.secrets if quota.secrets is None else quota.secrets
    secret_problem = _first_outside("secrets", job.secrets.values(), allowed_secrets)
    if secret_problem:
        return Rejection(job.name, secret_problem, hint="choose a file below `ml.jobs.secrets` of the policy")
    # patterns may name the profile as the job does, or without `nvidia_`
    profile = without_brand(job.profile.lower())
    if not any(fnmatchcase(name, pattern) for name in (job.profile, profile) for pattern in quota.profiles):
        allowed = ", ".join(quota.profiles)
        return Rejection(
            job.name, f"profile {job.profile}: its owner may only use {allowed}", hint="choose one of these profiles"
        )
    return None


def reason_not_to_cancel(job: SubmittedJob, rules: JobRules, who: Submitter) -> Rejection | None:
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
    return _first_outside("mounts", (mount.source for mount in job.mounts), allowed)


def _first_outside(what: str, paths: Iterable[str], allowed: Sequence[str]) -> str:
    inside = tuple(f"{directory.rstrip('/')}/" for directory in allowed)
    outside = next((path for path in paths if not f"{path}/".startswith(inside)), None)
    if outside is None:
        return ""
    return f"{what} {outside}: " + (f"{what} may lie in {', '.join(allowed)}" if allowed else f"no {what} are allowed")


def objections(
    jobs: Sequence[ContainerJob], rules: JobRules, submitted: Sequence[SubmittedJob], who: Submitter
) -> tuple[Rejection, ...]:
    """Return all reasons not to submit these jobs: those of `reason_not_to_run`, and too many open jobs of an owner.

    `submitted`: the jobs that exist. One with the name of a new job is not counted a second time.
    """
    # the first task of an array stands for all: they differ only in their index
    distinct_jobs = [job for job in jobs if job.task is None or job.task.index == 0]
    reasons = [refusal for job in distinct_jobs if (refusal := reason_not_to_run(job, rules, who)) is not None]
    reasons += dependency_objections(jobs, submitted)
    new_names = {job.name for job in jobs}
    open_by_owner = Counter(
        listed.job.owner for listed in submitted if not listed.ended and listed.job.name not in new_names
    )
    for owner, number in Counter(job.owner for job in jobs).items():
        quota = rules.quota(owner)
        if quota is not None and quota.waiting is not None and open_by_owner[owner] + number > quota.waiting:
            count = open_by_owner[owner]
            reason = (
                f"jobs that have not ended: at most {quota.waiting} allowed, {count} exist, {number} more submitted"
            )
            hint = "wait until one ends, or cancel one with gpuops job cancel"
            reasons.append(Rejection(owner or "(no owner)", reason, hint=hint))
    return tuple(reasons)


_MOST_OF_A_NIGHT: Final = 0.8
"""Share of a night that a job may need to begin in it; our own figure."""


@dataclass(frozen=True, slots=True)
class JobTurn:
    """A job and the VM that it gets, or why it gets none."""

    job: SubmittedJob
    vm: Vm | None
    reason: str = ""
    lacks_vm: bool = False
    """Whether it only lacks a VM."""


def serving_order(
    submitted: Sequence[SubmittedJob], catalog: Catalog, now: datetime, share: FairShare | None = None
) -> tuple[SubmittedJob, ...]:
    """Return the waiting jobs in the order in which they are served: owners by fair share of GPU hours.

    `share`: the weights of teams and the half-life of use; None = equal weights, one week. Of one owner, jobs that must
    wait for others come last.
    """
    blocked = unmet_dependencies(submitted)
    queued = [job for job in submitted if job.waits]
    by_team = dict[str, list[SubmittedJob]]()  # a team's first job is the last of its list, for `pop`
    for job in sorted(queued, key=lambda job: (job.number not in blocked, job.job.priority, -job.number)):
        by_team.setdefault(_team_name(job.job), []).append(job)
    # `fair_order` serves owners with equal use in this order: an owner's jobs by priority, each in the place of a job
    # of the same owner, so that a priority moves no job of another owner
    waiting = [by_team[_team_name(job.job)].pop() for job in queued]
    half_life = share.half_life if share is not None else WEEK
    used_hours = dict[str, float]()
    for job in submitted:
        for _, period in held_periods(job):
            use = use_of_period(period.until(now), gpus_of_job(job.job, catalog), now, half_life)
            used_hours[_team_name(job.job)] = used_hours.get(_team_name(job.job), 0.0) + use.decayed
    wishes = [Wish(_team_name(job.job), _remaining_hours(job) * gpus_of_job(job.job, catalog)) for job in waiting]
    order = fair_order(wishes, used_hours, lambda team: share.team(team).weight if share is not None else 1.0)
    return tuple(waiting[at] for at in order)


def job_turns(
    submitted: Sequence[SubmittedJob],
    rules: JobRules,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
    *,
    share: FairShare | None = None,
    usable: Collection[str] | None = None,
    may_begin: Callable[[SubmittedJob], bool] = lambda _: True,
) -> tuple[JobTurn, ...]:
    """Return each running or waiting job with its VM, or with the reason why it gets none now.

    Running jobs come first, then the waiting ones in the order in which they are served. `usable`: VMs (refs) that may
    run a job; None = all that the policy names. `may_begin`: whether a waiting job may begin now; if not, its VM goes
    to the next job.
    """
    all_vms = job_vms(rules, inventory)
    vms = [vm for vm in all_vms if usable is None or vm.ref in usable]
    turns, taken_refs = list[JobTurn](), set[str]()
    running: Counter[str | None] = Counter()
    for job in submitted:  # a job that may be running keeps its VM
        if job.state is JobState.RUNNING:
            running[job.job.owner] += 1
            own_vm = vm_of(job, inventory)
            if own_vm is not None:
                taken_refs.add(own_vm.ref)
            turns.append(JobTurn(job, own_vm, "" if own_vm is not None else "its VM is not in vCenter any more"))
    blocked = unmet_dependencies(submitted)
    for job in serving_order(submitted, catalog, now, share):
        if job.number in blocked:
            turns.append(JobTurn(job, None, blocked[job.number]))
            continue
        if not may_begin(job):
            turns.append(JobTurn(job, None, "too little of the night is left for it"))
            continue
        refusal = reason_not_to_run(job.job, rules, Submitter.parse(job.by))
        quota = rules.quota(job.job.owner)
        # without a quota `reason_not_to_run` has refused it; the second test is for mypy
        if refusal is not None or quota is None:
            turns.append(JobTurn(job, None, refusal.rule if refusal is not None else ""))
            continue
        if quota.running is not None and running[job.job.owner] >= quota.running:
            turns.append(JobTurn(job, None, f"its owner may run at most {quota.running} at once"))
            continue
        own_vm = vm_of(job, inventory)  # an interrupted job continues in its VM, which has its checkpoint
        free = (vm for vm in vms if vm.ref not in taken_refs and (own_vm is None or vm.ref == own_vm.ref))
        chosen = next((vm for vm in free if fits(job.job, vm)), None)
        if chosen is None:
            turns.append(JobTurn(job, None, _reason_without_vm(job.job, own_vm, all_vms, vms), lacks_vm=own_vm is None))
            continue
        taken_refs.add(chosen.ref)
        running[job.job.owner] += 1
        turns.append(JobTurn(job, chosen))
    return tuple(turns)


def least_run(job: SubmittedJob, rules: JobRules, night: Night | None) -> timedelta:
    """Return the least time that this night must still have for the job to begin in it.

    A job that may not be resumed waits for a night that is long enough for its remaining time. If no night is long
    enough, most of a night is sufficient: it may be faster than stated, and would otherwise wait forever.
    """
    if job.job.resumes > job.interruptions or night is None:
        return rules.minimum_run
    remaining = max(rules.minimum_run, job.job.run_time - job.ran)
    return min(remaining, (night.closes - night.opens) * _MOST_OF_A_NIGHT)


def queue_entries(
    turns: Iterable[JobTurn], policy_entry: QueuedVm, rules: JobRules, night: Night | None
) -> tuple[QueuedVm, ...]:
    """Return an entry in the queue of a night for the VM of each job that has one.

    `policy_entry`: the entry of the policy that stands for the VMs of jobs; its settings are copied. Also includes VMs
    of running jobs: such a VM must run before gpuops can see how its job ended.
    """
    return tuple(
        QueuedVm(
            f"moid:{turn.vm.ref}",
            relocate=policy_entry.relocate,
            priority=policy_entry.priority,
            minimum_run=least_run(turn.job, rules, night) if turn.job.waits else rules.minimum_run,
            owner=turn.job.job.owner,
        )
        for turn in turns
        if turn.vm is not None
    )


def job_vms(rules: JobRules, inventory: Inventory) -> list[Vm]:
    """Return the VMs for jobs, by name: those that the policy names, with vGPUs of one profile."""
    job_entry = QueuedVm(vms=rules.names)
    vms = [
        vm
        for vm in inventory.vms.values()
        if not vm.template and len(set(vm.profiles)) == 1 and (job_entry.names_vm(vm) or job_entry.fits(vm.name))
    ]
    return sorted(vms, key=lambda vm: (vm.name, vm.ref))


def vm_of(job: SubmittedJob, inventory: Inventory) -> Vm | None:
    """Return the VM of its last attempt; None = there was none, or the VM was removed."""
    attempt = job.attempt
    if attempt is None:
        return None
    return next((vm for vm in inventory.vms.values() if attempt.vm in (vm.instance_uuid, vm.ref)), None)


def fits(job: ContainerJob, vm: Vm) -> bool:
    """Return whether the VM has the requested vGPUs, vCPUs and memory."""
    profile = without_brand("_".join(job.profile.split()))
    return (
        len(vm.profiles) == job.gpus
        and without_brand(vm.profiles[0]) == profile
        and (vm.vcpus or 0) >= job.vcpus
        and (vm.memory_mib or 0) >= job.memory_mib
    )


def gpus_of_job(job: ContainerJob, catalog: Catalog) -> float:
    """Return its fraction of a GPU, or how many it has; a vGPU counts 1 if the catalogue does not know its profile."""
    profile = without_brand("_".join(job.profile.split()))
    facts = catalog.profile(job.profile) or catalog.profile(f"nvidia_{profile}")
    return job.gpus * (1.0 if facts is None or not facts.max_per_gpu else 1 / facts.max_per_gpu)


def held_periods(job: SubmittedJob) -> Iterator[tuple[str, HeldPeriod]]:
    """Yield for each attempt of the job that was seen to run: its VM, as in `Attempt.vm`, and when it held the GPU.

    The period of an attempt that may still run has no end.
    """
    vm = ""
    started_at: datetime | None = None
    for record in job.records:
        if record.event is JobEvent.BEGUN:
            vm, started_at = record.vm, None
        elif record.event is JobEvent.STARTED:
            started_at = record.at
        elif started_at is not None and record.event in (JobEvent.INTERRUPTED, JobEvent.ENDED, JobEvent.CANCELLED):
            ends = record.at if record.ran is None else min(record.at, started_at + record.ran)
            # the end is not before the start: two machines with different clocks may have written the records
            yield vm, HeldPeriod(started_at, max(started_at, ends))
            started_at = None
    if started_at is not None:
        yield vm, HeldPeriod(started_at)


def _remaining_hours(job: SubmittedJob) -> float:
    return max(job.job.run_time - job.ran, timedelta(minutes=1)) / timedelta(hours=1)


def _team_name(job: ContainerJob) -> str:
    return job.owner or NO_OWNER


def started_outside_night(vm: Vm) -> str:
    """Return why a job waits for a VM that runs although no night has started it."""
    return f"{vm.name} runs already, and no night started it: shut it down, so that a night can start it for the job"


def _reason_without_vm(job: ContainerJob, own_vm: Vm | None, vms: Sequence[Vm], usable: Sequence[Vm]) -> str:
    """Return why none of the usable VMs for jobs is free for this job. `vms`: all VMs for jobs."""
    usable_refs = {vm.ref for vm in usable}
    suitable = [vm for vm in vms if fits(job, vm) and (own_vm is None or vm.ref == own_vm.ref)]
    unusable = [vm for vm in suitable if vm.ref not in usable_refs]
    # a VM that runs but was not started by a night would never be free: say this rather than "waits"
    running = next((vm for vm in unusable if vm.power is PowerState.ON), None)
    if suitable and len(unusable) == len(suitable):
        return (
            started_outside_night(running) if running is not None else f"waits until a night starts {suitable[0].name}"
        )
    if own_vm is not None:
        return f"it must continue in {own_vm.name}, which runs another job or is not a VM for jobs any more"
    if suitable:
        return "every VM that it fits has another job"
    vgpus = "one vGPU" if job.gpus == 1 else f"{job.gpus} vGPUs"
    return f"no VM for jobs has {vgpus} {job.profile}, {job.vcpus} vCPUs and {job.memory_mib} MiB"


def with_job_times(nights: Iterable[PastNight], submitted: Sequence[SubmittedJob]) -> tuple[PastNight, ...]:
    """Return these nights of one vCenter, with the times of jobs added to their ML VMs."""
    by_vm: dict[str, list[tuple[str | None, HeldPeriod]]] = {}
    for job in submitted:
        for vm, period in held_periods(job):
            by_vm.setdefault(vm, []).append((job.job.owner, period))
    return tuple(
        replace(night, vms=tuple(_with_job_times(vm, by_vm) if vm.is_ml else vm for vm in night.vms))
        for night in nights
    )


def _with_job_times(vm: PastVm, by_vm: Mapping[str, Sequence[tuple[str | None, HeldPeriod]]]) -> PastVm:
    """Return the VM of a past night with the times of the jobs that ran in it; `by_vm` has them by uuid or ref."""
    if vm.owner is None:
        return vm
    runs = [
        (owner, period)
        for name in (vm.uuid, vm.ref)
        for owner, period in by_vm.get(name or "", ())
        if any(_begins_before(period, held) and _begins_before(held, period) for held in vm.held)  # they overlap
    ]
    # The night records the owner of the VM's first job, or the VM's own owner if that job has none. Time of jobs
    # without owner counts for the VM's own owner, but not for the owner of a job.
    is_owner_of_job = any(owner == vm.owner.owner for owner, _ in runs)
    times = (
        JobTime(NotedOwner(vm.owner.by, owner) if owner is not None else None, period.begins, period.ends)
        for owner, period in runs
        if period.begins is not None and (owner is not None or is_owner_of_job)
    )
    return replace(vm, jobs=tuple(sorted(times, key=lambda job_time: job_time.begins)))


def _begins_before(first: HeldPeriod, second: HeldPeriod) -> bool:
    """Return whether the first period begins before the second ends, as far as both moments are known."""
    return first.begins is None or second.ends is None or first.begins < second.ends


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
    waiting: tuple[JobTurn, ...] = ()
    """Jobs that get no VM now, each with the reason."""

    @property
    def exit_code(self) -> int:
        """4 if a guest refused an action, or a VM of the template could not be created or removed."""
        failed = any(deed.failed for deed in self.deeds) or any(deed.failed for deed in self.vms)
        return report_exit_code(partly=failed)
