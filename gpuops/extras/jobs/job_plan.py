"""Plans how many jobs fit on GPUs at once, on which GPUs, and how long each takes with the others. Pure.

Places come from `gpuops place`: one VM for each job. For each GPU, the jobs with a place there and the
VMs that run there anyway share its time. How much longer a job takes comes from `gpuops size`
(`advise/sizing/sharing`), by the share of the time that each keeps a GPU busy alone: from its history, otherwise as
stated, otherwise all of the time.

    four jobs of 3 h, busy for 19 % of it alone, on quarters of a GPU under best effort: 1.17 times as long, 3 h 31 min

A job with several vGPUs is as slow as on the GPU on which it is slowest.

All jobs are assumed to run all of that time: that jobs get faster when others have ended does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from math import ceil

import numpy as np

from gpuops.advise.occupancy import gpu_states
from gpuops.errors import report_exit_code
from gpuops.extras.jobs.job import ContainerJob
from gpuops.extras.jobs.job_turns import forbidden_mount
from gpuops.extras.jobs.template_vms import JobVmRoom
from gpuops.extras.sizing.sharing import slowdowns
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.window import Night
from gpuops.model.workloads.workload import Workload
from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Place, Placements


class BusySource(StrEnum):
    """The source of the share of time that a job or a VM keeps a GPU busy alone."""

    HISTORY = "history"
    STATED = "stated"
    ASSUMED = "assumed"
    """Unknown, so all of the time."""


@dataclass(frozen=True, slots=True)
class BusyShare:
    """A share of the time, 0 to 1, and its source."""

    share: float
    source: BusySource


_ALWAYS = BusyShare(1.0, BusySource.ASSUMED)


@dataclass(frozen=True, slots=True)
class JobsQuestion:
    """The jobs to plan, and the assumptions."""

    jobs: tuple[ContainerJob, ...]
    desktops: int | None = None
    """Number of desktops suspended in the snapshot for a night; None = the plan is not for a night."""
    night: Night | None = None
    """The night whose hours a job can use; None = no window, or the plan is not for a night."""
    mounts: tuple[str, ...] = ()
    """Directories in which mounts must lie."""
    histories: Mapping[str, float] = field(default_factory=dict)
    """VM id -> share of the time that the VM keeps a GPU busy while it works."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """Job name -> id of the VM whose history is used for the job."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job with a place."""

    job: ContainerJob
    host: Host
    gpu: PciAddress
    """Of several: the one on which it takes longest."""
    busy: BusyShare
    sharers: int
    """Number of VMs on its GPU, including its own."""
    slowdown: Mapping[SchedulerPolicy, float]
    """How many times as long as alone it takes, under each scheduler."""
    policy: SchedulerPolicy
    """The scheduler in force on its GPU."""
    nights: int | None
    """Number of nights that it needs; None = the hours of a night are unknown."""
    shares_time: bool
    """False = its vGPU is MIG-backed, so other VMs do not slow it down."""

    @property
    def takes(self) -> timedelta:
        return self.job.run_time * self.slowdown[self.policy]

    @property
    def too_long(self) -> bool:
        """Whether it needs more nights than its first one and those in which it may be resumed."""
        return self.nights is not None and self.nights > self.job.resumes + 1


@dataclass(frozen=True, slots=True)
class JobsOnGpu:
    """One GPU with jobs on it."""

    host: Host
    gpu: PciAddress
    profile: str
    """The profile of its first job."""
    jobs: int
    sharers: int
    most: int | None
    """Number of vGPUs of that profile on a GPU; None = the catalogue does not know it."""
    policy: SchedulerPolicy
    known: bool
    """Whether the host reported its scheduler; False = `policy` is the default of the driver."""
    last: Mapping[SchedulerPolicy, timedelta]
    """When the last of its jobs ends, under each scheduler."""
    shares_time: bool
    """False = MIG-backed vGPUs, which share no time."""

    @property
    def shortest(self) -> SchedulerPolicy | None:
        """The scheduler under which the jobs end earlier than now; None = the current one is the best."""
        best = min(self.last, key=lambda policy: self.last[policy])
        return best if self.last[best] < self.last[self.policy] else None


@dataclass(frozen=True, slots=True)
class JobsAnswer:
    """The plan for each job."""

    question: JobsQuestion
    placements: Placements
    planned: tuple[PlannedJob, ...]
    gpus: tuple[JobsOnGpu, ...]
    forbidden: tuple[tuple[ContainerJob, str], ...]
    """Jobs that were not planned because of a mount that is not allowed, with the reason."""
    beside: Mapping[BusySource, int]
    """Number of other VMs that run on these GPUs, by the source of their busy share."""
    vms: JobVmRoom | None = None
    """Which jobs get a VM of the policy; None = there is no policy, or it has no jobs."""

    @property
    def refused(self) -> tuple[Refusal, ...]:
        return self.placements.refused

    @property
    def exit_code(self) -> int:
        """3 if a job has no place, has a forbidden mount, or needs more nights than it may have."""
        too_long = any(job.too_long for job in self.planned)
        return report_exit_code(refused=self.refused or self.forbidden or too_long)


