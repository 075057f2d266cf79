"""How many of these jobs fit on GPUs at once, where, and how long each then takes beside the others. Pure.

Places are those of `gpuops place`: one VM with one vGPU for each job. Then, GPU by GPU, everybody who is on it counts:
the jobs with a place there, and the VMs that run there anyway. How much longer a job takes beside them is what
`gpuops size` says (`advise/sizing/sharing`), by the share of the time that each keeps a GPU busy alone: of a history
where there is one, else as stated, else the worst, all of the time.

    four jobs of 3 h, busy for 19 % of it alone, on quarters of a GPU under best effort: 1.17 times as long, 3 h 31 min

All jobs are taken to run all of that time: who is left when others have ended is faster, which is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from math import ceil

import numpy as np

from gpuops.advise.occupancy import gpu_states
from gpuops.advise.sizing.sharing import slowdowns
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.window import Night
from gpuops.model.workloads.job import ContainerJob
from gpuops.model.workloads.workload import Workload
from gpuops.plan.hosts.scheduler.state import scheduler_of
from gpuops.plan.jobs.admission import forbidden_mount
from gpuops.plan.jobs.vm_room import JobVmRoom
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Place, Placements


class BusySource(StrEnum):
    """Where the share of the time is from that a job, or a VM, keeps a GPU busy alone."""

    HISTORY = "history"
    STATED = "stated"
    ASSUMED = "assumed"
    """Nobody said: all of the time."""


@dataclass(frozen=True, slots=True)
class BusyShare:
    """A share of the time, 0 to 1, and where it is from."""

    share: float
    source: BusySource


_ALWAYS = BusyShare(1.0, BusySource.ASSUMED)


@dataclass(frozen=True, slots=True)
class JobsQuestion:
    """What is asked."""

    jobs: tuple[ContainerJob, ...]
    desktops: int | None = None
    """How many are suspended in the snapshot for a night; None = no night is asked about."""
    night: Night | None = None
    """Whose hours a job has at a time; None = it has no hours, or no night is asked about."""
    mounts: tuple[str, ...] = ()
    """Directories: mounts lie in one of them."""
    histories: Mapping[str, float] = field(default_factory=dict)
    """By id of a VM: the share of the time that it keeps a GPU busy while it is at work."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """By name of a job: the id of the VM whose history is its own."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job with a place."""

    job: ContainerJob
    host: Host
    gpu: PciAddress
    busy: BusyShare
    sharers: int
    """So many VMs are on its GPU, itself counted."""
    slowdown: Mapping[SchedulerPolicy, float]
    """Times as long as alone, under each scheduler."""
    policy: SchedulerPolicy
    """In force on its GPU."""
    nights: int | None
    """In how many nights it ends; None = no hours of a night were said."""
    shares_time: bool
    """False = its vGPU is MIG-backed: how busy anybody is makes no difference."""

    @property
    def takes(self) -> timedelta:
        return self.job.run_time * self.slowdown[self.policy]

    @property
    def too_long(self) -> bool:
        """Whether it needs more nights than it may be resumed for."""
        return self.nights is not None and self.nights > self.job.resumes + 1


@dataclass(frozen=True, slots=True)
class JobsOnGpu:
    """One GPU with jobs on it."""

    host: Host
    gpu: PciAddress
    profile: str
    """Of its first job."""
    jobs: int
    sharers: int
    most: int | None
    """So many vGPUs of that profile a GPU holds; None = the catalogue does not know it."""
    policy: SchedulerPolicy
    known: bool
    """Whether the host told its scheduler; False = `policy` is the driver's default."""
    last: Mapping[SchedulerPolicy, timedelta]
    """When the last of its jobs ends, under each scheduler."""
    shares_time: bool
    """False = MIG-backed vGPUs, which share no time."""

    @property
    def shortest(self) -> SchedulerPolicy | None:
        """Under which scheduler that is soonest, if sooner than as it is; None = as it is."""
        best = min(self.last, key=lambda policy: self.last[policy])
        return best if self.last[best] < self.last[self.policy] else None


@dataclass(frozen=True, slots=True)
class JobsAnswer:
    """What becomes of each job."""

    question: JobsQuestion
    placements: Placements
    planned: tuple[PlannedJob, ...]
    gpus: tuple[JobsOnGpu, ...]
    forbidden: tuple[tuple[ContainerJob, str], ...]
    """Jobs that were not looked at further, and why: a mount that is not allowed."""
    beside: Mapping[BusySource, int]
    """How many VMs run on these GPUs anyway, by where their busy share is from."""
    vms: JobVmRoom | None = None
    """Who gets a VM of the policy; None = none was said, or it says nothing of jobs."""

    @property
    def refused(self) -> tuple[Refusal, ...]:
        return self.placements.refused

    @property
    def exit_code(self) -> int:
        """3 when one has no place, a forbidden mount, or more nights than it may have."""
        return 3 if self.refused or self.forbidden or any(each.too_long for each in self.planned) else 0


