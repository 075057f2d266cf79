"""The commands of `gpuops job` on one site: submit, list, find, cancel, output, one pass, and `job plan`."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from gpuops.errors import Refused, UsageError
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.jobs.dependencies import jobs_named
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.extras.jobs.job_run import JobPass
from gpuops.extras.jobs.job_store import JobStore, another_unended
from gpuops.extras.jobs.job_turns import (
    JobDeed,
    JobListing,
    JobSubmission,
    objections,
    reason_not_to_cancel,
    with_owners,
)
from gpuops.extras.jobs.nightly import guests_of, job_store, rules_of, started_tonight
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.job_rules import JobRules, Submitter

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.extras.jobs.job_plan import JobsAnswer
    from gpuops.extras.jobs.job_turns import JobsRun
    from gpuops.extras.jobs.template_vms import JobVmRoom
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.rejection import Rejection


def run_jobs(policy: Policy, site: Site, *, stop: bool = False) -> JobsRun:
    """Run one pass over the jobs; during the day also make and remove VMs for them.

    Raises UsageError for a policy without `jobs`, Refused, NotConnected, StateDamaged.
    """
    from gpuops.extras.jobs import nightly
    from gpuops.extras.jobs.job_vms import tend_job_vms

    job_pass = nightly.run_jobs(policy, site, stop=stop)
    return job_pass if stop else replace(job_pass, vms=tend_job_vms(policy, site))


def rules_for_jobs(policy: Policy | None, site: Site) -> JobRules:
    """Return the `jobs` of this policy, or of that of the last night. Raises UsageError if neither has jobs."""
    from gpuops.execute.runs import remembered_policy

    if policy is None:
        with site.journal_to_read(site.vcenter.uuid) as journal:
            policy = remembered_policy(journal)
    return rules_of(policy)


def job_submit(jobs: Sequence[ContainerJob], site: Site, policy: Policy | None = None) -> JobSubmission:
    """Submit these jobs, or return every reason against them. Reads nothing from vCenter but its id.

    Raises UsageError without a policy, Refused if another job of that name has not ended, StateDamaged.
    """
    store = job_store(site)
    jobs, who, rejections = _judge_jobs(jobs, site, policy, store.read())
    if rejections:
        return JobSubmission(rejections=rejections)
    submission = store.submit(jobs, str(who), site.clock())
    return JobSubmission(submission.added, submission.existing)


def job_submission_foreseen(jobs: Sequence[ContainerJob], site: Site, policy: Policy | None = None) -> JobSubmission:
    """Return what `job_submit` would return now, and raise the same errors, without storing a job.

    New jobs have the number 0, because numbers are given when a job is stored.
    """
    submitted = job_store(site).read()
    jobs, _, rejections = _judge_jobs(jobs, site, policy, submitted)
    if rejections:
        return JobSubmission(rejections=rejections)
    unended = {listed.job.name: listed for listed in submitted if not listed.ended}
    unended_jobs = tuple(unended[job.name] for job in jobs if job.name in unended)
    conflict = next((listed for listed in unended_jobs if listed.job not in jobs), None)
    if conflict is not None:
        raise another_unended(conflict)
    now, new = site.clock(), (job for job in jobs if job.name not in unended)
    return JobSubmission(tuple(SubmittedJob(0, job, now, "") for job in new), unended_jobs)


def _judge_jobs(
    jobs: Sequence[ContainerJob], site: Site, policy: Policy | None, submitted: Sequence[SubmittedJob]
) -> tuple[tuple[ContainerJob, ...], Submitter, tuple[Rejection, ...]]:
    """Return the jobs with their owners, who submits them, and every reason against them."""
    rules, who = rules_for_jobs(policy, site), submitter(job_store(site))
    jobs = with_owners(jobs, rules, who)
    return jobs, who, objections(jobs, rules, submitted, who)


def submitter(store: JobStore) -> Submitter:
    """Return the user, machine and database role that this process submits as."""
    from gpuops.execute.journal.journal import os_user

    return Submitter(os_user(), socket.gethostname(), store.role())


def job_queue(site: Site, policy: Policy | None = None) -> JobListing:
    """Return all jobs, and for each that has not ended its place in the order, its VM and when that is started.

    `policy`: None = that of the last night. Without any policy, or without open jobs, returns only the jobs. Changes
    nothing. Raises StateDamaged, NotConnected.
    """
    from gpuops.execute.rotation.next_night import queue_look
    from gpuops.execute.runs import last_policy
    from gpuops.extras.jobs.job_turns import job_turns, serving_order, started_outside_night
    from gpuops.model.vcenter.vm import PowerState
    from gpuops.plan.rotation.nights.night_plan import NO_NIGHT

    jobs = job_store(site).read()
    if policy is None:
        with site.journal_to_read(site.vcenter.uuid) as journal:
            policy = last_policy(journal)
    if policy is None or policy.jobs is None or all(listed.ended for listed in jobs):
        return JobListing(jobs)
    inventory = site.vcenter.inventory()
    catalog, now = catalog_of(inventory), site.clock()
    turns = {
        turn.job.number: turn for turn in job_turns(jobs, policy.jobs, inventory, catalog, now, share=policy.fair_share)
    }
    order = serving_order(jobs, catalog, now, policy.fair_share)
    look = queue_look(policy, site)
    # if this night is over, show when the VMs start in the next one
    next_night = policy.next_night(look.at + timedelta(minutes=1))
    if look.night_plan.is_over and next_night is not None:
        look = queue_look(policy, site, next_night.opens)
    by_vm = {place.waits.vm.ref: place for place in look.places if place.waits.vm is not None}
    starts_at, reasons = dict[int, "datetime"](), dict[int, str]()
    vm_waits = _waits_for_vms(jobs, policy, site, inventory, now)
    refs_started_tonight = {vm.ref for vm in started_tonight(policy, inventory, site, now)}
    for number, turn in turns.items():
        place = by_vm.get(turn.vm.ref) if turn.vm is not None else None
        if place is None or turn.vm is None:
            reasons[number] = vm_waits.get(number, turn.reason)
        elif turn.vm.power is PowerState.ON:
            if turn.job.waits and turn.vm.ref in refs_started_tonight:
                reasons[number] = f"the next `job run` starts it in {turn.vm.name}"
            elif turn.job.waits:
                reasons[number] = started_outside_night(turn.vm)
        elif place.starts_at is not None:
            starts_at[number] = place.starts_at
        else:
            # NO_NIGHT says only that there is no night; the first refusal says why
            refusals = look.night_plan.refusals if place.reason == NO_NIGHT else ()
            reasons[number] = ": ".join((place.reason, *(listed.line for listed in refusals[:1])))
    places = {listed.number: at for at, listed in enumerate(order, 1)}
    return JobListing(jobs, turns, places, starts_at, reasons)


def _waits_for_vms(
    jobs: Sequence[SubmittedJob], policy: Policy, site: Site, inventory: Inventory, now: datetime
) -> Mapping[int, str]:
    """Return by job number which VM of the template the job waits for, or why no VM is made for it."""
    from gpuops.extras.jobs.job_vms import with_devices
    from gpuops.extras.jobs.template_vms import fitted_plan, job_vm_plan

    rules = policy.jobs
    if rules is None or rules.template is None:
        return {}
    if policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    try:
        inventory = with_devices(site, rules.template, jobs, inventory)
        return fitted_plan(jobs, policy, inventory, catalog_of(inventory), now).plan.waits
    except UsageError as error:  # an error in the template: `job run` reports it too, and still runs everything else
        plan = job_vm_plan(jobs, rules, inventory, catalog_of(inventory), now, policy.fair_share)
        return dict.fromkeys(plan.waits, error.message)


def jobs_called(name: str, site: Site) -> tuple[SubmittedJob, ...]:
    """Return the newest job with that name, all tasks of the array, or the job with that number. Raises UsageError."""
    jobs = job_store(site).read()
    named = jobs_named(name, jobs) or tuple(listed for listed in jobs if str(listed.number) == name)
    if not named:
        raise UsageError(f"no job is called {name!r}", hint="gpuops job list shows all jobs")
    return named


def job_called(name: str, site: Site) -> SubmittedJob:
    """Return the newest job with that name, or the one with that number. Raises UsageError."""
    named = jobs_called(name, site)
    if len(named) > 1:
        raise UsageError(f"{name} is an array of {len(named)} jobs", hint=f"name one of them: {named[0].job.name}")
    return named[0]


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The stored part of a job's output."""

    job: SubmittedJob
    written: bytes
    cut_off: int
    """How many earlier bytes are not stored."""
    attempt_end: int
    """How many bytes its last attempt has written, as far as that is known."""

    def since(self, earlier: JobOutput) -> bytes:
        """Return the output since an earlier read, as far as it is stored."""
        before, now = earlier.job.attempt, self.job.attempt
        same = before is not None and now is not None and before.number == now.number
        new = self.attempt_end - (earlier.attempt_end if same else 0)
        return self.written[-new:] if new > 0 else b""


