"""Rotation, the proposal: which GPUs are freed for which VM of the queue, for the whole queue at once.

The scheduler (`plan/schedule`) looks for the most GPU-hours, the higher priority first, then for the fewest desktops.
What it says is a proposal: whether a VM can really start there is for the exact rules to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from gpuops.model.gpu import PciAddress
from gpuops.plan.rotation.evening import Evening
from gpuops.plan.schedule.problem import Job
from gpuops.plan.schedule.schedule import schedule

UNITS: Final = 600_000
"""Units of thought: half a second of one core at the most."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where one VM should start, and the GPUs there that should be free for it."""

    host: str
    gpus: tuple[PciAddress, ...]


def propose(evening: Evening, units: int = UNITS) -> dict[str, Proposal]:
    """A proposal for each VM that the scheduler has found GPUs for, by ref."""
    found = schedule(evening.problem, units)
    places = _fewer_moves(evening, {run.job: run.gpus for run in found.runs})
    proposals = {}
    for job, gpus in places.items():
        of_job = Proposal(evening.gpus[gpus[0]][0], tuple(evening.gpus[name][1] for name in gpus))
        proposals.update({vm.ref: of_job for vm in evening.jobs[job]})
    return proposals


Places = dict[str, tuple[str, ...]]
"""Job -> its GPUs."""


def _fewer_moves(evening: Evening, places: Places) -> Places:
    """The same with VMs at home where that costs nothing: on GPUs left over there, or in one another's place."""
    found = dict(places)
    jobs = {job.name: job for job in evening.problem.jobs}
    cost = {gpu.name: sum(desktop.cost for desktop in gpu.desktops) for gpu in evening.problem.gpus}
    for name, gpus in places.items():
        at_home = _left_at_home(evening, jobs[name], found, cost) if not _is_home(evening, name, gpus) else None
        if at_home is not None and sum(cost[gpu] for gpu in at_home) <= sum(cost[gpu] for gpu in gpus):
            found[name] = at_home
    for one, two in combinations(places, 2):
        if _may_swap(jobs[one], found[one], jobs[two], found[two]):
            now = _is_home(evening, one, found[one]) + _is_home(evening, two, found[two])
            if _is_home(evening, one, found[two]) + _is_home(evening, two, found[one]) > now:
                found[one], found[two] = found[two], found[one]
    return found


def _is_home(evening: Evening, job: str, gpus: Sequence[str]) -> int:
    """How many of its VMs need not be moved."""
    return sum(vm.host == evening.gpus[gpus[0]][0] for vm in evening.jobs[job])


def _left_at_home(evening: Evening, job: Job, places: Places, cost: Mapping[str, int]) -> tuple[str, ...] | None:
    used = {gpu for gpus in places.values() for gpu in gpus}
    home = evening.jobs[job.name][0].host
    left = [
        gpu.name for gpu in evening.problem.gpus if gpu.host == home and gpu.name not in used and _may(job, gpu.name)
    ]
    left.sort(key=lambda name: (cost[name], name))
    return tuple(left[: job.gpus]) if len(left) >= job.gpus else None


def _may(job: Job, gpu: str) -> bool:
    return job.allowed is None or gpu in job.allowed


def _may_swap(one: Job, of_one: Sequence[str], two: Job, of_two: Sequence[str]) -> bool:
    """Whether each may run on the other's GPUs, wanted just as much."""
    alike = (one.gpus, one.priority, one.deadline, one.at_least) == (two.gpus, two.priority, two.deadline, two.at_least)
    return alike and all(_may(one, gpu) for gpu in of_two) and all(_may(two, gpu) for gpu in of_one)
