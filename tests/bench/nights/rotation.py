"""A night's schedule: GPU-hours of jobs beside a bound, desktops suspended, and who is late in a slow morning.

Needs the trace for its jobs: `make bench OPENB=DIR`, as the replay of it. Two hosts of four GPUs with ten desktops each
and 14 hours; a long queue asks for more than the night has, a short one for less. With `BASELINES=DIR`, a folder with
`rotation.csv`, the share is that of the bound there, and it is judged whether the other rules do as they are known to.

The known bound is of a world in which resumes are as quick as expected: each GPU is given back as late as if it alone
had to be. Two shares are shown. Ours with the margin (resumes planned to take 1.5 times as long) is below that bound
by what the margin costs, too. How much of it any plan can have, with the margin and without, is shown by two bounds:
`tests/plan/schedule/bound.py`, which the thorough search is held to, and `rotation_bound.py`, which knows nothing of
it.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Final

from gpuops.plan.schedule.schedule import QUICK, Schedule, schedule
from tests.bench.nights.rotation_bound import most_gpu_hours
from tests.bench.nights.rotation_nights import Night, Pods, Size, drawn, problem_of, read
from tests.bench.nights.rotation_rules import RULES, Harvest
from tests.bench.verdict import Figure, Result
from tests.plan.schedule.bound import late_desktops, most_gpu_minutes

LONG: Final = Size(jobs=90)
SHORT: Final = Size(jobs=30)
SEEDS: Final = tuple(range(10))
OTHERS: Final = tuple(range(10, 30, 2))
"""Even ones; what is tuned is tuned on odd ones."""
SIZES: Final = {
    "8 hosts, long queue": Size(jobs=360, hosts=8),
    "8 hosts, short queue": Size(jobs=120, hosts=8),
    "moves of 5 minutes": Size(jobs=90, move_minutes=5),
    "4 hosts of 8 GPUs": Size(jobs=180, hosts=4, gpus_per_host=8),
}
MARGIN: Final = 1.5
QUICK_CPU_S: Final = 2.0
THOROUGH: Final = 40_000_000
"""Units of work: about a minute of one core."""
THOROUGH_CPU_S: Final = 60.0
AGREE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule, what bounds it, and what it cost."""

    found: Schedule
    most: int
    """GPU-minutes."""
    late: int
    """Desktops that are not back in time when resumes take 1.5 times as long."""
    cpu_s: float

    @property
    def gpu_hours(self) -> float:
        return self.found.gpu_minutes / 60

    @property
    def below(self) -> float:
        """Percent below the bound."""
        return 100 * (1 - self.found.gpu_minutes / self.most)


def run() -> Iterator[Result]:
    """The long queue, the short one, then other seeds and sizes."""
    folder = os.environ.get("OPENB")
    if not folder:
        yield Result("rotation: not run, it needs the trace (make bench OPENB=DIR)", ())
        return
    pods = read(Path(folder))
    known = _known(os.environ.get("BASELINES"))
    yield Result("rotation: a night with a long queue", tuple(_long(pods, known.get("long queue", []))))
    yield Result("rotation: a night with a short queue", tuple(_short(pods, known.get("short queue", []))))
    yield Result("rotation: other nights, with the margin", tuple(_others(pods)))


def tried(night: Night, units: int, margin: float = MARGIN) -> Tried:
    """The night planned with so much thought."""
    problem = problem_of(night, margin)
    started = process_time()
    found = schedule(problem, units)
    cpu_s = process_time() - started
    return Tried(found, most_gpu_minutes(problem), len(late_desktops(problem, found, MARGIN)), cpu_s)


Known = Sequence[dict[str, str]]