def job_output(name: str, site: Site) -> JobOutput:
    """Return the output of a job; while it runs, read it from its guest first, if that answers."""
    job, store = job_called(name, site), job_store(site)
    if job.state is JobState.RUNNING and job.attempt is not None and job.attempt.started:
        _follow_jobs([job], site)
        job = job_called(str(job.number), site)
    written, cut_off = store.output(job)
    return JobOutput(job, written, cut_off, store.output_end(job))


def jobs_to_cancel(name: str, site: Site) -> tuple[SubmittedJob, ...]:
    """Return the job, or the tasks of the array, if this user may cancel it or it is cancelled already.

    Tasks that have ended are left out unless all have. Changes nothing. Raises UsageError, and Refused as `job_cancel`.
    """
    jobs = jobs_called(name, site)
    unended = tuple(job for job in jobs if not job.ended)
    if not unended and any(job.state is JobState.CANCELLED for job in jobs):
        return jobs
    if not unended:
        reason = f"it is {jobs[0].state}" if len(jobs) == 1 else "so have all its tasks"
        raise Refused(f"job {name} has ended: {reason}", hint="gpuops job show shows its history")
    # tasks of an array have one owner and one submitter
    rejection = reason_not_to_cancel(unended[0], _last_rules(site), submitter(job_store(site)))
    if rejection is not None:
        raise Refused(f"{rejection.subject}: {rejection.rule}", hint=rejection.hint)
    return unended


