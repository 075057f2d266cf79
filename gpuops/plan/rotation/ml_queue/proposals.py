"""Proposes for the complete queue which GPUs are freed for which VM. `night.py` calls it, and `queue.py` judges each
proposal by the exact rules.

`plan/schedule` looks for the most GPU-hours, the higher priority first, then for the fewest desktops. Its input is
simplified, so that it is quick: GPUs are free or have idle desktops, and a VM needs a number of GPUs on its allowed
hosts. Cores, memory and slots on a GPU are left to the exact rules.

* The input has the GPUs without VMs, and those on which all VMs are desktops that may be taken.
* It has the VMs whose devices are all vGPUs, with one GPU for each vGPU. VMs with one vGPU that fills only a part of a
  GPU share one: as many as fit, if they may go to the same GPUs and have the same priority and deadline.
* An ML VM runs until its GPU is needed again, because the length of its work is unknown.

Example: an idle desktop is on each of GPU A and GPU B of one host, and two VMs wait that fill half a GPU each. They are
one job of one GPU, and the proposal is one GPU for both, so one desktop is suspended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import combinations
from math import ceil
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm, pins_of
from gpuops.plan.placement.seating import Room, reduced_to_host
from gpuops.plan.rotation.ml_queue.ml_vms import (
    ASSUMED_NIGHT,
    HoldBackCheck,
    WaitingVm,
    hold_back_none,
    hosts_for,
    limit_to_counts,
)
from gpuops.plan.rotation.nights.bounds import UNMEASURED_START_S, UNMEASURED_SUSPEND_S, Bounds
from gpuops.plan.rotation.returns.return_time import MARGIN, SLOWER_THAN_EVER, UNMEASURED_RESUME_S
from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits
from gpuops.plan.schedule.schedule import schedule

_DESKTOP_WORTH_MINUTES: Final = 15
"""A desktop is only suspended for at least this number of GPU-minutes."""


@dataclass(frozen=True, slots=True)
class ScheduleInput:
    """The problem for `plan/schedule`, and the GPUs and VMs behind its names."""

    problem: NightProblem
    gpus: Mapping[str, tuple[str, PciAddress]]
    """GPU -> host ref and address."""
    jobs: Mapping[str, tuple[Vm, ...]]
    """Job -> the VMs that share its GPUs; the first of the queue first."""


@dataclass(frozen=True, slots=True)
class _GpuDemand:
    """The needs of one VM. VMs with equal demands are interchangeable and share GPUs."""

    gpus: int
    share: int
    """How many such VMs fit on one GPU."""
    profiles: tuple[str, ...]
    allowed: frozenset[str]
    priority: int
    least_minutes: int
    deadline: int | None


def build_schedule_input(
    queue: Iterable[WaitingVm],
    free_to_take: Sequence[Vm],
    inventory: Inventory,
    room: Room,
    bounds: Bounds,
    priority: Mapping[str, int],
    held_back: HoldBackCheck = hold_back_none,
) -> ScheduleInput:
    """Return the scheduling problem of this night.

    `priority` of desktops, by ref: sparing one of a higher priority counts more than sparing any number of lower ones.
    `held_back` returns why a VM must let other teams go first; such VMs are left out.
    """
    minutes = _night_minutes(bounds)
    # The GPUs that are free, or will be after their desktops are suspended. A GPU with a VM that stays is left to the
    # exact rules.
    desktops = {vm.ref: _desktop_with_cost(vm, bounds, priority, len(free_to_take)) for vm in free_to_take}
    can_be_free = [(host, gpu) for host in inventory.hosts.values() for gpu in host.gpus if _is_free(gpu, desktops)]
    # Name of the GPU in the problem -> its host and the GPU.
    names = {f"{host.ref} {gpu.address}": (host, gpu) for host, gpu in can_be_free if host.connected is True}
    gpus = tuple(
        NightGpu(name, host.ref, tuple(desktops[ref] for ref in dict.fromkeys(gpu.vms or ())))
        for name, (host, gpu) in names.items()
    )
    # Group VMs with equal demands in the order of the queue. A VM that can share a GPU whose VMs stay needs no freed
    # GPU.
    demands: dict[_GpuDemand, list[Vm]] = defaultdict(list)
    # Ref of each VM that is tried -> its sort key: higher keys are served first.
    sort_keys: dict[str, tuple[int, int]] = {}
    for waiting in limit_to_counts(queue):
        vm = waiting.vm
        if vm is None or held_back([inventory.vms[ref] for ref in sort_keys], vm):
            continue
        sort_keys[vm.ref] = (waiting.queued.priority, -waiting.rank)
        demand = _demand_of(waiting, vm, names, inventory, room.catalog, bounds)
        if demand is not None and (demand.share == 1 or not _fits_on_shared_gpu(waiting, vm, names, inventory, room)):
            demands[demand].append(vm)
    # VMs that share a GPU are served with the first of them: the others take the remaining part of it.
    priorities = {sort_key: number for number, sort_key in enumerate(sorted(set(sort_keys.values())))}
    jobs = {
        job.name: (replace(job, priority=priorities[sort_keys[job.name]]), vms)
        for demand, same_demand in demands.items()
        for job, vms in _jobs_of_demand(demand, same_demand, minutes)
    }
    policy_limits = bounds.policy.limits
    limits = OperationLimits(policy_limits.per_host, policy_limits.per_datastore, policy_limits.in_flight)
    problem = NightProblem(
        minutes, gpus, tuple(job for job, _ in jobs.values()), limits, SLOWER_THAN_EVER, _DESKTOP_WORTH_MINUTES
    )
    places = {name: (host.ref, gpu.address) for name, (host, gpu) in names.items()}
    return ScheduleInput(problem, places, {name: vms for name, (_, vms) in jobs.items()})


def _night_minutes(bounds: Bounds) -> int:
    """Return the minutes from now until all desktops are back, without the time for the shutdown of ML VMs."""
    length = ASSUMED_NIGHT if bounds.night is None else bounds.night.back_by - bounds.now - MARGIN
    return max(0, _whole_minutes(length - timedelta(seconds=bounds.policy.ml_stop.grace_s)))


def _desktop_with_cost(vm: Vm, bounds: Bounds, priority: Mapping[str, int], desktop_count: int) -> Desktop:
    """Return the desktop with its cost: one desktop of a priority costs more than all those of lower priorities.

    With `desktop_count` 9, the cost is 1 for the lowest priority, 10 for the next one, then 100.
    """
    levels = sorted(set(priority.values()))
    level = levels.index(priority[vm.ref]) if vm.ref in priority else 0
    suspend_s = bounds.durations.p99_s("SuspendVm", vm.host, UNMEASURED_SUSPEND_S)
    resume_s = bounds.durations.p99_s("ResumeVm", vm.host, UNMEASURED_RESUME_S)
    return Desktop(vm.ref, 0, ceil(suspend_s / 60), ceil(resume_s / 60), vm.datastores, (desktop_count + 1) ** level)


def _is_free(gpu: PhysicalGpu, desktops: Collection[str]) -> bool:
    """Return whether all VMs on the GPU are desktops that may be taken. The VMs of a passthrough GPU are unknown."""
    in_passthrough = gpu.passthrough is not None and gpu.passthrough.active is True
    return gpu.vms is not None and all(ref in desktops for ref in gpu.vms) and not in_passthrough


def _demand_of(
    waiting: WaitingVm,
    vm: Vm,
    names: Mapping[str, tuple[Host, PhysicalGpu]],
    inventory: Inventory,
    catalog: Catalog,
    bounds: Bounds,
) -> _GpuDemand | None:
    """Return the demand of the VM; None = it has other devices than vGPUs, or a profile that the catalogue lacks."""
    profiles = [profile for name in vm.profiles if (profile := catalog.profile(name)) is not None]
    if not profiles or len(profiles) < len(vm.devices or ()):
        return None
    hosts = {host.ref for host in hosts_for(vm, waiting.queued, inventory)}
    pins = set(pins_of(vm).values())
    allowed: set[str] = set()
    for name, (host, gpu) in names.items():
        is_eligible = host.ref in hosts and (not pins or gpu.address in pins) and not gpu.vgpu_obstacle
        if is_eligible and all(host.offers(profile) is not None for profile in vm.profiles):
            board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
            in_mig_mode = gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE
            # An unknown model or vGPU mode excludes nothing: the exact rules check each proposal again.
            same_model = board is None or all(board.key == profile.board for profile in profiles)
            same_mode = gpu.vgpu_mode is None or all(profile.mig_backed is in_mig_mode for profile in profiles)
            if same_model and same_mode:
                allowed.add(name)
    queued, due = waiting.queued, waiting.queued.due(bounds.night)
    start_s = bounds.durations.p99_s("PowerOnVm", vm.host, UNMEASURED_START_S)
    return _GpuDemand(
        gpus=len(profiles),
        share=profiles[0].max_per_gpu if len(profiles) == 1 else 1,
        profiles=vm.profiles,
        allowed=frozenset(allowed),
        priority=queued.priority,
        least_minutes=max(1, ceil((queued.minimum_run.total_seconds() + start_s) / 60)),
        deadline=None if due is None else max(0, _whole_minutes(due - bounds.now)),
    )


def _fits_on_shared_gpu(waiting: WaitingVm, vm: Vm, names: Collection[str], inventory: Inventory, room: Room) -> bool:
    """Return whether the VM has room on a GPU whose VMs stay, so that no GPU must be freed for it."""
    for host in hosts_for(vm, waiting.queued, inventory):
        shared_gpus = tuple(gpu for gpu in host.gpus if gpu.vms and f"{host.ref} {gpu.address}" not in names)
        if shared_gpus:
            shared_host = replace(host, gpus=shared_gpus)
            if not room.refusals(
                vm, shared_host, reduced_to_host(shared_host, inventory.with_hosts([shared_host]), vm)
            ):
                return True
    return False


def _jobs_of_demand(demand: _GpuDemand, vms: Sequence[Vm], minutes: int) -> Iterator[tuple[Job, tuple[Vm, ...]]]:
    """Yield the jobs of VMs with one demand, with the VMs that share their GPUs: five VMs of half a GPU are three
    jobs."""
    length = max(minutes, demand.least_minutes) + 1  # longer than the night: every run ends with it
    for first in range(0, len(vms), demand.share):
        sharing = tuple(vms[first : first + demand.share])
        yield (
            Job(
                sharing[0].ref,
                demand.gpus,
                minutes=length,
                least_minutes=demand.least_minutes,
                priority=demand.priority,
                deadline=demand.deadline,
                allowed=demand.allowed,
            ),
            sharing,
        )


def _whole_minutes(length: timedelta) -> int:
    return int(length.total_seconds() // 60)


SEARCH_UNITS: Final = 600_000
"""The work that the search of `plan/schedule` may do, in its units: at most half a second of one core."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where one VM should start, and the GPUs there that should be free for it."""

    host: str
    gpus: tuple[PciAddress, ...]


