"""Rotation, the evening as the scheduler sees it: GPUs that could be freed, and what waits for whole ones.

What it is told is a rough picture, so that it is quick to look at: GPUs are free or have idle desktops, a VM needs so
many of a model, on hosts that it may go to. Cores, memory and places on a GPU are left to the exact rules, which judge
what it proposes (`queue.py`).

* A GPU is in it when nobody is on it, or only desktops that may be taken, all idle now.
* A VM whose devices are all vGPUs is in it, a GPU for each of them. VMs of one vGPU that is a part of a GPU share one:
  as many as fit, of those that may go to the same GPUs and are wanted alike.
* An ML VM runs until its GPU is due: nobody says how long its work takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vgpu import VgpuProfile
from gpuops.model.vm import Vm
from gpuops.plan.placement.room import Room, around
from gpuops.plan.placement.wanted import pins_of
from gpuops.plan.rotation.bounds import UNMEASURED_START_S, UNMEASURED_SUSPEND_S, Bounds
from gpuops.plan.rotation.return_time import MARGIN, SLOWER_THAN_EVER, UNMEASURED_RESUME_S
from gpuops.plan.rotation.waiting import Waiting
from gpuops.plan.rotation.whereto import hosts_for
from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits

NO_WINDOW: Final = timedelta(hours=12)
"""How long a night is thought to be where no window says it. All GPUs being idle now, it changes little."""
_DESKTOP_WORTH_MINUTES: Final = 15
"""GPU-minutes given up to spare a desktop: less than a quarter of an hour of one GPU is not worth a user's session."""


@dataclass(frozen=True, slots=True)
class Evening:
    """The scheduler's question, and what its names stand for."""

    problem: NightProblem
    gpus: Mapping[str, tuple[str, PciAddress]]
    """GPU -> host ref and address."""
    jobs: Mapping[str, tuple[Vm, ...]]
    """Job -> the VMs that share its GPUs; the first of the queue first."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one VM waits for. VMs of equal wishes may stand in for each other."""

    gpus: int
    share: int
    """So many such VMs fit on one GPU."""
    profiles: tuple[str, ...]
    allowed: frozenset[str]
    priority: int
    least_minutes: int
    deadline: int | None


def evening(
    queue: Iterable[Waiting],
    free_to_take: Sequence[Vm],
    inventory: Inventory,
    room: Room,
    bounds: Bounds,
    priority: Mapping[str, int],
) -> Evening:
    """The evening. `priority` of desktops, by ref: sparing one of a higher comes before sparing any number below it."""
    minutes = _night_minutes(bounds)
    desktops = {vm.ref: _desktop(vm, bounds, priority, len(free_to_take)) for vm in free_to_take}
    seen = [(host, gpu) for host in inventory.hosts.values() for gpu in host.gpus if _is_free(gpu, desktops)]
    names = {f"{host.ref} {gpu.address}": (host, gpu) for host, gpu in seen if host.connected is True}
    gpus = tuple(
        NightGpu(name, host.ref, tuple(desktops[ref] for ref in dict.fromkeys(gpu.vms or ())))
        for name, (host, gpu) in names.items()
    )
    wishes: dict[_Wish, list[Vm]] = defaultdict(list)
    for waiting in _within_counts(queue):
        vm = waiting.vm
        if vm is None:
            continue
        wish = _wish(waiting, vm, names, inventory, room.catalog, bounds)
        if wish is not None and (wish.share == 1 or not _beside_others(waiting, vm, names, inventory, room)):
            wishes[wish].append(vm)
    jobs = {job.name: (job, vms) for wish, found in wishes.items() for job, vms in _jobs(wish, found, minutes)}
    policy = bounds.policy.limits
    limits = OperationLimits(policy.per_host, policy.per_datastore, policy.in_flight)
    problem = NightProblem(
        minutes, gpus, tuple(job for job, _ in jobs.values()), limits, SLOWER_THAN_EVER, _DESKTOP_WORTH_MINUTES
    )
    places = {name: (host.ref, gpu.address) for name, (host, gpu) in names.items()}
    return Evening(problem, places, {name: vms for name, (_, vms) in jobs.items()})


