"""Which GPUs are freed for which VM of the queue, proposed for the whole queue at once. `night.py` calls it, and
`queue.py` judges each proposal by the exact rules.

`plan/schedule` looks for the most GPU-hours, the higher priority first, then for the fewest desktops. It is given a
rough picture, so that it is quick: GPUs are free or have idle desktops, and a VM needs so many GPUs on hosts that it
may go to. Cores, memory and slots on a GPU are left to the exact rules.

* A GPU is part of it when no VM is on it, or only desktops that may be taken, all idle now.
* A VM whose devices are all vGPUs is part of it, with one GPU for each of them. VMs with one vGPU that is a part of a
  GPU share one: as many as fit, of those that may go to the same GPUs and have the same priority and deadline.
* An ML VM runs until its GPU is needed again: how long its work takes is not known.

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
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm, pins_of
from gpuops.plan.placement.room import Room, around
from gpuops.plan.rotation.ml_queue.ml_vms import (
    NO_WINDOW,
    HeldBack,
    WaitingVm,
    hosts_for,
    nobody_held_back,
    within_counts,
)
from gpuops.plan.rotation.nights.bounds import UNMEASURED_START_S, UNMEASURED_SUSPEND_S, Bounds
from gpuops.plan.rotation.returns.return_time import MARGIN, SLOWER_THAN_EVER, UNMEASURED_RESUME_S
from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits
from gpuops.plan.schedule.schedule import schedule

_DESKTOP_WORTH_MINUTES: Final = 15
"""GPU-minutes that are given up to spare a desktop: for less than that no user's session is suspended."""


@dataclass(frozen=True, slots=True)
class ScheduleInput:
    """The problem for `plan/schedule`, and what the names in it stand for."""

    problem: NightProblem
    gpus: Mapping[str, tuple[str, PciAddress]]
    """GPU -> host ref and address."""
    jobs: Mapping[str, tuple[Vm, ...]]
    """Job -> the VMs that share its GPUs; the first of the queue first."""


@dataclass(frozen=True, slots=True)
class _GpuDemand:
    """What one VM needs. VMs with equal demands can be exchanged for each other, and share GPUs."""

    gpus: int
    share: int
    """So many such VMs fit on one GPU."""
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
    held_back: HeldBack = nobody_held_back,
) -> ScheduleInput:
    """The problem of this night.

    `priority` of desktops, by ref: to spare one of a higher priority counts more than to spare any number of lower
    ones. `held_back`: VMs that may not start beside those before them have no part in it.
    """
    minutes = _night_minutes(bounds)
    # The GPUs that are free, or that are once their desktops are suspended; one with a VM that stays is left to the
    # exact rules.
    desktops = {vm.ref: _desktop(vm, bounds, priority, len(free_to_take)) for vm in free_to_take}
    can_be_free = [(host, gpu) for host in inventory.hosts.values() for gpu in host.gpus if _is_free(gpu, desktops)]
    names = {f"{host.ref} {gpu.address}": (host, gpu) for host, gpu in can_be_free if host.connected is True}
    gpus = tuple(
        NightGpu(name, host.ref, tuple(desktops[ref] for ref in dict.fromkeys(gpu.vms or ())))
        for name, (host, gpu) in names.items()
    )
    # VMs with equal demands, in the order of the queue. One that shares a GPU, and finds room on a GPU whose VMs stay,
    # needs no GPU to be freed.
    demands: dict[_GpuDemand, list[Vm]] = defaultdict(list)
    tried_by: dict[str, tuple[int, int]] = {}
    """VM ref -> what is served first has the higher one."""
    for waiting in within_counts(queue):
        vm = waiting.vm
        if vm is None or held_back([inventory.vms[ref] for ref in tried_by], vm):
            continue
        tried_by[vm.ref] = (waiting.queued.priority, -waiting.rank)
        demand = _demand_of(waiting, vm, names, inventory, room.catalog, bounds)
        if demand is not None and (demand.share == 1 or not _beside_others(waiting, vm, names, inventory, room)):
            demands[demand].append(vm)
    # Those that share a GPU are served with the first of them: the others take what is left of it.
    levels = {level: number for number, level in enumerate(sorted(set(tried_by.values())))}
    jobs = {
        job.name: (replace(job, priority=levels[tried_by[job.name]]), vms)
        for demand, alike in demands.items()
        for job, vms in _jobs(demand, alike, minutes)
    }
    at_once = bounds.policy.limits
    limits = OperationLimits(at_once.per_host, at_once.per_datastore, at_once.in_flight)
    problem = NightProblem(
        minutes, gpus, tuple(job for job, _ in jobs.values()), limits, SLOWER_THAN_EVER, _DESKTOP_WORTH_MINUTES
    )
    places = {name: (host.ref, gpu.address) for name, (host, gpu) in names.items()}
    return ScheduleInput(problem, places, {name: vms for name, (_, vms) in jobs.items()})