def job_cancel(name: str, site: Site) -> tuple[tuple[SubmittedJob, ...], tuple[JobDeed, ...]]:
    """Cancel a job, or all tasks of an array. Waiting jobs are cancelled at once; running ones save their state first.

    Returns the jobs with their new states, and what was done in VMs. If a VM does not answer, the next `gpuops job run`
    that reaches it cancels the job. Raises UsageError, Refused for a job that has ended and for users that the policy
    of the last night does not permit, JobChanged, NotConnected.
    """
    jobs, store, now = jobs_to_cancel(name, site), job_store(site), site.clock()
    running = list[SubmittedJob]()
    for job in jobs:
        if job.waits:
            store.add(job, JobRecord(JobEvent.CANCELLED, now))
        elif not job.ended:
            # a second cancel of a running job adds no record, but follows it again
            running.append(job if job.cancel_wanted else store.add(job, JobRecord(JobEvent.CANCEL, now)))
    deeds = _follow_jobs(running, site) if running else ()
    numbers = {job.number for job in jobs}
    return tuple(job for job in store.read() if job.number in numbers), deeds


def _follow_jobs(jobs: Sequence[SubmittedJob], site: Site) -> tuple[JobDeed, ...]:
    """Run a pass over these jobs only, with the limits of the last night's policy."""
    checkpoint = _last_rules(site).checkpoint
    one_pass = JobPass(job_store(site), guests_of(site), site.vcenter.inventory(), site.clock, checkpoint)
    return tuple(one_pass.run(jobs))


def _last_rules(site: Site) -> JobRules:
    """Return the job rules of the last night's policy; empty ones without such a policy."""
    from gpuops.execute.runs import last_policy

    with site.journal_to_read(site.vcenter.uuid) as journal:
        policy = last_policy(journal)
    return policy.jobs if policy is not None and policy.jobs is not None else JobRules(())


