"""Jobs of the trace as containers in VMs with a share of a GPU each: the order of the queue's plan beside first come,
first served.

Two hosts with two A40 each, for 48 hours: 6 nights of 8 hours, taken as one, as a job that the morning stops goes on
from its checkpoint. Jobs are pods of the trace that ask for one GPU or a part of it and stayed for
10 minutes to 12 hours, drawn with their stays; they come by chance, of 1.2 times the GPU-hours that there are. A job
gets a quarter, a half or the whole of a GPU, whatever its pod asked for at least. Whenever one comes or ends, `Place`
is asked anew, each time with the jobs that run as VMs of the snapshot; nobody is moved or interrupted, and what runs
beside others is no slower, under every rule alike.

Rules: *first come, first served*: nobody starts before one who came earlier; *whoever fits*: in the order of coming,
but who finds no place lets others by; *the queue's order*: that of `gpuops place` (`gpuops job plan`, the queue of a
night): larger first; *shortest first*: `whoever fits`, by run time, which is what a night's schedule does among jobs of
one priority.

Bounds, both on one machine with all GPUs, on which every job may be interrupted and runs as fast as that machine does,
by who knows all that comes. GPU-hours of finished jobs: that machine works whenever there is work; of jobs that cannot
end in time even where they start at once, nothing counts. Mean waiting time: a job's mean busy time there is at most
its start and half of its run time, and the mean of those is least when the job with the least work goes first
(Goemans, Queyranne, Schulz, Skutella, Wang, "Single machine scheduling with release dates", 2002: the mean busy time
relaxation).

The trace is needed: `make bench OPENB=DIR`.
"""

from __future__ import annotations

import csv
import heapq
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.project import release, take
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.place import Place
from gpuops.plan.queue.workload import running
from tests.bench.verdict import Figure, Result
from tests.plan.snapshots import FIRST, SECOND, catalog, gpu, host, inventory, without_vm

SEEDS: Final = tuple(range(10))
HOSTS: Final = 2
GPUS: Final = 2 * HOSTS
HOURS: Final = 48.0
LOAD: Final = 1.2
SHORTEST_H, LONGEST_H = 1 / 6, 12.0
PROFILES: Final = {250: "nvidia_a40-12c", 500: "nvidia_a40-24c", 1000: "nvidia_a40-48c"}
"""By the milli-GPU that they are."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job, in hours; `milli` of a GPU."""

    number: int
    comes: float
    takes: float
    milli: int

    @property
    def gpu_hours(self) -> float:
        return self.takes * self.milli / 1000

    @property
    def workload(self) -> Workload:
        return Workload(f"job-{self.number:04}", 4, 16 * 1024, profile=PROFILES[self.milli])


@dataclass(frozen=True, slots=True)
class Played:
    """GPU-hours of jobs that had ended in time; the mean of all jobs' waiting time, in hours."""

    gpu_hours: float
    waiting_h: float


