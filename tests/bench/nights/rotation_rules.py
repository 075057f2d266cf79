"""What nights are done by today: a script by the clock, and a greedy one. Both bring every desktop back in time.

* cron: at 20:00 all idle desktops are suspended, in the order of VMs; jobs run first come, first served; at 05:00 every
  desktop is resumed. A GPU whose desktops never all fall idle keeps them.
* greedy: GPU after GPU is suspended as its last desktop falls idle, jobs run the largest first, resumes are just in
  time. Every number of GPUs is tried, three orders of jobs and three of giving back; the largest harvest is kept.

Both give a job the earliest start and, among GPUs that would do, those that it leaves the least time on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.bench.nights.rotation_nights import ENDS, OPENS, Night

if TYPE_CHECKING:
    from tests.bench.nights.rotation_nights import Ints

CRON_TAKES: Final = 20 * 60
CRON_GIVES_BACK: Final = 29 * 60


@dataclass(frozen=True, slots=True)
class Harvest:
    """What a rule comes to."""

    gpu_hours: float
    desktops: int


class Counts:
    """How many suspends or resumes go on in each minute, per host and on the one datastore."""

    def __init__(self, night: Night) -> None:
        self._size = night.size
        self._of_host = np.zeros((night.size.hosts, ENDS + 600), int)
        self._of_store = np.zeros(ENDS + 600, int)

    def first(self, gpu: int, at: int) -> int:
        """The end of an operation that begins as soon as it can."""
        while not self._booked(gpu, at):
            at += 1
        return at + self._size.move_minutes

    def last(self, gpu: int, end: int) -> int:
        """The start of an operation that ends as late as it can."""
        at = end - self._size.move_minutes
        while not self._booked(gpu, at):
            at -= 1
        return at

    def _booked(self, gpu: int, at: int) -> bool:
        size, when = self._size, slice(at, at + self._size.move_minutes)
        of_host = self._of_host[gpu // size.gpus_per_host, when]
        of_store = self._of_store[when]
        if (of_host >= size.per_host).any() or (of_store >= size.per_datastore).any():
            return False
        of_host += 1
        of_store += 1
        return True


def cron(night: Night) -> Harvest:
    """The script by the clock."""
    size, lanes, ready = night.size, Counts(night), night.ready
    free_from = np.zeros(size.gpus, int)
    for at in range(size.desktops_per_gpu):
        for gpu in range(size.gpus):
            # Until it meets the desktop that never is, the script has suspended others of that GPU for nothing.
            if night.idle[gpu, : at + 1].max() < ENDS:
                free_from[gpu] = max(free_from[gpu], lanes.first(gpu, max(CRON_TAKES, int(night.idle[gpu, at]))))
    free_from = np.where(ready < ENDS, free_from, ENDS)
    back_from = np.full(size.gpus, CRON_GIVES_BACK)
    freed = int((free_from < ENDS).sum())
    return Harvest(_harvest(night, free_from, back_from, range(len(night.widths))), freed * size.desktops_per_gpu)


def greedy(night: Night) -> Harvest:
    """The greedy one; of equal harvests the one with fewer desktops."""
    in_order = [int(gpu) for gpu in np.argsort(night.ready, kind="stable") if night.ready[gpu] < ENDS]
    area = night.widths * night.minutes
    job_orders = (np.argsort(-area), np.lexsort((-night.minutes, -night.widths)), np.argsort(-night.minutes))
    best = Harvest(0.0, 0)
    for count in range(1, len(in_order) + 1):
        freed = in_order[:count]
        free_from = _free_from(night, freed)
        for given_back in (freed, freed[::-1], sorted(freed)):
            back_from = _back_from(night, given_back)
            for order in job_orders:
                hours = _harvest(night, free_from, back_from, order)
                if hours > best.gpu_hours + 1e-9:
                    best = Harvest(hours, count * night.size.desktops_per_gpu)
    return best


def _free_from(night: Night, gpus: Iterable[int]) -> Ints:
    lanes = Counts(night)
    free_from = np.full(night.size.gpus, ENDS)
    for gpu in gpus:
        free_from[gpu] = max(lanes.first(gpu, int(idle)) for idle in np.sort(night.idle[gpu]))
    return free_from


def _back_from(night: Night, gpus: Sequence[int]) -> Ints:
    """The last of these GPUs is given back the latest."""
    lanes = Counts(night)
    back_from = np.full(night.size.gpus, ENDS)
    for gpu in reversed(gpus):
        back_from[gpu] = min(lanes.last(gpu, ENDS) for _ in range(night.size.desktops_per_gpu))
    return back_from


def _harvest(night: Night, free_from: Ints, back_from: Ints, order: Iterable[int]) -> float:
    """GPU-hours of the jobs that run when each, in this order, starts as early as it can."""
    size = night.size
    free = free_from.astype(int).copy()
    minutes = 0
    for job in order:
        width, takes = int(night.widths[job]), int(night.minutes[job])
        found = None
        for host in range(size.hosts):
            gpus = [
                gpu
                for gpu in range(host * size.gpus_per_host, (host + 1) * size.gpus_per_host)
                if free_from[gpu] < ENDS
            ]
            here = _earliest(gpus, free, back_from, width, takes)
            if here is not None and (found is None or here[0] < found[0]):
                found = here
        if found is not None:
            start, chosen = found
            for gpu in chosen:
                free[gpu] = start + takes
            minutes += width * takes
    return minutes / 60


def _earliest(gpus: Sequence[int], free: Ints, back_from: Ints, width: int, takes: int) -> tuple[int, list[int]] | None:
    """(start, GPUs) on one host where the job ends in time; the GPUs with the least time left after it."""
    by_time = sorted(gpus, key=lambda gpu: int(free[gpu]))
    for at in range(width - 1, len(by_time)):
        start = int(free[by_time[at]])
        ends = start + takes
        fit = [gpu for gpu in by_time[: at + 1] if ends <= back_from[gpu]]
        if len(fit) >= width:
            return start, sorted(fit, key=lambda gpu: (int(back_from[gpu]) - ends, -int(free[gpu])))[:width]
    return None


Rule = Callable[[Night], Harvest]
RULES: Final[dict[str, Rule]] = {"cron": cron, "greedy": greedy}
assert OPENS < CRON_TAKES < CRON_GIVES_BACK < ENDS