def _known(folder: str | None) -> dict[str, list[dict[str, str]]]:
    if not folder:
        return {}
    with (Path(folder) / "rotation.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return {load: [row for row in rows if row["load"] == load] for load in {row["load"] for row in rows}}


def _long(pods: Pods, known: Known) -> Iterator[Figure]:
    nights = [drawn(pods, LONG, seed) for seed in SEEDS]
    bounds = [float(row["bound"]) for row in known] or [
        most_gpu_minutes(problem_of(night, slowdown=1.0)) / 60 for night in nights
    ]
    what = "the known bound" if known else "the bound without a margin"
    for name, rule in RULES.items():
        harvests = [rule(night) for night in nights]
        yield Figure(f"{name}: of {what}", _share((each.gpu_hours for each in harvests), bounds), "%")
        yield from _agreement(name, harvests, known, bounds)
    yield from _bounds(nights, bounds, what)
    quick = [tried(night, QUICK) for night in nights]
    thorough = [tried(night, THOROUGH) for night in nights]
    bare = [tried(night, THOROUGH, margin=1.0) for night in nights]
    if known:
        share = _share((float(row["cpsat"]) for row in known), bounds)
        yield Figure(f"CP-SAT in 60 s, no margin: of {what}", share, "%")
    yield Figure(f"quick: below {what}", 100 - _share((each.gpu_hours for each in quick), bounds), "%", 3.0)
    yield Figure("quick: below the bound with the margin", mean(each.below for each in quick), "%")
    yield Figure("quick: the longest CPU time", max(each.cpu_s for each in quick), "s", QUICK_CPU_S)
    yield Figure("quick: desktops late at 07:00", sum(each.late for each in quick), "", 0)
    yield Figure("thorough: below the bound with the margin", mean(each.below for each in thorough), "%", 1.0)
    yield Figure("thorough: the longest CPU time", max(each.cpu_s for each in (*thorough, *bare)), "s", THOROUGH_CPU_S)
    yield Figure("thorough: desktops late at 07:00", sum(each.late for each in thorough), "", 0)
    below = 100 - _share((each.gpu_hours for each in bare), bounds)
    yield Figure(f"thorough, no margin: below {what}", below, "%", 1.0)
    yield Figure("thorough, no margin: below the bound", mean(each.below for each in bare), "%")


def _bounds(nights: Sequence[Night], known: Sequence[float], what: str) -> Iterator[Figure]:
    """How much of what is known any plan can have at the most."""
    for margin, said in ((MARGIN, "in time when resumes take 1.5 times as long"), (1.0, "with no margin")):
        ours = [most_gpu_minutes(problem_of(night, margin)) / 60 for night in nights]
        yield Figure(f"no plan {said} passes, of {what}", _share(ours, known), "%")
        others = [most_gpu_hours(night, margin) for night in nights]
        yield Figure(f"no plan {said} passes, by the other bound", _share(others, known), "%")


def _short(pods: Pods, known: Known) -> Iterator[Figure]:
    nights = [drawn(pods, SHORT, seed) for seed in SEEDS]
    bounds = [float(row["bound"]) for row in known] or [
        most_gpu_minutes(problem_of(night, slowdown=1.0)) / 60 for night in nights
    ]
    for name, rule in RULES.items():
        harvests = [rule(night) for night in nights]
        yield Figure(f"{name}: desktops suspended", mean(each.desktops for each in harvests), "")
        yield from _agreement(name, harvests, known, bounds)
    if known:
        yield Figure("optimum: desktops suspended", mean(float(row["susp_cpsat"]) for row in known), "")
    quick = [tried(night, QUICK) for night in nights]
    yield Figure("quick: desktops suspended", mean(each.found.desktops for each in quick), "", 44)
    yield Figure("quick: below what can be had", mean(each.below for each in quick), "%", 0.01)
    yield Figure("quick: the longest CPU time", max(each.cpu_s for each in quick), "s", QUICK_CPU_S)
    yield Figure("quick: desktops late at 07:00", sum(each.late for each in quick), "", 0)


def _others(pods: Pods) -> Iterator[Figure]:
    sizes = {"long queue, other seeds": LONG, "short queue, other seeds": SHORT, **SIZES}
    for name, size in sizes.items():
        nights = [tried(drawn(pods, size, seed), QUICK) for seed in OTHERS]
        yield Figure(f"{name}: below the bound", mean(each.below for each in nights), "%", 3.0)
        yield Figure(f"{name}: desktops suspended", mean(each.found.desktops for each in nights), "")
        yield Figure(f"{name}: the longest CPU time", max(each.cpu_s for each in nights), "s", QUICK_CPU_S)
        yield Figure(f"{name}: desktops late at 07:00", sum(each.late for each in nights), "", 0)


def _share(hours: Iterable[float], bounds: Sequence[float]) -> float:
    """Mean percent of the bounds."""
    return mean(100 * each / bound for each, bound in zip(hours, bounds, strict=True))


def _agreement(name: str, harvests: Sequence[Harvest], known: Known, bounds: Sequence[float]) -> Iterator[Figure]:
    if not known:
        return
    hours = max(
        100 * abs(each.gpu_hours - float(row[name])) / bound
        for each, row, bound in zip(harvests, known, bounds, strict=True)
    )
    desktops = max(abs(each.desktops - int(row[f"susp_{name}"])) for each, row in zip(harvests, known, strict=True))
    yield Figure(f"{name}: GPU-hours differ from what is known, any seed, by", hours, "points", AGREE)
    yield Figure(f"{name}: desktops differ from what is known, any seed, by", desktops, "", 0)
