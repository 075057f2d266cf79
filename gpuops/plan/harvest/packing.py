"""Packing: the jobs of one host. Wide jobs first, at places that leave fillable stretches; then one-GPU jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Final

from gpuops.plan.harvest.dice import Dice
from gpuops.plan.harvest.stretches import Stretch, fill, reached
from gpuops.plan.harvest.windows import Window
from gpuops.plan.harvest.work import Work

_SETS: Final = 6
"""Sets of GPUs that are tried for a wide job."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job on its GPUs, by number."""

    job: int
    start: int
    minutes: int
    gpus: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.minutes


@dataclass(frozen=True, slots=True)
class HostPacking:
    """What runs on one host: its wide jobs, and the stretches between them."""

    wide: tuple[Run, ...] = ()
    stretches: tuple[Stretch, ...] = ()

    def jobs(self) -> list[int]:
        narrow = [piece.job for stretch in self.stretches for piece in stretch.pieces]
        return [*(run.job for run in self.wide), *narrow]

    def runs(self) -> list[Run]:
        """Everything that runs, wide or not."""
        found = list(self.wide)
        for stretch in self.stretches:
            at = stretch.start
            for piece in stretch.pieces:
                found.append(Run(piece.job, at, piece.minutes, (stretch.gpu,)))
                at += piece.minutes
        return found

    def on(self, gpus: Collection[int]) -> HostPacking:
        """Without the stretches of other GPUs."""
        return replace(self, stretches=tuple(stretch for stretch in self.stretches if stretch.gpu in gpus))

    def worth(self, work: Work) -> int:
        narrow = sum(
            piece.minutes * work.weights[piece.job] for stretch in self.stretches for piece in stretch.pieces
        )  # fmt: skip
        return narrow + sum(run.minutes * len(run.gpus) * work.weights[run.job] for run in self.wide)


def packed(
    windows: dict[int, Window],
    work: Work,
    pool: Iterable[int],
    dice: Dice,
    leave_out: float = 0.0,
    kept: Sequence[Run] = (),
) -> HostPacking:
    """A packing of the host whose GPUs have these windows, `kept` where they are.

    `leave_out`: the share of wide jobs that are passed over.
    """
    pool = list(pool)
    narrow = work.pool(pool, wide=False)
    free = _Free(windows)
    longest = max((window.minutes for window in windows.values()), default=0)
    sums = reached(0, longest, work.jobs, narrow)[1][-1]
    drawn = [number for number in work.pool(pool, wide=True) if not leave_out or dice.roll() >= leave_out]
    areas = {number: work.jobs[number].gpus * work.jobs[number].minutes * (0.5 + dice.roll()) for number in drawn}
    drawn.sort(key=lambda number: (-work.jobs[number].priority, -areas[number]))
    wide = list(kept)
    for run in kept:
        free.take(run)
    for number in drawn:
        found = free.place_for(number, work, sums, dice)
        if found is not None:
            free.take(found)
            wide.append(found)
    return HostPacking(tuple(wide), tuple(dealt(free.stretches(), work, narrow, dice)))


def dealt(stretches: Sequence[Stretch], work: Work, narrow: Sequence[int], dice: Dice) -> list[Stretch]:
    """The stretches, filled in a random order with one-GPU jobs of the pool."""
    left = list(narrow)
    found = list(stretches)
    for at in dice.shuffled(range(len(found))):
        pieces = fill(found[at], work.jobs, work.here(left, found[at].gpu))
        found[at] = replace(found[at], pieces=pieces)
        taken = {piece.job for piece in pieces}
        left = [number for number in left if number not in taken]
    return found


class _Free:
    """What is still free of each GPU of a host, in the order of time."""

    def __init__(self, windows: dict[int, Window]) -> None:
        self._windows = windows
        self._of = {number: [(window.free_from, window.back_from)] for number, window in windows.items()}

    def stretches(self) -> list[Stretch]:
        return [
            Stretch(number, start, end, end == self._windows[number].back_from)
            for number, free in self._of.items()
            for start, end in free
        ]

    def take(self, run: Run) -> None:
        for number in run.gpus:
            left = []
            for start, end in self._of[number]:
                if start <= run.start and run.end <= end:
                    left += [(a, b) for a, b in ((start, run.start), (run.end, end)) if b > a]
                else:
                    left.append((start, end))
            self._of[number] = left

    def place_for(self, number: int, work: Work, sums: int, dice: Dice) -> Run | None:
        """Where a wide job may run, by chance; `sums`: which idle times before it one-GPU jobs can fill."""
        job = work.jobs[number]
        there = [gpu for gpu in self._of if work.runs_on(number, gpu)]
        for gpus in _sets(there, job.gpus, dice):
            places = [(start, end) for start, end in self._common(gpus) if end - start >= job.at_least]
            if places:
                start, end = dice.one_of(places)
                until = end if job.deadline is None else min(end, job.deadline)
                whole = until - start >= job.minutes
                if not whole and not (until - start >= job.at_least and self._given_back(gpus, end)):
                    continue
                if not whole:
                    return Run(number, start, min(job.minutes, until - start), gpus)
                return Run(number, self._start(gpus, start, until - job.minutes, sums, dice), job.minutes, gpus)
        return None

    def _given_back(self, gpus: Sequence[int], at: int) -> bool:
        return at == min(self._windows[gpu].back_from for gpu in gpus)

    def _start(self, gpus: Sequence[int], first: int, last: int, sums: int, dice: Dice) -> int:
        """A start from `first` to `last` before which nothing need stay idle on any of the GPUs, if there is one."""
        fillable = (1 << (last + 1)) - 1
        for gpu in gpus:
            fillable &= sums << next(start for start, end in self._of[gpu] if start <= first < end)
        at = first + dice.below(last - first + 1)
        for earliest in (at, first):
            later = fillable >> earliest
            if later:
                return earliest + (later & -later).bit_length() - 1
        return first

    def _common(self, gpus: Sequence[int]) -> list[tuple[int, int]]:
        """When all of these are free at once."""
        found = self._of[gpus[0]]
        for gpu in gpus[1:]:
            found = [(max(a, c), min(b, d)) for a, b in found for c, d in self._of[gpu] if min(b, d) > max(a, c)]
        return found


def _sets(gpus: Sequence[int], size: int, dice: Dice) -> list[tuple[int, ...]]:
    """Some sets of so many GPUs, all of them where they are few."""
    if comb(len(gpus), size) <= _SETS:
        return dice.shuffled(list(combinations(gpus, size)))
    return [tuple(sorted(dice.shuffled(gpus)[:size])) for _ in range(_SETS)]
