"""Nights made up: idle times from a seed, jobs from the GPU trace of 2023; and the same as the product asks for them.

ML jobs are the trace's pods of whole GPUs that ran 10 minutes to 10 hours, with their run times; 15 % are made two or
four GPUs wide. Desktops fall idle around 18:00 (normal, 75 minutes, 17:00 to 23:00); 0.6 % work all night. The night
opens at 17:00 and every desktop is back by 07:00. One datastore; the same number of GPUs on every host.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.schedule.problem import Desktop, Job, NightGpu, NightProblem, OperationLimits

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

OPENS: Final = 17 * 60
ENDS: Final = 31 * 60
IDLE_AT: Final = 18 * 60
SPREAD: Final = 75
IDLE_BY: Final = 23 * 60
NEVER: Final = 10**6
SHORTEST: Final = 10
LONGEST: Final = 600


@dataclass(frozen=True, slots=True)
class Size:
    """What a made-up night is made of."""

    jobs: int
    hosts: int = 2
    gpus_per_host: int = 4
    desktops_per_gpu: int = 10
    move_minutes: int = 2
    """What a suspend or a resume takes."""
    per_host: int = 4
    per_datastore: int = 8
    """How many of them at once."""

    @property
    def gpus(self) -> int:
        return self.hosts * self.gpus_per_host


@dataclass(frozen=True, slots=True)
class Night:
    """One night, in minutes from the midnight before it."""

    size: Size
    idle: Ints
    """Per GPU and desktop; NEVER = not tonight."""
    widths: Ints
    minutes: Ints
    """Per job: GPUs, and how long it runs."""

    @property
    def ready(self) -> Ints:
        """When the last desktop of each GPU is idle."""
        return np.asarray(self.idle.max(axis=1))

    @property
    def gpu_hours(self) -> float:
        return float((self.widths * self.minutes).sum()) / 60


@dataclass(frozen=True, slots=True)
class Pods:
    """The trace's pods of whole GPUs: how many GPUs, and minutes."""

    widths: Ints
    minutes: Ints


def read(folder: Path, gpus_per_host: int = 4) -> Pods:
    """The pods that make jobs, in the order of the trace."""
    widths, minutes = [], []
    with (folder / "openb_pod_list_default.csv").open() as lines:
        for row in csv.DictReader(lines):
            width = int(row["num_gpu"])
            if not (1 <= width <= gpus_per_host and int(row["gpu_milli"]) == 1000 and row["scheduled_time"]):
                continue
            ran = (float(row["deletion_time"]) - float(row["scheduled_time"])) / 60
            if SHORTEST <= ran <= LONGEST:
                widths.append(width)
                minutes.append(math.ceil(ran))
    return Pods(np.array(widths), np.array(minutes))


def drawn(pods: Pods, size: Size, seed: int) -> Night:
    """The night of a seed."""
    chance = np.random.default_rng(seed)
    shape = (size.gpus, size.desktops_per_gpu)
    idle = chance.normal(IDLE_AT, SPREAD, shape).clip(OPENS, IDLE_BY).round().astype(int)
    idle[chance.random(shape) < 0.006] = NEVER
    which = chance.choice(len(pods.widths), size.jobs)
    wide = chance.random(size.jobs) < 0.15
    widths = np.where(wide, chance.choice([2, 4], size.jobs), pods.widths[which])
    return Night(size, idle, widths, pods.minutes[which])


def problem_of(night: Night, slowdown: float) -> NightProblem:
    """What the product is asked."""
    size, takes = night.size, night.size.move_minutes
    gpus = tuple(
        NightGpu(
            f"gpu-{number}",
            f"host-{number // size.gpus_per_host}",
            tuple(
                Desktop(f"vdi-{number}-{at}", None if idle == NEVER else int(idle) - OPENS, takes, takes, ("store",))
                for at, idle in enumerate(of_gpu)
            ),
        )
        for number, of_gpu in enumerate(night.idle)
    )
    jobs = tuple(
        Job(f"job-{number}", int(width), int(minutes))
        for number, (width, minutes) in enumerate(zip(night.widths, night.minutes, strict=True))
    )
    limits = OperationLimits(per_host=size.per_host, per_datastore=size.per_datastore)
    return NightProblem(ENDS - OPENS, gpus, jobs, limits, slowdown)
