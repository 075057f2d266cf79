"""The functions of submitted jobs: submit, list, find, cancel, their output, and one pass over them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from gpuops.errors import Refused, UsageError
from gpuops.execute.jobs.job_run import JobPass
from gpuops.execute.jobs.night_jobs import job_store
from gpuops.execute.jobs.nightly import guests_of
from gpuops.execute.jobs.store import JobStore, another_unended
from gpuops.model.workloads.job_record import JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.model.workloads.job_rules import JobRules, Submitter
from gpuops.plan.jobs.job_answers import JobDeed, JobListing, JobSubmission
from gpuops.plan.jobs.job_turns import may_cancel, objections, with_owners

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.execute.site import Site
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.workloads.job import ContainerJob
    from gpuops.plan.jobs.job_answers import JobsRun


def run_jobs(policy: Policy, site: Site, *, stop: bool = False) -> JobsRun:
    """One pass over the jobs; by day, over the VMs that are made for them too.

    Raises UsageError for a policy without `jobs`, Refused, NotConnected, StateDamaged.
    """
    from dataclasses import replace

    from gpuops.api.job_vms import tend_job_vms
    from gpuops.execute.jobs import nightly

    found = nightly.run_jobs(policy, site, stop=stop)
    return found if stop else replace(found, vms=tend_job_vms(policy, site))


def policy_for_jobs(policy: Policy | None, site: Site) -> Policy:
    """This one, or that of the last night. Raises UsageError where there is none, or it says nothing of jobs."""
    from gpuops.execute.runs.nights import remembered_policy

    if policy is None:
        with site.journal_to_read(site.vcenter.uuid) as journal:
            policy = remembered_policy(journal)
    if policy.jobs is None:
        hint = "put `jobs` into its `ml` (gpuops help job)"
        raise UsageError(f"policy {policy.name} says nothing of jobs", hint=hint)
    return policy


def job_submit(jobs: Sequence[ContainerJob], site: Site, policy: Policy | None = None) -> JobSubmission:
    """Submits these jobs, or says every reason against them. Asks vCenter for nothing but who it is.

    Raises UsageError without a policy, Refused where another job of that name has not ended, StateDamaged.
    """
    rules = policy_for_jobs(policy, site).jobs
    assert rules is not None, "policy_for_jobs has looked"
    store = job_store(site)
    who = submitter(store)
    jobs = with_owners(jobs, rules, who)
    rejections = objections(jobs, rules, store.read(), who)
    if rejections:
        return JobSubmission(rejections=rejections)
    found = store.submit(jobs, str(who), site.clock())
    return JobSubmission(found.added, found.existing)


def job_submission_foreseen(jobs: Sequence[ContainerJob], site: Site, policy: Policy | None = None) -> JobSubmission:
    """What `job_submit` would do now; those that it would add have no number (0). Changes nothing; raises the same."""
    rules = policy_for_jobs(policy, site).jobs
    assert rules is not None, "policy_for_jobs has looked"
    store = job_store(site)
    known, who = store.read(), submitter(store)
    jobs = with_owners(jobs, rules, who)
    rejections = objections(jobs, rules, known, who)
    if rejections:
        return JobSubmission(rejections=rejections)
    unended = {each.job.name: each for each in known if not each.ended}
    there = tuple(unended[job.name] for job in jobs if job.name in unended)
    other = next((each for each in there if each.job not in jobs), None)
    if other is not None:
        raise another_unended(other)
    now, new = site.clock(), (job for job in jobs if job.name not in unended)
    return JobSubmission(tuple(SubmittedJob(0, job, now, "") for job in new), there)


def submitter(store: JobStore) -> Submitter:
    """Who this process submits as."""
    from gpuops.execute.journal.journal import os_user

    return Submitter(os_user(), socket.gethostname(), store.role())


def job_queue(site: Site, policy: Policy | None = None) -> JobListing:
    """All jobs. With a policy, or that of the last night: in which order those that wait are served, and when.

    Changes nothing. Raises StateDamaged, NotConnected.
    """
    from gpuops.execute.rotation.queue_look import queue_look
    from gpuops.execute.runs.nights import last_policy
    from gpuops.execute.site import catalog_of
    from gpuops.model.vcenter.vm import PowerState
    from gpuops.plan.jobs.job_turns import job_turns, serving_order
    from gpuops.plan.rotation.nights.night_plan import NO_NIGHT

    jobs = job_store(site).read()
    if policy is None:
        with site.journal_to_read(site.vcenter.uuid) as journal:
            policy = last_policy(journal)
    if policy is None or policy.jobs is None or all(each.ended for each in jobs):
        return JobListing(jobs)
    inventory = site.vcenter.inventory()
    catalog, now = catalog_of(inventory), site.clock()
    turns = {
        turn.job.number: turn for turn in job_turns(jobs, policy.jobs, inventory, catalog, now, share=policy.fair_share)
    }
    order = serving_order(jobs, catalog, now, policy.fair_share)
    look = queue_look(policy, site)
    following = policy.next_night(look.at + timedelta(minutes=1))
    if look.night_plan.is_over and following is not None:
        look = queue_look(policy, site, following.opens)
    by_vm = {place.waits.vm.ref: place for place in look.places if place.waits.vm is not None}
    starts_at, reasons = dict[int, "datetime"](), dict[int, str]()
    waits = _waits_for_vms(jobs, policy, site, inventory, now)
    for number, turn in turns.items():
        place = by_vm.get(turn.vm.ref) if turn.vm is not None else None
        if place is None or turn.vm is None:
            reasons[number] = waits.get(number, turn.reason)
        elif turn.vm.power is PowerState.ON:
            if turn.job.waits:
                reasons[number] = f"{turn.vm.name} runs: the next `job run` starts it there, if a night started that VM"
        elif place.starts_at is not None:
            starts_at[number] = place.starts_at
        else:
            against = look.night_plan.refusals if place.reason == NO_NIGHT else ()
            reasons[number] = ": ".join((place.reason, *(each.line for each in against[:1])))
    places = {each.number: at for at, each in enumerate(order, 1)}
    return JobListing(jobs, turns, places, starts_at, reasons)


def _waits_for_vms(
    jobs: Sequence[SubmittedJob], policy: Policy, site: Site, inventory: Inventory, now: datetime
) -> Mapping[int, str]:
    """By number of the job, which VM of the template it waits for, or why none is made for it."""
    from gpuops.api.job_vms import with_devices
    from gpuops.execute.site import catalog_of
    from gpuops.plan.jobs.template_vms import fitted_plan, job_vm_plan

    rules = policy.jobs
    if rules is None or rules.template is None:
        return {}
    if policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    try:
        inventory = with_devices(site, rules.template, jobs, inventory)
        return fitted_plan(jobs, policy, inventory, catalog_of(inventory), now).plan.waits
    except UsageError as error:  # of its name: `job run` tells it too, and is refused nothing else
        plan = job_vm_plan(jobs, rules, inventory, catalog_of(inventory), now, policy.fair_share)
        return dict.fromkeys(plan.waits, error.message)


def job_called(name: str, site: Site) -> SubmittedJob:
    """The newest job of that name, or the one of that number. Raises UsageError."""
    jobs = job_store(site).read()
    found = [each for each in jobs if each.job.name == name] or [each for each in jobs if str(each.number) == name]
    if not found:
        raise UsageError(f"no job is called {name!r}", hint="gpuops job list shows them")
    return found[-1]


@dataclass(frozen=True, slots=True)
class JobOutput:
    """What is kept of what a job wrote."""

    job: SubmittedJob
    written: bytes
    cut_off: int
    """Bytes before that are not kept."""
    attempt_end: int
    """How many bytes its last attempt has written, as far as that is known."""

    def since(self, earlier: JobOutput) -> bytes:
        """What was written since an earlier look, as far as it is kept."""
        before, now = earlier.job.attempt, self.job.attempt
        same = before is not None and now is not None and before.number == now.number
        new = self.attempt_end - (earlier.attempt_end if same else 0)
        return self.written[-new:] if new > 0 else b""


def job_output(name: str, site: Site) -> JobOutput:
    """Of a job that runs it is read from its guest first, where that answers."""
    job, store = job_called(name, site), job_store(site)
    if job.state is JobState.RUNNING and job.attempt is not None and job.attempt.started:
        _followed(job, site)
        job = job_called(str(job.number), site)
    written, cut_off = store.output(job)
    return JobOutput(job, written, cut_off, store.output_end(job))


def job_to_cancel(name: str, site: Site) -> SubmittedJob:
    """The job, where this person may cancel it, or it is cancelled. Raises as `job_cancel`; changes nothing."""
    job = job_called(name, site)
    if job.state is JobState.CANCELLED:
        return job
    if job.ended:
        raise Refused(f"job {job.job.name} has ended: it is {job.state}", hint="gpuops job show shows how")
    against = may_cancel(job, _last_rules(site), submitter(job_store(site)))
    if against is not None:
        raise Refused(f"{against.subject}: {against.rule}", hint=against.hint)
    return job


def job_cancel(name: str, site: Site) -> tuple[SubmittedJob, tuple[JobDeed, ...]]:
    """Cancels a job: one that waits at once; one that runs is told to save its state, then stopped.

    Returns the job as it is then. One whose VM does not answer is cancelled by the next pass that reaches it.
    Raises UsageError, Refused for one that has ended and for others than the policy of the last night lets,
    JobChanged, NotConnected.
    """
    job, store, now = job_to_cancel(name, site), job_store(site), site.clock()
    if job.state is JobState.CANCELLED:
        return job, ()
    if job.waits:
        return store.add(job, JobRecord(JobEvent.CANCELLED, now)), ()
    if not job.cancel_wanted:
        job = store.add(job, JobRecord(JobEvent.CANCEL, now))
    deeds = _followed(job, site)
    return job_called(str(job.number), site), deeds


def _followed(job: SubmittedJob, site: Site) -> tuple[JobDeed, ...]:
    """A pass over this job alone, by the limits of the last night's policy."""
    checkpoint = _last_rules(site).checkpoint
    one_pass = JobPass(job_store(site), guests_of(site), site.vcenter.inventory(), site.clock, checkpoint)
    return tuple(one_pass.run([job]))


def _last_rules(site: Site) -> JobRules:
    """What the policy of the last night says of jobs; without one, nothing."""
    from gpuops.execute.runs.nights import last_policy

    with site.journal_to_read(site.vcenter.uuid) as journal:
        policy = last_policy(journal)
    return policy.jobs if policy is not None and policy.jobs is not None else JobRules(())