def _night_minutes(bounds: Bounds) -> int:
    """From now until all desktops are back; ML VMs are asked to stop before the first of them is resumed."""
    length = NO_WINDOW if bounds.night is None else bounds.night.back_by - bounds.now - MARGIN
    return max(0, _floor(length - timedelta(seconds=bounds.policy.ml_stop.grace_s)))


def _desktop(vm: Vm, bounds: Bounds, priority: Mapping[str, int], desktops: int) -> Desktop:
    levels = sorted(set(priority.values()))
    weight = levels.index(priority.get(vm.ref, 0)) if vm.ref in priority else 0
    suspend_s = bounds.durations.p99_s("SuspendVm", vm.host, UNMEASURED_SUSPEND_S)
    resume_s = bounds.durations.p99_s("ResumeVm", vm.host, UNMEASURED_RESUME_S)
    return Desktop(vm.ref, 0, ceil(suspend_s / 60), ceil(resume_s / 60), vm.datastores, (desktops + 1) ** weight)


def _is_free(gpu: PhysicalGpu, desktops: Collection[str]) -> bool:
    """Whether it has nobody on it, or only desktops that may be taken; a GPU in passthrough does not tell who is."""
    return gpu.vms is not None and all(ref in desktops for ref in gpu.vms) and not _given_away(gpu)


def _given_away(gpu: PhysicalGpu) -> bool:
    return gpu.passthrough is not None and gpu.passthrough.active is True


def _within_counts(queue: Iterable[Waiting]) -> Iterator[Waiting]:
    """Those that may start, of each entry no more than it asks for."""
    queue = tuple(queue)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    for waiting in queue:
        most = waiting.queued.count
        if waiting.vm is not None and not waiting.reason and (most is None or running[waiting.queued] < most):
            running[waiting.queued] += 1
            yield waiting


def _wish(
    waiting: Waiting,
    vm: Vm,
    names: Mapping[str, tuple[Host, PhysicalGpu]],
    inventory: Inventory,
    catalog: Catalog,
    bounds: Bounds,
) -> _Wish | None:
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
    return _Wish(
        gpus=len(known),
        share=known[0].max_per_gpu if len(known) == 1 else 1,
        profiles=vm.profiles,
        allowed=allowed,
        priority=queued.priority,
        least_minutes=max(1, ceil((queued.minimum_run.total_seconds() + start_s) / 60)),
        deadline=None if due is None else max(0, _floor(due - bounds.now)),
    )


def _beside_others(waiting: Waiting, vm: Vm, names: Collection[str], inventory: Inventory, room: Room) -> bool:
    """Whether there is room for it on a GPU that others keep: then it needs no GPU of its own."""
    for host in hosts_for(vm, waiting.queued, inventory):
        kept = tuple(gpu for gpu in host.gpus if gpu.vms and f"{host.ref} {gpu.address}" not in names)
        if kept:
            alone = replace(host, gpus=kept)
            if not room.refusals(vm, alone, around(alone, inventory.with_hosts([alone]), vm)):
                return True
    return False


def _carries(host: Host, gpu: PhysicalGpu, profile: VgpuProfile, name: str, catalog: Catalog) -> bool:
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is not None and board.key != profile.board:
        return False
    mig = gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE
    return host.offers(name) is not None and (gpu.vgpu_mode is None or mig is profile.mig_backed)


def _jobs(wish: _Wish, vms: Sequence[Vm], minutes: int) -> Iterator[tuple[Job, tuple[Vm, ...]]]:
    for at in range(0, len(vms), wish.share):
        sharing = tuple(vms[at : at + wish.share])
        least = wish.least_minutes
        yield (
            Job(sharing[0].ref, wish.gpus, max(minutes, least) + 1, least, wish.priority, wish.deadline, wish.allowed),
            sharing,
        )


def _floor(length: timedelta) -> int:
    return int(length.total_seconds() // 60)
