"""The passes over jobs that nights make: one called by a clock, and one before a return.

Before a return, all jobs are stopped in parallel, within the time of one checkpoint. That time is cut short if the
desktops would otherwise be back too late. After it the return no longer waits for a job, nor for a guest or database
that hangs: the job ends when the return stops its VM, like every ML VM. Errors of jobs are reported, and the return
continues.

Adds the VMs of waiting jobs to the queue of a night, and the times of jobs to past nights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, StateDamaged, UsageError
from gpuops.execute.rotation.night_extension import NightExtension
from gpuops.execute.runs import NightVms, policies_of
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.site.guest_work import guest_work
from gpuops.execute.state.lock import rotating
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.extras.jobs.job import JobState, SubmittedJob
from gpuops.extras.jobs.job_run import STOP_GRACE, JobGuests, JobPass
from gpuops.extras.jobs.job_store import JobStore
from gpuops.extras.jobs.job_turns import JobDeed, JobsRun, JobTurn, job_turns, least_run, queue_entries, with_job_times
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.job_rules import JobRules
from gpuops.plan.rotation.returns.return_time import Durations, Load, ReturnTime, longest_checkpoint_s, night_due
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms, vms_of


def job_store(site: Site) -> JobStore:
    """Return the store of the jobs of this vCenter."""
    return JobStore(site.vcenter.uuid, site.state_dir, site.journal_url)


def with_jobs(policy: Policy, site: Site) -> Policy:
    """Return the policy with the VMs that jobs get tonight added to its queue. The policy's stored text is not changed.

    Raises StateDamaged: a night that cannot read its jobs takes no desktops.
    """
    queue_entry = next((queued for queued in policy.ml if queued.for_jobs), None)
    if policy.jobs is None or queue_entry is None:
        return policy
    submitted = job_store(site).read()
    if all(job.ended for job in submitted):
        return policy
    inventory, now = site.vcenter.inventory(), site.clock()
    turns = job_turns(submitted, policy.jobs, inventory, catalog_of(inventory), now, share=policy.fair_share)
    night = policy.night_at(now) or policy.next_night(now)
    return replace(policy, ml=(*policy.ml, *queue_entries(turns, queue_entry, policy.jobs, night)))


def by_owners_of_jobs(nights: Iterable[PastNight], site: Site) -> tuple[PastNight, ...]:
    """Return these nights, in the same order, with the times of the jobs that ran in their ML VMs.

    Reads the jobs only of vCenters whose ML VMs have owners, because only such VMs get times of jobs. Raises
    StateDamaged.
    """
    nights = tuple(nights)
    for vcenter in sorted({night.vcenter for night in nights if any(vm.owner is not None for vm in night.ml)}):
        submitted = JobStore(vcenter, site.state_dir, site.journal_url).read()
        if submitted:
            of_vcenter = (past for past in nights if past.vcenter == vcenter)
            adjusted_nights = iter(with_job_times(of_vcenter, submitted))
            nights = tuple(next(adjusted_nights) if past.vcenter == vcenter else past for past in nights)
    return nights


class JobsAtNight(NightExtension):
    """What jobs add to nights."""

    def add_to_queue(self, policy: Policy, site: Site) -> Policy:
        return with_jobs(policy, site)

    def before_return(self, site: Site) -> None:
        stop_and_report(site)

    def by_owners(self, nights: tuple[PastNight, ...], site: Site) -> tuple[PastNight, ...]:
        return by_owners_of_jobs(nights, site)


JOBS_AT_NIGHT: Final = JobsAtNight()


AT_A_TIME: Final = 32
"""The limit for parallel work, which also limits the connections to vCenter (our own choice)."""


def side_by_side(functions: Sequence[Callable[[], object]], limit_s: float) -> bool:
    """Call all functions in parallel and return whether all of them returned within `limit_s` seconds.

    A call can hang where its own timeout does not apply: in the middle of a TLS record, on a disk that does not
    respond, behind a lock of a database. After the limit such a call stays in a thread that does not keep the process
    alive; the function itself must do nothing more after the limit. Raises the first error of a function when all have
    ended; other exceptions, such as that of a signal, at once.
    """
    waiting = SimpleQueue[Callable[[], object]]()
    ended = SimpleQueue[BaseException | None]()
    for function in functions:
        waiting.put(function)
    until_s = clock.passed_s() + limit_s
    for number in range(min(AT_A_TIME, len(functions))):
        name = f"bounded-work-{number}"
        Thread(target=_call_waiting_functions, args=(waiting, ended), name=name, daemon=True).start()
    errors = list[Exception]()
    for _ in functions:
        try:
            error = ended.get(timeout=max(0.0, until_s - clock.passed_s()))
        except Empty:
            return False
        if isinstance(error, Exception):
            errors.append(error)
        elif error is not None:
            raise error
    if errors:
        raise errors[0]
    return True


def _call_waiting_functions(
    waiting: SimpleQueue[Callable[[], object]], ended: SimpleQueue[BaseException | None]
) -> None:
    """Call the waiting functions until none is left; put into `ended` for each its error, or None."""
    while True:
        try:
            function = waiting.get_nowait()
        except Empty:
            return
        try:
            function()
        except BaseException as error:  # `side_by_side` raises it in the thread of its caller
            ended.put(error)
        else:
            ended.put(None)


CALLED_EVERY: Final = timedelta(minutes=5)
"""The interval of passes. A pass stops jobs early, because the next pass may be too late."""
END_TIME: Final = timedelta(seconds=30)
"""Time to look at one guest and to end its container, in addition to the checkpoint."""
LOOK: Final = timedelta(seconds=60)
"""The time that a return allows for reading the jobs and their VMs."""
_FOLLOWED_LATER: Final = "its guest has not answered in time: the next gpuops job run looks at it"
_ENDS_WITH_VM: Final = (
    "its guest has not answered in time: it ends with its VM; its state is read when the VM runs again"
)


def guests_of(site: Site, left_s: Callable[[], float] = lambda: math.inf) -> JobGuests:
    """Return the guests of this vCenter. `left_s`: the remaining seconds for calls to them.

    Raises Refused for a saved inventory.
    """
    return GuestContainers(guest_work(site.vcenter), left_s)


def rules_of(policy: Policy) -> JobRules:
    """Return the `jobs` of the policy. Raises UsageError if it has none."""
    if policy.jobs is None:
        hint = "add `jobs` to `ml` in the policy file (gpuops help job)"
        raise UsageError(f"policy {policy.name} has no `jobs`", hint=hint)
    return policy.jobs


def run_jobs(policy: Policy, site: Site, *, stop: bool = False) -> JobsRun:
    """Make one pass: store output, record ends, stop cancelled jobs, start jobs in VMs that the night has started.

    If the window is about to close, or with `stop`, only stop all running jobs. Raises UsageError for a policy without
    `jobs`, Refused, NotConnected, StateDamaged.
    """
    rules, store = rules_of(policy), job_store(site)
    submitted = store.read()
    if all(job.ended for job in submitted):
        return JobsRun((), stop)
    inventory = site.vcenter.inventory()
    now = site.clock()
    running = [job for job in submitted if job.state is JobState.RUNNING]
    if stop or _must_stop_now(policy, len(running), now):
        time_left = _time_to_stop(rules.checkpoint, len(running)) + CALLED_EVERY
        to_stop = _JobsToStop(tuple(running), inventory, rules.checkpoint, None)
        deeds = _stop_all(to_stop, site, time_left, _FOLLOWED_LATER)
        turns = _turns_tonight(policy, rules, store.read() if running else submitted, inventory, site, now)
        return JobsRun(deeds, stopped=True, waiting=_turns_without_vm(turns))
    one_pass = JobPass(store, guests_of(site), inventory, site.clock, rules.checkpoint)
    one_pass.run(submitted)
    # read again: `one_pass.run` may have ended jobs, whose VMs are free now
    turns = _turns_tonight(policy, rules, store.read() if running else submitted, inventory, site, now)
    return JobsRun(tuple(one_pass.begin(turns)), stopped=False, waiting=_turns_without_vm(turns))


def _turns_without_vm(turns: Iterable[JobTurn]) -> tuple[JobTurn, ...]:
    return tuple(turn for turn in turns if turn.vm is None and turn.job.waits)


def stop_before_return(site: Site) -> tuple[JobDeed, ...]:
    """Stop the running jobs before a return stops their VMs: in parallel, each after its checkpoint.

    Returns what happened to each job; () if no job runs or the return would be refused. Returns when the time is up
    even if a guest hangs, and then sends no more requests to guests. A guest that does not answer does not delay the
    other jobs. Raises OutcomeUnknown if the jobs cannot be read within `LOOK`, and the errors of reading them.
    """
    read_results = list[_JobsToStop | None]()
    if not side_by_side([lambda: read_results.append(_jobs_to_stop(site))], LOOK.total_seconds()):
        raise OutcomeUnknown(f"the running jobs could not be read within {LOOK.total_seconds():.0f} s")
    (to_stop,) = read_results
    if to_stop is None:
        return ()
    assert to_stop.until is not None, "a return has a limit"
    time_left = max(timedelta(), to_stop.until - site.clock())
    names = ", ".join(job.job.name for job in to_stop.jobs[:5]) + (", ..." if len(to_stop.jobs) > 5 else "")
    site.say(f"jobs that run save their state first, for {time_left.total_seconds():.0f} s at most: {names}")
    return _stop_all(to_stop, site, time_left, _ENDS_WITH_VM)


@dataclass(frozen=True, slots=True)
class _JobsToStop:
    """The jobs that run and are to be stopped before a return."""

    jobs: tuple[SubmittedJob, ...]
    inventory: Inventory
    checkpoint: timedelta
    until: datetime | None
    """The begin of the return; None if no return waits."""


def _stop_all(to_stop: _JobsToStop, site: Site, time_left: timedelta, unanswered: str) -> tuple[JobDeed, ...]:
    """Stop these jobs in parallel and return what happened to each.

    After `time_left` no guest is asked any more; the text for a job whose guest has not answered is `unanswered`.
    """
    until_s = clock.passed_s() + time_left.total_seconds()
    guests = guests_of(site, left_s=lambda: until_s - clock.passed_s())
    # a pass for each job, so that one guest that hangs delays only its own job
    passes = {
        job.number: JobPass(
            job_store(site), guests, to_stop.inventory, site.clock, to_stop.checkpoint, stops=True, until=to_stop.until
        )
        for job in to_stop.jobs
    }
    side_by_side([partial(passes[job.number].run, [job]) for job in to_stop.jobs], time_left.total_seconds())
    # copies, because the thread of a guest that hangs may still add to its list
    return tuple(
        deed for job in to_stop.jobs for deed in passes[job.number].deeds[:] or [JobDeed(job, unanswered, failed=True)]
    )


def _jobs_to_stop(site: Site) -> _JobsToStop | None:
    """Return the running jobs, and the time by which they must be stopped; None if no job must be stopped."""
    with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
        policies = [policy for policy in policies_of(journal) if policy.jobs is not None]
        originals = NightVms(journal).all() if journal is not None else ()
        durations = Durations.of(journal.durations() if journal is not None else {})
    now = site.clock()
    policy = next(iter(policies), None)
    if policy is None or policy.jobs is None or is_return_refused(policies, site):
        return None  # if the return is refused, the jobs continue
    submitted = tuple(job for job in job_store(site).read() if job.state is JobState.RUNNING)
    if not submitted:
        return None
    inventory = site.vcenter.inventory()
    # stopped now, the jobs have ended by then; the return may begin earlier
    until = now + policy.jobs.checkpoint + STOP_GRACE + END_TIME
    begins = return_begins(policy, originals, inventory, durations, now)
    return _JobsToStop(submitted, inventory, policy.jobs.checkpoint, until if begins is None else min(until, begins))


def stop_and_report(site: Site) -> None:
    """Run `stop_before_return` and report what happened to each job. An error is reported and never raised."""
    try:
        deeds = stop_before_return(site)
    except (NotConnected, StateDamaged):
        return  # the return reports it and waits for its vCenter; jobs then end with their VMs
    except Exception as error:  # the return must continue after any error: desktops come first
        why = error.message if isinstance(error, GpuopsError) else f"{type(error).__name__}: {error}"
        site.say(f"jobs were not stopped before their VMs: {why}")
        return
    for deed in deeds:
        site.say(f"job {deed.job.job.name}: {deed.what}")


def is_return_refused(policies: Iterable[Policy], site: Site) -> bool:
    """Return whether the return of these nights is refused: another run holds the lock before their windows close."""
    is_early = any(not policy.windows or _is_open(policy, site.clock()) for policy in policies)
    return is_early and rotating(site.state_dir, site.vcenter.uuid) is not None


def _is_open(policy: Policy, now: datetime) -> bool:
    """Return whether a night of the policy is in the hours in which it takes desktops."""
    night = policy.night_at(now)
    return night is not None and now < night.closes


def _must_stop_now(policy: Policy, running: int, now: datetime) -> bool:
    """Return whether this number of jobs must be stopped now to end before the window closes, or it has closed."""
    if not policy.windows or policy.jobs is None:
        return False
    night = policy.night_at(now)
    return night is None or now >= night.closes - CALLED_EVERY - _time_to_stop(policy.jobs.checkpoint, running)


def _time_to_stop(checkpoint: timedelta, jobs: int) -> timedelta:
    """Return the time that it takes to stop this number of jobs in parallel."""
    return math.ceil(jobs / AT_A_TIME) * (checkpoint + STOP_GRACE + END_TIME)


def _turns_tonight(
    policy: Policy, rules: JobRules, submitted: Sequence[SubmittedJob], inventory: Inventory, site: Site, now: datetime
) -> tuple[JobTurn, ...]:
    """Return the turns of the jobs: only in VMs that this night has started, and only if enough of it is left."""
    night = policy.night_at(now)
    usable = {vm.ref for vm in started_tonight(policy, inventory, site, now)}
    share = policy.fair_share

    def may_begin(job: SubmittedJob) -> bool:
        return night is None or least_run(job, rules, night) <= night.closes - now

    return job_turns(
        submitted, rules, inventory, catalog_of(inventory), now, share=share, usable=usable, may_begin=may_begin
    )


def started_tonight(policy: Policy, inventory: Inventory, site: Site, now: datetime) -> Iterator[Vm]:
    """Yield the running ML VMs that this night has started. Jobs do not run in VMs that an admin started."""
    with site.journal_to_read(inventory.vcenter) as journal:
        originals = NightVms(journal).all() if journal is not None else ()
    open_nights = {night.id for window in policy.windows if (night := window.night_at(now)) is not None}
    tonight = open_nights or {policy.night(now)}
    for original in originals:
        is_of_tonight = not policy.windows or original.night in tonight
        if original.role is Role.ML and original.taken and not original.stopped and is_of_tonight:
            yield from (vm for vm in vms_of(original, inventory) if vm.power is PowerState.ON)


def return_begins(
    policy: Policy, originals: Sequence[Original], inventory: Inventory, durations: Durations, now: datetime
) -> datetime | None:
    """Return when `rotate day` must begin so that the desktops are back in time; it first stops the ML VMs.

    None = no desktop is suspended, or no window determines when they are due.
    """
    due = night_due(policy, originals, now)
    away_vms = [
        taken_vm for taken_vm in taken_vms(policy, originals, inventory) if taken_vm.whereabouts is Whereabouts.AWAY
    ]
    desktops = [
        taken_vm.vm for taken_vm in away_vms if taken_vm.original.role is not Role.ML and taken_vm.vm is not None
    ]
    if due is None or not desktops:
        return None
    hosts = (taken_vm.vm.host for taken_vm in away_vms if taken_vm.original.role is Role.ML and taken_vm.vm is not None)
    load = Load.of(desktops, hosts, longest_checkpoint_s(policy, (taken_vm.original for taken_vm in away_vms)))
    times = ReturnTime(policy, durations, due.back_by)
    return min(times.of(vm.host, load) for vm in desktops)