def job_plan(
    jobs: tuple[ContainerJob, ...], site: Site, policy: Policy | None = None, mounts: tuple[str, ...] = ()
) -> JobsAnswer:
    """Return a GPU for each of these jobs, and how long it takes there. Changes nothing.

    With a policy: for its current or next night, in which its desktops are suspended. `mounts`: directories that may be
    mounted; () = those of the policy. Raises Refused if the policy's windows have no night within a year; VmNotFound,
    VmAmbiguous for the VM in `like` of a job; StateDamaged.
    """
    from gpuops.extras.jobs.job_plan import JobsQuestion, planned_jobs
    from gpuops.plan.capacity.capacity_request import with_suspended

    inventory = site.vcenter.inventory()
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    inventory = site.with_vgpus(inventory)
    inventory = site.hosts.with_settings(inventory, [host.ref for host in inventory.hosts.values() if host.gpus])
    catalog = catalog_of(inventory)
    alike = {job.name: inventory.find_vm(job.like) for job in jobs if job.like is not None}
    histories = _histories(site, inventory, list(alike.values()))
    night, desktops = None, list[Vm]()
    if policy is not None:
        from gpuops.execute.rotation.rotation import survey_desktops

        now = site.clock()
        night = policy.night_at(now) or policy.next_night(now)
        if night is None and policy.windows:
            raise Refused(
                "the policy has no night within a year", hint="change its `windows`: none of them opens within a year"
            )
        desktops += survey_desktops(policy, site, inventory).free_to_take
    question = JobsQuestion(
        jobs,
        desktops=None if policy is None else len(desktops),
        night=night,
        mounts=mounts or (policy.jobs.mounts if policy is not None and policy.jobs is not None else ()),
        histories=histories,
        alike={name: vm.ref for name, vm in alike.items()},
    )
    answer = planned_jobs(question, with_suspended(inventory, desktops, catalog), catalog)
    return answer if policy is None else replace(answer, vms=_vm_room(jobs, policy, site, inventory))


def _vm_room(jobs: tuple[ContainerJob, ...], policy: Policy, site: Site, inventory: Inventory) -> JobVmRoom | None:
    """Return which of these jobs would get an existing or a new VM; None if the policy has no `jobs`."""
    from gpuops.extras.jobs.job_vms import with_devices
    from gpuops.extras.jobs.template_vms import job_vm_room

    rules = policy.jobs
    if rules is None:
        return None
    store = job_store(site)
    submitted = store.read()
    if rules.template is not None:
        inventory = with_devices(site, rules.template, submitted, inventory)
    catalog, now = catalog_of(inventory), site.clock()
    return job_vm_room(jobs, submitted, submitter(store), policy, rules, inventory, catalog, now)


def _histories(site: Site, inventory: Inventory, alike: list[Vm]) -> Mapping[str, float]:
    """Return by VM (ref) the share of time, 0 to 1, that it keeps its GPU busy while it works, by the measurements.

    For the VMs `alike` and all running VMs that have one time-sliced vGPU. VMs without a history are left out.
    """
    from gpuops.extras.sizing.size_request import sharing_groups
    from gpuops.extras.sizing.sizing import known_history
    from gpuops.model.vcenter.vm import PowerState

    catalog = catalog_of(inventory)
    running = [vm for vm in inventory.vms.values() if vm.power is PowerState.ON]
    vms_by_ref = {vm.ref: vm for vm in (*alike, *running) if len(vm.vgpus) == 1}
    vms = [
        vm
        for vm in vms_by_ref.values()
        if (facts := catalog.profile(vm.profiles[0])) is not None and not facts.mig_backed
    ]
    history = known_history(site.measurements_store, inventory, vms, sharing_groups(vms, inventory, catalog))
    if history is None:
        return {}
    measured = [vm for vm in vms if vm.name not in history.left_out]
    return {vm.ref: float(share) for vm, share in zip(measured, history.shares.working, strict=True)}