def _night_minutes(bounds: Bounds) -> int:
    """The minutes from now until all desktops are back, less what the ML VMs get for their shutdown."""
    length = NO_WINDOW if bounds.night is None else bounds.night.back_by - bounds.now - MARGIN
    return max(0, _floor(length - timedelta(seconds=bounds.policy.ml_stop.grace_s)))


def _desktop(vm: Vm, bounds: Bounds, priority: Mapping[str, int], desktops: int) -> Desktop:
    """The desktop with its cost: of `desktops` in all, one of the next higher priority costs more than all others."""
    levels = sorted(set(priority.values()))
    weight = levels.index(priority.get(vm.ref, 0)) if vm.ref in priority else 0
    suspend_s = bounds.durations.p99_s("SuspendVm", vm.host, UNMEASURED_SUSPEND_S)
    resume_s = bounds.durations.p99_s("ResumeVm", vm.host, UNMEASURED_RESUME_S)
    return Desktop(vm.ref, 0, ceil(suspend_s / 60), ceil(resume_s / 60), vm.datastores, (desktops + 1) ** weight)


def _is_free(gpu: PhysicalGpu, desktops: Collection[str]) -> bool:
    """Whether no VM is on the GPU, or only desktops that may be taken; of one in passthrough that cannot be read."""
    return gpu.vms is not None and all(ref in desktops for ref in gpu.vms) and not _in_passthrough(gpu)


def _in_passthrough(gpu: PhysicalGpu) -> bool:
    return gpu.passthrough is not None and gpu.passthrough.active is True


def _demand_of(
    waiting: WaitingVm,
    vm: Vm,
    names: Mapping[str, tuple[Host, PhysicalGpu]],
    inventory: Inventory,
    catalog: Catalog,
    bounds: Bounds,
) -> _GpuDemand | None:
    """What the VM waits for; None = not whole GPUs for vGPUs, or nothing that the catalogue knows."""
    profiles = [catalog.profile(name) for name in vm.profiles]
    known = [profile for profile in profiles if profile is not None]
    if not known or len(known) < len(vm.devices or ()):
        return None
    hosts = {host.ref for host in hosts_for(vm, waiting.queued, inventory)}
    pins = set(pins_of(vm).values())
    allowed = frozenset(
        name
        for name, (host, gpu) in names.items()
        if host.ref in hosts
        and (not pins or gpu.address in pins)
        and all(_carries(host, gpu, profile, name_, catalog) for profile, name_ in zip(known, vm.profiles, strict=True))
    )
    queued, due = waiting.queued, waiting.queued.due(bounds.night)
    start_s = bounds.durations.p99_s("PowerOnVm", vm.host, UNMEASURED_START_S)
    return _GpuDemand(
        gpus=len(known),
        share=known[0].max_per_gpu if len(known) == 1 else 1,
        profiles=vm.profiles,
        allowed=allowed,
        priority=queued.priority,
        least_minutes=max(1, ceil((queued.minimum_run.total_seconds() + start_s) / 60)),
        deadline=None if due is None else max(0, _floor(due - bounds.now)),
    )


def _beside_others(waiting: WaitingVm, vm: Vm, names: Collection[str], inventory: Inventory, room: Room) -> bool:
    """Whether the VM has room on a GPU whose VMs stay: then it needs no GPU that is freed."""
    for host in hosts_for(vm, waiting.queued, inventory):
        kept = tuple(gpu for gpu in host.gpus if gpu.vms and f"{host.ref} {gpu.address}" not in names)
        if kept:
            alone = replace(host, gpus=kept)
            if not room.refusals(vm, alone, around(alone, inventory.with_hosts([alone]), vm)):
                return True
    return False


def _carries(host: Host, gpu: PhysicalGpu, profile: VgpuProfile, name: str, catalog: Catalog) -> bool:
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if (board is not None and board.key != profile.board) or gpu.vgpu_obstacle:
        return False
    mig = gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE
    return host.offers(name) is not None and (gpu.vgpu_mode is None or mig is profile.mig_backed)


