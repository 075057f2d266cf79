"""In which order jobs that wait are served, and which VM of a night each one gets. Pure.

Between owners the fair share decides (`advise/fair_share`): GPU-hours of their jobs count less the longer ago they
were, half after one half-life, a week unless the policy's `fair_share` says another; its weights are those of the team
of that name. Among the jobs of one owner the higher priority comes first, then what has waited longer, so that nobody
gains on others by a priority of his own.

A VM runs one job at a time. One that was interrupted goes on in the VM that it was in, where its files are, as long as
that VM is there; so does one of which nobody knows yet what became of it, before all others: it is looked at first.

    vision had 8 GPU-hours of late, audio none: audio's first job gets the first VM that it fits, then vision's first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.advise.fair_share import Wish, fair_order, use_of_period
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.profile_name import without_brand
from gpuops.model.nights.fair_share import NO_OWNER, WEEK, FairShare
from gpuops.model.nights.history import HeldPeriod
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night
from gpuops.model.workloads.job import ContainerJob
from gpuops.model.workloads.job_record import JobEvent, JobState, SubmittedJob
from gpuops.model.workloads.job_rules import JobRules, Submitter
from gpuops.plan.jobs.admission import may_run

_MOST_OF_A_NIGHT: Final = 0.8
"""Our own figure."""


@dataclass(frozen=True, slots=True)
class JobTurn:
    """A job and the VM that it gets, or why it gets none."""

    job: SubmittedJob
    vm: Vm | None
    reason: str = ""
    lacks_vm: bool = False
    """Whether another VM is all that it lacks."""


def in_turn(
    submitted: Sequence[SubmittedJob], catalog: Catalog, now: datetime, share: FairShare | None = None
) -> tuple[SubmittedJob, ...]:
    """The jobs that wait, in the order in which they are served."""
    # the first of each owner comes by priority; between owners whose use is equal, who has waited longest
    waiting = sorted((each for each in submitted if each.waits), key=lambda each: (-each.job.priority, each.number))
    half_life = share.half_life if share is not None else WEEK
    used = dict[str, float]()
    for each in submitted:
        for _, period in held_periods(each):
            use = use_of_period(period.until(now), gpus_of_job(each.job, catalog), now, half_life)
            used[_team(each.job)] = used.get(_team(each.job), 0.0) + use.decayed
    wishes = [Wish(_team(each.job), _hours_left(each) * gpus_of_job(each.job, catalog)) for each in waiting]
    order = fair_order(wishes, used, lambda team: share.team(team).weight if share is not None else 1.0)
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
    """What each job that runs or waits gets, in the order in which they are served.

    `usable`: VMs (refs) that may get one; None = all that the policy names.
    `may_begin`: whether a job that waits may begin now; one that may not leaves its VM to the next.
    """
    vms = [vm for vm in job_vms(rules, inventory) if usable is None or vm.ref in usable]
    turns, taken = list[JobTurn](), set[str]()
    running: Counter[str | None] = Counter()
    for each in submitted:  # what may run already keeps its VM
        if each.state is JobState.RUNNING:
            running[each.job.owner] += 1
            own = vm_of(each, inventory)
            if own is not None:
                taken.add(own.ref)
            turns.append(JobTurn(each, own, "" if own is not None else "its VM is not in vCenter any more"))
    for each in in_turn(submitted, catalog, now, share):
        if not may_begin(each):
            turns.append(JobTurn(each, None, "too little of the night is left for it"))
            continue
        refused = may_run(each.job, rules, Submitter.parse(each.by))
        quota = rules.quota(each.job.owner)
        if refused is not None or quota is None:
            turns.append(JobTurn(each, None, refused.rule if refused is not None else ""))
            continue
        if quota.running is not None and running[each.job.owner] >= quota.running:
            turns.append(JobTurn(each, None, f"its owner may run {quota.running} at once"))
            continue
        own = vm_of(each, inventory)
        free = (vm for vm in vms if vm.ref not in taken and (own is None or vm.ref == own.ref))
        found = next((vm for vm in free if fits(each.job, vm)), None)
        if found is None:
            turns.append(JobTurn(each, None, _no_vm(each.job, own, vms), lacks_vm=own is None))
            continue
        taken.add(found.ref)
        running[each.job.owner] += 1
        turns.append(JobTurn(each, found))
    return tuple(turns)


def least_run(job: SubmittedJob, rules: JobRules, night: Night | None) -> timedelta:
    """A job that would have less of this night is not begun in it.

    One that may not go on afterwards waits for a night that is long enough for the rest of it, as far as that is known;
    where no whole night is, for most of one: it may be faster than it says, and waits for ever otherwise.
    """
    if job.job.resumes > job.interruptions or night is None:
        return rules.minimum_run
    rest = max(rules.minimum_run, job.job.run_time - job.ran)
    return min(rest, (night.closes - night.opens) * _MOST_OF_A_NIGHT)


def queue_entries(
    turns: Iterable[JobTurn], entry: QueuedVm, rules: JobRules, night: Night | None
) -> tuple[QueuedVm, ...]:
    """The entries of a night's queue for the VMs that jobs get; `entry` is the one of the policy.

    A VM that is only to be looked at, for nobody knows what became of its job, is started as any other.
    """
    return tuple(
        QueuedVm(
            f"moid:{turn.vm.ref}",
            entry.relocate,
            priority=entry.priority,
            minimum_run=least_run(turn.job, rules, night) if turn.job.waits else rules.minimum_run,
            owner=turn.job.job.owner,
        )
        for turn in turns
        if turn.vm is not None
    )


def job_vms(rules: JobRules, inventory: Inventory) -> list[Vm]:
    """The VMs that run jobs, by name: those that the policy names, and of its patterns those with a vGPU."""
    wanted = QueuedVm(rules.vms[0], others=rules.vms[1:])
    found = [
        vm
        for vm in inventory.vms.values()
        if not vm.template and len(vm.profiles) == 1 and (wanted.names_vm(vm) or wanted.fits(vm.name))
    ]
    return sorted(found, key=lambda vm: (vm.name, vm.ref))


def vm_of(job: SubmittedJob, inventory: Inventory) -> Vm | None:
    """The VM of its last attempt; None = there was none, or the VM is gone."""
    attempt = job.attempt
    if attempt is None:
        return None
    return next((vm for vm in inventory.vms.values() if attempt.vm in (vm.instance_uuid, vm.ref)), None)


def fits(job: ContainerJob, vm: Vm) -> bool:
    """Whether the VM is what the job asks for: its one vGPU, vCPUs and memory."""
    wanted = without_brand("_".join(job.profile.split()))
    return (
        len(vm.profiles) == 1
        and without_brand(vm.profiles[0]) == wanted
        and (vm.vcpus or 0) >= job.vcpus
        and (vm.memory_mib or 0) >= job.memory_mib
    )


def gpus_of_job(job: ContainerJob, catalog: Catalog) -> float:
    """Its part of a GPU; one whose profile the catalogue does not know counts as a whole one."""
    wanted = without_brand("_".join(job.profile.split()))
    facts = catalog.profile(job.profile) or catalog.profile(f"nvidia_{wanted}")
    return 1.0 if facts is None or not facts.max_per_gpu else 1 / facts.max_per_gpu


def held_periods(job: SubmittedJob) -> Iterator[tuple[str, HeldPeriod]]:
    """When its attempts held a GPU, as far as they were seen to run, each with its VM as `Attempt.vm` names it."""
    vm = ""
    began: datetime | None = None
    for record in job.records:
        if record.event is JobEvent.BEGUN:
            vm, began = record.vm, None
        elif record.event is JobEvent.STARTED:
            began = record.at
        elif began is not None and record.event in (JobEvent.INTERRUPTED, JobEvent.ENDED, JobEvent.CANCELLED):
            ends = record.at if record.ran is None else min(record.at, began + record.ran)
            yield vm, HeldPeriod(began, max(began, ends))  # two machines write, whose clocks differ
            began = None
    if began is not None:
        yield vm, HeldPeriod(began)


def _hours_left(job: SubmittedJob) -> float:
    return max(job.job.run_time - job.ran, timedelta(minutes=1)) / timedelta(hours=1)


def _team(job: ContainerJob) -> str:
    return job.owner or NO_OWNER


def _no_vm(job: ContainerJob, own: Vm | None, vms: Sequence[Vm]) -> str:
    if own is not None:
        return f"it goes on in {own.name}, which runs another job or is no VM for jobs any more"
    if any(fits(job, vm) for vm in vms):
        return "each VM that it fits has another job"
    return f"no VM for jobs has one vGPU {job.profile}, {job.vcpus} vCPUs and {job.memory_mib} MiB"
