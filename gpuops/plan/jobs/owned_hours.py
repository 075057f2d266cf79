"""Whose the hours of a VM are in which jobs of several owners ran in one night: each has those of its own jobs. Pure.

The journal notes one owner of a VM when a night starts it, that of the first job. What no job was seen to run in, such
as the start of the guest, the pulling of images and the time between two jobs, stays that owner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.model.nights.history import HeldPeriod, JobTime, PastNight, PastVm
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.workloads.job_record import SubmittedJob
from gpuops.plan.jobs.turns import held_periods


@dataclass(frozen=True, slots=True)
class _Ran:
    """An attempt at a job."""

    owner: str | None
    held: HeldPeriod


def with_job_times(nights: Iterable[PastNight], submitted: Sequence[SubmittedJob]) -> tuple[PastNight, ...]:
    """These nights, whose ML VMs have the times of the jobs that ran in them; all are of one vCenter."""
    by_vm: dict[str, list[_Ran]] = {}
    for job in submitted:
        for vm, held in held_periods(job):
            by_vm.setdefault(vm, []).append(_Ran(job.job.owner, held))
    return tuple(
        replace(night, vms=tuple(_with_job_times(vm, by_vm) if vm.is_ml else vm for vm in night.vms))
        for night in nights
    )


def _with_job_times(vm: PastVm, by_vm: Mapping[str, Sequence[_Ran]]) -> PastVm:
    if vm.owner is None:
        return vm
    ran = [each for name in (vm.uuid, vm.ref) for each in by_vm.get(name or "", ()) if _in_it(each, vm)]
    # a VM that a job without an owner was the first to get is noted as its own owner's
    noted_of_job = any(each.owner == vm.owner.owner for each in ran)
    times = (
        JobTime(NotedOwner(vm.owner.by, each.owner) if each.owner is not None else None, begins, each.held.ends)
        for each in ran
        if (begins := each.held.begins) is not None and (each.owner is not None or noted_of_job)
    )
    return replace(vm, jobs=tuple(sorted(times, key=lambda each: each.begins)))


def _in_it(ran: _Ran, vm: PastVm) -> bool:
    """Whether it ran while the night held the VM."""
    return any(_before(ran.held, held) and _before(held, ran.held) for held in vm.held)


def _before(one: HeldPeriod, other: HeldPeriod) -> bool:
    """Whether it begins before the other ends, as far as both are known."""
    return one.begins is None or other.ends is None or one.begins < other.ends