def planned_jobs(question: JobsQuestion, inventory: Inventory, catalog: Catalog) -> JobsAnswer:
    """Places and times on this snapshot, whose hosts have their settings; of a night with its desktops suspended."""
    forbidden = tuple((job, why) for job in question.jobs if (why := forbidden_mount(job, question.mounts)))
    jobs = {job.name: job for job in question.jobs if job.name not in {each.name for each, _ in forbidden}}
    # whatever is suspended for a night comes back after it
    suspended = SuspendedPolicy.CLAIM if question.desktops is None else SuspendedPolicy.IGNORE
    placements = Place(tuple(map(_workload, jobs.values())), suspended=suspended).placements(inventory, catalog)
    by_gpu: dict[tuple[str, PciAddress], list[Placed]] = {}
    for placed in placements.placed:
        by_gpu.setdefault((placed.placement.host.ref, placed.placement.seats[0]), []).append(placed)
    planned: dict[str, PlannedJob] = {}
    gpus: list[JobsOnGpu] = []
    beside: dict[BusySource, int] = {}
    for (ref, address), there in sorted(by_gpu.items(), key=lambda each: (inventory.hosts[each[0][0]].name, each[0])):
        host = inventory.hosts[ref]
        others = tuple(_others(host, address, question, inventory, catalog))
        for share in others:
            beside[share.source] = beside.get(share.source, 0) + 1
        on_gpu = [jobs[each.workload.name] for each in there]
        times, row = _shared(on_gpu, others, host, address, there[0].vm.profiles[0], question, catalog)
        planned |= {each.job.name: each for each in times}
        gpus.append(row)
    in_order = tuple(planned[job.name] for job in question.jobs if job.name in planned)
    return JobsAnswer(question, placements, in_order, tuple(gpus), forbidden, beside)


def busy_of(job: ContainerJob, question: JobsQuestion) -> BusyShare:
    """The history of the VM that it is like, else what it states, else the worst."""
    known = question.histories.get(question.alike.get(job.name, ""))
    if known is not None:
        return BusyShare(known, BusySource.HISTORY)
    return BusyShare(job.busy, BusySource.STATED) if job.busy is not None else _ALWAYS


def _workload(job: ContainerJob) -> Workload:
    return Workload(job.name, job.vcpus, job.memory_mib, profile=job.profile, priority=job.priority)


def _others(
    host: Host, address: PciAddress, question: JobsQuestion, inventory: Inventory, catalog: Catalog
) -> Iterator[BusyShare]:
    """The VMs that run on that GPU anyway; one that may be on another GPU of the host counts as here."""
    for state in gpu_states(host, inventory, catalog):
        if state.gpu.address == address:
            for tenant in state.tenants:
                known = question.histories.get(tenant.vm)
                yield _ALWAYS if known is None else BusyShare(known, BusySource.HISTORY)


def _shared(
    jobs: Sequence[ContainerJob],
    others: Sequence[BusyShare],
    host: Host,
    address: PciAddress,
    profile: str,
    question: JobsQuestion,
    catalog: Catalog,
) -> tuple[list[PlannedJob], JobsOnGpu]:
    """The jobs of one GPU with what each takes there."""
    facts = catalog.profile(profile)
    shares_time = facts is None or not facts.mig_backed
    most = facts.max_per_gpu if facts is not None else None
    own = [busy_of(job, question) for job in jobs]
    busy = np.array([share.share for share in (*own, *others)])
    factors = {
        policy: slowdowns(policy, busy, most or len(busy)) if shares_time else np.ones(len(busy))
        for policy in SchedulerPolicy
    }
    in_force = _in_force(host, address, catalog)
    policy = in_force or SchedulerPolicy.BEST_EFFORT
    planned = []
    for at, (job, share) in enumerate(zip(jobs, own, strict=True)):
        slowdown = {each: float(found[at]) for each, found in factors.items()}
        nights = _nights(job.run_time * slowdown[policy], question.night)
        planned.append(PlannedJob(job, host, address, share, len(busy), slowdown, policy, nights, shares_time))
    last = {each: max(one.job.run_time * one.slowdown[each] for one in planned) for each in SchedulerPolicy}
    known = in_force is not None
    row = JobsOnGpu(host, address, profile, len(jobs), len(busy), most, policy, known, last, shares_time)
    return planned, row


def _in_force(host: Host, address: PciAddress, catalog: Catalog) -> SchedulerPolicy | None:
    """None = nobody told."""
    found = next((each for each in scheduler_of(host, catalog).gpus if each.gpu.address == address), None)
    reading = found.effective if found is not None else None
    return reading.policy if isinstance(reading, VgpuScheduler) else None


def _nights(takes: timedelta, night: Night | None) -> int | None:
    return None if night is None else max(1, ceil(takes / (night.closes - night.opens)))