def pods(folder: Path) -> list[tuple[float, int]]:
    """Hours of stay and milli-GPU of each pod of the trace that can be such a job."""
    found = []
    with (folder / "openb_pod_list_default.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["num_gpu"] == "1" and row["scheduled_time"]:
                stay = (float(row["deletion_time"]) - float(row["scheduled_time"])) / 3600
                if SHORTEST_H <= stay <= LONGEST_H:
                    found.append((stay, min(share for share in PROFILES if share >= int(row["gpu_milli"]))))
    return found


def jobs_of(drawn_from: Sequence[tuple[float, int]], seed: int) -> list[TraceJob]:
    """Of as many GPU-hours as `LOAD` says, by the time of their coming."""
    chance = random.Random(seed)
    picked: list[tuple[float, int]] = []
    while sum(takes * milli / 1000 for takes, milli in picked) < LOAD * GPUS * HOURS:
        picked.append(chance.choice(drawn_from))
    comes = sorted(chance.uniform(0, HOURS) for _ in picked)
    return [TraceJob(number, at, *job) for number, (at, job) in enumerate(zip(comes, picked, strict=True))]


Starting = Callable[[Sequence[TraceJob], Inventory], Iterator[tuple[TraceJob, Inventory]]]
"""Of the jobs that wait, by their coming, those that start now, each with the snapshot in which it runs."""


def _with(placed: Placed, seen: Inventory) -> Inventory:
    return take(running(placed.vm, placed.placement, placed.workload.numa), seen, catalog())


def _one(job: TraceJob, seen: Inventory) -> Inventory | None:
    """With this job running; None = there is no place for it."""
    placed = Place((job.workload,)).placements(seen, catalog()).placed
    return _with(placed[0], seen) if placed else None


def first_come(waiting: Sequence[TraceJob], seen: Inventory) -> Iterator[tuple[TraceJob, Inventory]]:
    """Until the first that has no place."""
    for job in waiting:
        found = _one(job, seen)
        if found is None:
            return
        seen = found
        yield job, seen


def whoever_fits(waiting: Sequence[TraceJob], seen: Inventory) -> Iterator[tuple[TraceJob, Inventory]]:
    """All of them in turn; of a size that found no place the next finds none either."""
    full: set[int] = set()
    for job in waiting:
        found = None if job.milli in full else _one(job, seen)
        if found is None:
            full.add(job.milli)
            continue
        seen = found
        yield job, seen


def shortest_first(waiting: Sequence[TraceJob], seen: Inventory) -> Iterator[tuple[TraceJob, Inventory]]:
    return whoever_fits(sorted(waiting, key=lambda job: job.takes), seen)


def queue_order(waiting: Sequence[TraceJob], seen: Inventory) -> Iterator[tuple[TraceJob, Inventory]]:
    """All at once, as `gpuops place` has them, without what it says of those that have no place."""
    by_name = {job.workload.name: job for job in waiting}
    queue = Queue(seen, catalog(), explain=False, pin=PinPolicy.AUTO, any_reason=False).with_best(
        [job.workload for job in waiting]
    )
    for answer in queue.answers:
        if isinstance(answer, Placed):
            seen = _with(answer, seen)
            yield by_name[answer.workload.name], seen


RULES: Final[dict[str, Starting]] = {
    "first come, first served": first_come,
    "whoever fits": whoever_fits,
    "the queue's order": queue_order,
    "shortest first": shortest_first,
}


def play(jobs: Sequence[TraceJob], start: Starting) -> Played:
    """What a rule makes of these jobs; it goes on until the last has started."""
    hosts = (host(f"esx-{number}", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)) for number in range(HOSTS))
    seen = inventory(hosts, ())
    waiting: list[TraceJob] = []
    ends: list[tuple[float, int, TraceJob]] = []
    coming = list(reversed(jobs))
    done, waited = 0.0, 0.0
    while coming or waiting:
        now = min(coming[-1].comes if coming else float("inf"), ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now:
            at, _, job = heapq.heappop(ends)
            done += job.gpu_hours if at <= HOURS else 0.0
            seen = without_vm(f"workload:{job.workload.name}", release(seen.vm(f"workload:{job.workload.name}"), seen))
        while coming and coming[-1].comes <= now:
            waiting.append(coming.pop())
        for job, with_it in list(start(waiting, seen)):
            seen = with_it
            waiting.remove(job)
            waited += now - job.comes
            heapq.heappush(ends, (now + job.takes, job.number, job))
    done += sum(job.gpu_hours for at, _, job in ends if at <= HOURS)
    return Played(done, waited / len(jobs))


def bound(jobs: Sequence[TraceJob]) -> Played:
    """What no rule betters: GPU-hours no less than any has, waiting no longer."""
    within = [job for job in jobs if job.comes + job.takes <= HOURS]
    at, backlog, worked = 0.0, 0.0, 0.0
    for job in within:
        step = min(backlog, (job.comes - at) * GPUS)
        worked, backlog, at = worked + step, backlog - step + job.gpu_hours, job.comes
    worked += min(backlog, (HOURS - at) * GPUS)
    return Played(worked, _least_waiting(jobs))


def _least_waiting(jobs: Sequence[TraceJob]) -> float:
    """The mean of mean busy time, less half of the run time and the time of coming; 0 at the least."""
    left: list[tuple[float, int]] = []
    remaining = {job.number: job.gpu_hours for job in jobs}
    moments = dict.fromkeys(remaining, 0.0)
    coming = list(reversed(jobs))
    now = 0.0
    while coming or left:
        if not left:
            now = max(now, coming[-1].comes)
        while coming and coming[-1].comes <= now:
            job = coming.pop()
            heapq.heappush(left, (job.gpu_hours, job.number))
        number = left[0][1]
        until = min(now + remaining[number] / GPUS, coming[-1].comes if coming else float("inf"))
        worked = min(remaining[number], (until - now) * GPUS)
        moments[number] += worked * (now + until) / 2
        remaining[number] -= worked
        if remaining[number] <= 1e-9:
            heapq.heappop(left)
        now = until
    busy = (moments[job.number] / job.gpu_hours - job.takes / 2 - job.comes for job in jobs)
    return max(0.0, sum(busy) / len(jobs))


def _played(case: tuple[Sequence[tuple[float, int]], str, int]) -> Played:
    drawn_from, rule, seed = case
    return play(jobs_of(drawn_from, seed), RULES[rule])


def run() -> Result:
    """Every rule on the same jobs, the mean of all seeds; judged: the queue's order beside first come, first served."""
    folder = os.environ.get("OPENB")
    if not folder:
        return Result("jobs of the trace: not run, it needs the trace (make bench OPENB=DIR)", ())
    drawn_from = pods(Path(folder))
    cases = [(drawn_from, rule, seed) for rule in RULES for seed in SEEDS]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        found = dict(zip(((rule, seed) for _, rule, seed in cases), workers.map(_played, cases), strict=True))
    bounds = [bound(jobs_of(drawn_from, seed)) for seed in SEEDS]
    means = {
        rule: Played(
            mean(found[rule, seed].gpu_hours for seed in SEEDS), mean(found[rule, seed].waiting_h for seed in SEEDS)
        )
        for rule in RULES
    }
    best = Played(mean(each.gpu_hours for each in bounds), mean(each.waiting_h for each in bounds))
    asked = mean(sum(job.gpu_hours for job in jobs_of(drawn_from, seed)) for seed in SEEDS)
    behind = 100 * (1 - means["the queue's order"].gpu_hours / means["first come, first served"].gpu_hours)
    return Result(
        f"jobs of the trace on {GPUS} A40 in {HOURS:g} hours, {len(SEEDS)} seeds",
        (
            Figure("GPU-hours that jobs asked for", asked, "h"),
            *(Figure(f"GPU-hours of finished jobs: {rule}", each.gpu_hours, "h") for rule, each in means.items()),
            Figure("GPU-hours of finished jobs: bound", best.gpu_hours, "h"),
            *(Figure(f"mean waiting time: {rule}", each.waiting_h, "h") for rule, each in means.items()),
            Figure("mean waiting time: bound", best.waiting_h, "h"),
            Figure("GPU-hours of the queue's order below first come, first served", behind, "%", 1.0),
        ),
    )


def main() -> None:
    """One rule and seed, with the bound: python -m tests.bench.nights.jobs 0 "the queue's order"."""
    jobs = jobs_of(pods(Path(os.environ["OPENB"])), int(sys.argv[1]))
    print(len(jobs), "jobs", play(jobs, RULES[sys.argv[2]]), bound(jobs))


if __name__ == "__main__":
    main()
