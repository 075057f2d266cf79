"""Divides the hours of a VM between the owners whose jobs ran in it in one night: each has those of its own jobs. Pure.

The journal records one owner of a VM when a night starts it, the owner of the first job. Time without a running job,
such as the start of the guest, the pull of images and the time between two jobs, counts for that owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.model.nights.history import HeldPeriod, JobTime, PastNight, PastVm
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.workloads.job_record import SubmittedJob
from gpuops.plan.jobs.turns import held_periods


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt at a job."""

    owner: str | None
    period: HeldPeriod


def with_job_times(nights: Iterable[PastNight], submitted: Sequence[SubmittedJob]) -> tuple[PastNight, ...]:
    """Return these nights of one vCenter, with the times of jobs added to their ML VMs."""
    by_vm: dict[str, list[_Attempt]] = {}
    for job in submitted:
        for vm, period in held_periods(job):
            by_vm.setdefault(vm, []).append(_Attempt(job.job.owner, period))
    return tuple(
        replace(night, vms=tuple(_with_job_times(vm, by_vm) if vm.is_ml else vm for vm in night.vms))
        for night in nights
    )


def _with_job_times(vm: PastVm, by_vm: Mapping[str, Sequence[_Attempt]]) -> PastVm:
    if vm.owner is None:
        return vm
    attempts = [attempt for name in (vm.uuid, vm.ref) for attempt in by_vm.get(name or "", ()) if _ran_in(attempt, vm)]
    # if the first job of a VM has no owner, the recorded owner is that of the VM
    noted_of_job = any(attempt.owner == vm.owner.owner for attempt in attempts)
    times = (
        JobTime(
            NotedOwner(vm.owner.by, attempt.owner) if attempt.owner is not None else None, begins, attempt.period.ends
        )
        for attempt in attempts
        if (begins := attempt.period.begins) is not None and (attempt.owner is not None or noted_of_job)
    )
    return replace(vm, jobs=tuple(sorted(times, key=lambda job_time: job_time.begins)))


def _ran_in(attempt: _Attempt, vm: PastVm) -> bool:
    """Return whether the attempt ran while the night held the VM."""
    return any(
        _before(attempt.period, night_period) and _before(night_period, attempt.period) for night_period in vm.held
    )


def _before(first: HeldPeriod, second: HeldPeriod) -> bool:
    """Return whether the first period begins before the second ends, as far as both moments are known."""
    return first.begins is None or second.ends is None or first.begins < second.ends