def _jobs(demand: _GpuDemand, vms: Sequence[Vm], minutes: int) -> Iterator[tuple[Job, tuple[Vm, ...]]]:
    """The jobs of VMs with one demand, each with the VMs that share its GPUs: five VMs of half a GPU are three jobs."""
    for at in range(0, len(vms), demand.share):
        sharing = tuple(vms[at : at + demand.share])
        least = demand.least_minutes
        yield (
            Job(
                sharing[0].ref,
                demand.gpus,
                max(minutes, least) + 1,
                least,
                demand.priority,
                demand.deadline,
                demand.allowed,
            ),
            sharing,
        )


def _floor(length: timedelta) -> int:
    return int(length.total_seconds() // 60)


UNITS: Final = 600_000
"""The work that the search may do, in its units: half a second of one core at the most."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where one VM should start, and the GPUs there that should be free for it."""

    host: str
    gpus: tuple[PciAddress, ...]


def propose(schedule_input: ScheduleInput, units: int = UNITS) -> dict[str, Proposal]:
    """A proposal for each VM that the scheduler has found GPUs for, by ref."""
    night = schedule(schedule_input.problem, units)
    places = _fewer_moves(schedule_input, {run.job: run.gpus for run in night.runs})
    proposals = {}
    for job, gpus in places.items():
        proposal = Proposal(schedule_input.gpus[gpus[0]][0], tuple(schedule_input.gpus[name][1] for name in gpus))
        proposals.update({vm.ref: proposal for vm in schedule_input.jobs[job]})
    return proposals


Places = dict[str, tuple[str, ...]]
"""Job -> its GPUs."""


def _fewer_moves(schedule_input: ScheduleInput, places: Places) -> Places:
    """The same places, with fewer VMs that must be moved to another host, at no cost.

    The schedule does not know where a VM is now. So a job goes to unused GPUs of its own host where these cost no more
    desktops, and then two jobs that can be exchanged for each other change places where fewer of them move.
    """
    fewer = dict(places)
    jobs = {job.name: job for job in schedule_input.problem.jobs}
    cost = {gpu.name: sum(desktop.cost for desktop in gpu.desktops) for gpu in schedule_input.problem.gpus}
    for name, gpus in places.items():
        if _is_home(schedule_input, name, gpus):
            continue
        at_home = _unused_at_home(schedule_input, jobs[name], fewer, cost)
        if at_home is not None and sum(cost[gpu] for gpu in at_home) <= sum(cost[gpu] for gpu in gpus):
            fewer[name] = at_home
    for one, two in combinations(places, 2):
        if _may_swap(jobs[one], fewer[one], jobs[two], fewer[two]):
            at_home_now = _is_home(schedule_input, one, fewer[one]) + _is_home(schedule_input, two, fewer[two])
            at_home_then = _is_home(schedule_input, one, fewer[two]) + _is_home(schedule_input, two, fewer[one])
            if at_home_then > at_home_now:
                fewer[one], fewer[two] = fewer[two], fewer[one]
    return fewer


def _is_home(schedule_input: ScheduleInput, job: str, gpus: Sequence[str]) -> int:
    """How many VMs of the job need not be moved."""
    return sum(vm.host == schedule_input.gpus[gpus[0]][0] for vm in schedule_input.jobs[job])


def _unused_at_home(
    schedule_input: ScheduleInput, job: Job, places: Places, cost: Mapping[str, int]
) -> tuple[str, ...] | None:
    """The cheapest GPUs of the job's own host that no job uses; None = there are too few."""
    used = {gpu for gpus in places.values() for gpu in gpus}
    home = schedule_input.jobs[job.name][0].host
    unused = [
        gpu.name
        for gpu in schedule_input.problem.gpus
        if gpu.host == home and gpu.name not in used and _may(job, gpu.name)
    ]
    unused.sort(key=lambda name: (cost[name], name))
    return tuple(unused[: job.gpus]) if len(unused) >= job.gpus else None


def _may(job: Job, gpu: str) -> bool:
    """Whether the job may run on the GPU."""
    return job.allowed is None or gpu in job.allowed


def _may_swap(one: Job, of_one: Sequence[str], two: Job, of_two: Sequence[str]) -> bool:
    """Whether the two jobs are alike, and each may run on the other's GPUs."""
    alike = (one.gpus, one.priority, one.deadline, one.at_least) == (two.gpus, two.priority, two.deadline, two.at_least)
    return alike and all(_may(one, gpu) for gpu in of_two) and all(_may(two, gpu) for gpu in of_one)