def propose(schedule_input: ScheduleInput, units: int = SEARCH_UNITS) -> dict[str, Proposal]:
    """Return a proposal for each VM (ref) for which the scheduler found GPUs."""
    night_schedule = schedule(schedule_input.problem, units)
    places = _reduce_moves(schedule_input, {run.job: run.gpus for run in night_schedule.runs})
    proposals = {}
    for job, gpus in places.items():
        proposal = Proposal(schedule_input.gpus[gpus[0]][0], tuple(schedule_input.gpus[name][1] for name in gpus))
        proposals.update({vm.ref: proposal for vm in schedule_input.jobs[job]})
    return proposals


Places = dict[str, tuple[str, ...]]
"""Job -> its GPUs."""


def _reduce_moves(schedule_input: ScheduleInput, places: Places) -> Places:
    """Return equally good places for which fewer VMs must move to another host.

    The schedule does not know where a VM is now. So a job goes to unused GPUs of its own host if these cost no more
    desktops, and then two interchangeable jobs swap places if fewer of them move.
    """
    improved = dict(places)
    jobs = {job.name: job for job in schedule_input.problem.jobs}
    cost = {gpu.name: sum(desktop.cost for desktop in gpu.desktops) for gpu in schedule_input.problem.gpus}
    for name, gpus in places.items():
        if _count_at_home(schedule_input, name, gpus):
            continue
        at_home = _unused_at_home(schedule_input, jobs[name], improved, cost)
        if at_home is not None and sum(cost[gpu] for gpu in at_home) <= sum(cost[gpu] for gpu in gpus):
            improved[name] = at_home
    for name_a, name_b in combinations(places, 2):
        gpus_a, gpus_b = improved[name_a], improved[name_b]
        needs_a, needs_b = (
            (job.gpus, job.priority, job.deadline, job.at_least) for job in (jobs[name_a], jobs[name_b])
        )
        a_may_swap = all(_may_use(jobs[name_a], gpu) for gpu in gpus_b)
        b_may_swap = all(_may_use(jobs[name_b], gpu) for gpu in gpus_a)
        if needs_a != needs_b or not a_may_swap or not b_may_swap:
            continue
        at_home_now = _count_at_home(schedule_input, name_a, gpus_a) + _count_at_home(schedule_input, name_b, gpus_b)
        at_home_then = _count_at_home(schedule_input, name_a, gpus_b) + _count_at_home(schedule_input, name_b, gpus_a)
        if at_home_then > at_home_now:
            improved[name_a], improved[name_b] = gpus_b, gpus_a
    return improved


def _count_at_home(schedule_input: ScheduleInput, job: str, gpus: Sequence[str]) -> int:
    """Count the VMs of the job that are on the host of these GPUs now."""
    host, _ = schedule_input.gpus[gpus[0]]
    return sum(vm.host == host for vm in schedule_input.jobs[job])


def _unused_at_home(
    schedule_input: ScheduleInput, job: Job, places: Places, cost: Mapping[str, int]
) -> tuple[str, ...] | None:
    """Return the cheapest unused GPUs of the own host of the job; None = there are too few."""
    used = {gpu for gpus in places.values() for gpu in gpus}
    home = schedule_input.jobs[job.name][0].host
    unused = [
        gpu.name
        for gpu in schedule_input.problem.gpus
        if gpu.host == home and gpu.name not in used and _may_use(job, gpu.name)
    ]
    unused.sort(key=lambda name: (cost[name], name))
    return tuple(unused[: job.gpus]) if len(unused) >= job.gpus else None


def _may_use(job: Job, gpu: str) -> bool:
    return job.allowed is None or gpu in job.allowed