def planned_jobs(question: JobsQuestion, inventory: Inventory, catalog: Catalog) -> JobsAnswer:
    """Return a GPU for each job, and how long it takes there.

    The snapshot must have the settings of hosts, for the scheduler of each GPU; for a night, its desktops are
    suspended in it.
    """
    forbidden = tuple((job, reason) for job in question.jobs if (reason := forbidden_mount(job, question.mounts)))
    jobs = {job.name: job for job in question.jobs if job.name not in {refused.name for refused, _ in forbidden}}
    # a VM that is suspended now will need its GPU when it resumes; but those suspended for a night resume after it
    suspended = SuspendedPolicy.CLAIM if question.desktops is None else SuspendedPolicy.IGNORE
    placements = Place(tuple(map(_workload, jobs.values())), suspended=suspended).placements(inventory, catalog)
    by_gpu: dict[tuple[str, PciAddress], list[Placed]] = {}  # by the host's id and the GPU's address
    for placed in placements.placed:
        for address in dict.fromkeys(placed.placement.seats.values()):  # several vGPUs of a job may be on one GPU
            by_gpu.setdefault((placed.placement.host.ref, address), []).append(placed)
    planned: dict[str, PlannedJob] = {}
    gpus: list[JobsOnGpu] = []
    other_vm_counts: dict[BusySource, int] = {}
    for ref, address in sorted(by_gpu, key=lambda gpu: (inventory.hosts[gpu[0]].name, gpu)):
        host, placed_here = inventory.hosts[ref], by_gpu[ref, address]
        other_shares = tuple(_other_busy_shares(host, address, question, inventory, catalog))
        for share in other_shares:
            other_vm_counts[share.source] = other_vm_counts.get(share.source, 0) + 1
        on_gpu, profile = [jobs[placed.workload.name] for placed in placed_here], placed_here[0].vm.profiles[0]
        planned_here, gpu_row = _plan_on_gpu(on_gpu, other_shares, host, address, profile, question, catalog)
        for planned_job in planned_here:
            # a job on several GPUs ends on the slowest of them
            elsewhere = planned.get(planned_job.job.name)
            if elsewhere is None or planned_job.takes > elsewhere.takes:
                planned[planned_job.job.name] = planned_job
        gpus.append(gpu_row)
    in_order = tuple(planned[job.name] for job in question.jobs if job.name in planned)
    return JobsAnswer(question, placements, in_order, tuple(gpus), forbidden, other_vm_counts)


def busy_of(job: ContainerJob, question: JobsQuestion) -> BusyShare:
    """Return the busy share from the history of its VM, otherwise as stated, otherwise all of the time."""
    measured = question.histories.get(question.alike.get(job.name, ""))
    if measured is not None:
        return BusyShare(measured, BusySource.HISTORY)
    return BusyShare(job.busy, BusySource.STATED) if job.busy is not None else _ALWAYS


def _workload(job: ContainerJob) -> Workload:
    return Workload(job.name, job.vcpus, job.memory_mib, profile=job.profile, count=job.gpus, priority=job.priority)


def _other_busy_shares(
    host: Host, address: PciAddress, question: JobsQuestion, inventory: Inventory, catalog: Catalog
) -> Iterator[BusyShare]:
    """Yield the busy shares of other VMs on that GPU; a VM that may be on another GPU of the host counts here."""
    for state in gpu_states(host, inventory, catalog):
        if state.gpu.address == address:
            for tenant in state.tenants:
                measured = question.histories.get(tenant.vm)
                yield _ALWAYS if measured is None else BusyShare(measured, BusySource.HISTORY)


def _plan_on_gpu(
    jobs: Sequence[ContainerJob],
    other_shares: Sequence[BusyShare],
    host: Host,
    address: PciAddress,
    profile: str,
    question: JobsQuestion,
    catalog: Catalog,
) -> tuple[list[PlannedJob], JobsOnGpu]:
    """Return each job of one GPU with its slowdown and number of nights, and the summary of the GPU.

    `other_shares`: how busy the other VMs on this GPU keep it.
    """
    facts = catalog.profile(profile)
    shares_time = facts is None or not facts.mig_backed  # MIG-backed vGPUs have their own part of the GPU
    max_vgpus = facts.max_per_gpu if facts is not None else None
    # shares of time, first of the jobs, then of the other VMs; `factors` has the same order for each scheduler
    job_shares = [busy_of(job, question) for job in jobs]
    busy = np.array([share.share for share in (*job_shares, *other_shares)])
    factors = {
        policy: slowdowns(policy, busy, max_vgpus or len(busy)) if shares_time else np.ones(len(busy))
        for policy in SchedulerPolicy
    }
    in_force = _in_force(host, address, catalog)
    policy = in_force or SchedulerPolicy.BEST_EFFORT  # the default of the driver, if the host reports none
    planned = []
    for at, (job, share) in enumerate(zip(jobs, job_shares, strict=True)):
        slowdown = {scheduler: float(factors_of_policy[at]) for scheduler, factors_of_policy in factors.items()}
        nights = _nights(job.run_time * slowdown[policy], question.night)
        planned.append(PlannedJob(job, host, address, share, len(busy), slowdown, policy, nights, shares_time))
    last_end_by_policy = {
        scheduler: max(planned_job.job.run_time * planned_job.slowdown[scheduler] for planned_job in planned)
        for scheduler in SchedulerPolicy
    }
    is_known = in_force is not None
    gpu_row = JobsOnGpu(
        host, address, profile, len(jobs), len(busy), max_vgpus, policy, is_known, last_end_by_policy, shares_time
    )
    return planned, gpu_row


def _in_force(host: Host, address: PciAddress, catalog: Catalog) -> SchedulerPolicy | None:
    """Return the scheduler in force on the GPU; None = it is unknown."""
    gpu_scheduler = next(
        (scheduler for scheduler in scheduler_of(host, catalog).gpus if scheduler.gpu.address == address), None
    )
    reading = gpu_scheduler.effective if gpu_scheduler is not None else None
    return reading.policy if isinstance(reading, VgpuScheduler) else None


def _nights(takes: timedelta, night: Night | None) -> int | None:
    return None if night is None else max(1, ceil(takes / (night.closes - night.opens)))
