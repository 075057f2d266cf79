"""Stretches: a stretch of time on one GPU, and the one-GPU jobs that fill it best.

Which jobs fill a stretch is a subset sum: bit `m` of an integer says whether some of the jobs take `m` minutes one
after the other, a job is a shift, and a deadline is a mask when jobs come in the order of their deadlines. The night is
at most some thousand minutes long, so a hundred jobs take microseconds, and the answer is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gpuops.plan.harvest.problem import Job


@dataclass(frozen=True, slots=True)
class Piece:
    """A job, by number, and how long it runs."""

    job: int
    minutes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time on a GPU from `start` to `end`, and what runs in it, one after the other from its start."""

    gpu: int
    start: int
    end: int
    last: bool
    """Whether the GPU is given back at its end, so that a run may be cut off there."""
    pieces: tuple[Piece, ...] = ()

    @property
    def used(self) -> int:
        return sum(piece.minutes for piece in self.pieces)

    @property
    def idle(self) -> int:
        return self.end - self.start - self.used


def fill(stretch: Stretch, jobs: Sequence[Job], pool: Sequence[int]) -> tuple[Piece, ...]:
    """What of the pool fills the stretch best: the highest priority first, each as full as can be.

    `pool` holds one-GPU jobs by number, the higher priority first, then by deadline, those without one last. Among
    equally full answers the one with jobs from the end of the pool is taken.
    """
    found: list[Piece] = []
    at = stretch.start
    for _, of_class in groupby(pool, key=lambda number: jobs[number].priority):
        pieces = _fill_class(at, stretch.end, stretch.last, jobs, list(of_class))
        found += pieces
        at += sum(piece.minutes for piece in pieces)
        if at == stretch.end:
            break
    return tuple(found)


def _fill_class(start: int, end: int, last: bool, jobs: Sequence[Job], pool: Sequence[int]) -> list[Piece]:
    length = end - start
    whole, sums = reached(start, length, jobs, pool)
    best = sums[-1].bit_length() - 1
    if best == length or not last:
        return _taken(start, best, jobs, whole, sums)
    cut = _cut_off(start, end, best, jobs, pool, sums)
    if cut is None:
        return _taken(start, best, jobs, whole, sums)
    number, before = cut
    others = [other for other in pool if other != number]
    whole, sums = reached(start, length, jobs, others)
    before = (sums[-1] & ((2 << before) - 1)).bit_length() - 1
    lasts = min(length - before, jobs[number].minutes, _until(jobs[number], end) - start - before)
    return [*_taken(start, before, jobs, whole, sums), Piece(number, lasts)]


def reached(start: int, length: int, jobs: Sequence[Job], pool: Sequence[int]) -> tuple[list[int], list[int]]:
    """The jobs that can run whole, and the sums that the first 0, 1, 2... of them reach."""
    everything = (2 << length) - 1
    whole: list[int] = []
    sums = [1]
    now = 1
    for number in pool:
        job = jobs[number]
        if job.minutes > length:
            continue
        mask = everything if job.deadline is None else (1 << max(0, min(length, job.deadline - start) + 1)) - 1
        now |= (now << job.minutes) & mask
        whole.append(number)
        sums.append(now)
    return whole, sums


def _taken(start: int, total: int, jobs: Sequence[Job], whole: Sequence[int], sums: Sequence[int]) -> list[Piece]:
    """The jobs that make up this sum, in the order of the pool; the latest of the pool are preferred."""
    found: list[Piece] = []
    for at in range(len(whole), 0, -1):
        if total == 0:
            break
        job = jobs[whole[at - 1]]
        in_time = job.deadline is None or start + total <= job.deadline
        if in_time and job.minutes <= total and (sums[at - 1] >> (total - job.minutes)) & 1:
            found.append(Piece(whole[at - 1], job.minutes))
            total -= job.minutes
    return found[::-1]


def _cut_off(
    start: int, end: int, best: int, jobs: Sequence[Job], pool: Sequence[int], sums: Sequence[int]
) -> tuple[int, int] | None:
    """(job that the end cuts off, most minutes before it) where that fills more than whole jobs do."""
    found: tuple[int, int] | None = None
    most = best
    for number in pool:
        job = jobs[number]
        room = min(end, _until(job, end)) - start
        if job.least_minutes is None or room < job.at_least:
            continue
        before = (sums[-1] & ((2 << (room - job.at_least)) - 1)).bit_length() - 1
        filled = before + min(room - before, job.minutes)
        if filled > most:
            most, found = filled, (number, before)
    return found


def _until(job: Job, end: int) -> int:
    return end if job.deadline is None else min(end, job.deadline)
