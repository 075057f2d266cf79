"""`gpuops size --busy B --sharers N` beside processes that really shared a GPU, as `shared_gpu/measure.py` measured.

Each file of `shared_gpu/` that ends in .json is one GPU: points, each so many processes that keep it busy for a share
of the time alone. Bursts on the GPU, and pauses between them, took so many times as long as was planned; a process of
bursts and pauses in the planned proportion is as much slower beside others, and its own busy share alone, with what it
takes to start a burst, is what the model is asked with.

`python tests/bench/advice/sizing_gpu.py` prints the table of the manual.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np

from gpuops.extras.sizing.sharing import SWITCHING_OVERHEAD, best_effort
from tests.bench.verdict import Figure, Result

FOLDER: Final = Path(__file__).parents[1] / "shared_gpu"
MOST_OFF: Final = 15.0
MAIN: Final = "main"
_PARTS: Final = {
    "burst": "bursts of 2 and of 50 ms",
    "regular": "bursts and pauses all alike",
    "one kernel": "one kernel a burst",
    "memory": "work that reads memory",
    "quarter": "kernels that fill a quarter of the GPU",
}


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """So many processes on one GPU that are alike."""

    part: str
    """Which of the experiments."""
    planned: float
    """The share of the time that each was to keep the GPU busy alone."""
    busy: float
    """The share that it did."""
    sharers: int
    slowdown: float
    """Times as long as alone."""

    def model(self, switching: float = SWITCHING_OVERHEAD) -> float:
        """What `gpuops size` says under best effort."""
        return float(best_effort(np.full(self.sharers, self.busy), switching)[0])

    def off(self, switching: float = SWITCHING_OVERHEAD) -> float:
        """The model to what was measured, in percent."""
        return 100 * (self.model(switching) / self.slowdown - 1)


@dataclass(frozen=True, slots=True)
class MixedProcess:
    """One of processes that differ, on one GPU."""

    busy: float
    slowdown: float
    model: float


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """One GPU, as nvidia-smi names it, with its driver."""

    name: str
    driver: str
    date: str
    points: tuple[MeasuredPoint, ...]
    mixed: tuple[MixedProcess, ...]

    def part(self, name: str) -> list[MeasuredPoint]:
        """The points of an experiment."""
        return [point for point in self.points if point.part == name]


def measured_gpus() -> list[MeasuredGpu]:
    """All that there is a file of."""
    return [measured_gpu(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(FOLDER.glob("*.json"))]


def measured_gpu(record: dict[str, Any]) -> MeasuredGpu:
    """What `measure.py` has written."""
    name, driver, _ = (word.strip() for word in record["gpu"].split(","))
    point_alone = {_like(point): point for point in record["points"] if len(point["busy"]) == 1}
    shared = [point for point in record["points"] if len(point["busy"]) > 1]
    alike = tuple(_point(point, point_alone[_like(point)]) for point in shared if point["part"] != "mixed")
    mixed = tuple(
        mixed_point for point in shared if point["part"] == "mixed" for mixed_point in _mixed_processes(point)
    )
    return MeasuredGpu(name, driver, record["date"], alike, mixed)


def _like(point: dict[str, Any]) -> tuple[object, ...]:
    """Equal for points that differ in the number of processes alone."""
    return (point["busy"][0], *(point[key] for key in ("burst_ms", "shape", "kernel_ms", "kind", "seed")))


def _longer(processes: list[list[float]]) -> tuple[float, float]:
    """How many times as long as planned bursts took, and pauses."""
    _, planned_s, planned_bursts_s, all_s, bursts_s = (sum(column) for column in zip(*processes, strict=True))
    return bursts_s / planned_bursts_s, (all_s - bursts_s) / (planned_s - planned_bursts_s)


def _point(point: dict[str, Any], point_alone: dict[str, Any]) -> MeasuredPoint:
    planned = point["busy"][0]
    burst_alone, pause_alone = _longer(point_alone["processes"])
    burst, pause = _longer(point["processes"])
    alone = planned * burst_alone + (1 - planned) * pause_alone
    return MeasuredPoint(
        point["part"],
        planned,
        planned * burst_alone / alone,
        len(point["busy"]),
        (planned * burst + (1 - planned) * pause) / alone,
    )


def _mixed_processes(point: dict[str, Any]) -> Iterator[MixedProcess]:
    """Yield each as busy as planned: processes that differ were not measured alone."""
    foreseen = best_effort(np.array(point["busy"]), SWITCHING_OVERHEAD)
    for busy, process, model in zip(point["busy"], point["processes"], foreseen, strict=True):
        burst, pause = _longer([process])
        yield MixedProcess(busy, busy * burst + (1 - busy) * pause, float(model))


def on_gpus() -> Iterator[Result]:
    """The model beside each GPU that was measured."""
    for gpu in measured_gpus():
        title = f"sizing: processes that shared an {gpu.name} (driver {gpu.driver}, {gpu.date})"
        yield Result(title, tuple(_figures(gpu)))


def _figures(gpu: MeasuredGpu) -> Iterator[Figure]:
    main = gpu.part(MAIN)
    yield Figure("points: 2 to 24 processes, each busy 0.1 to 0.9 of the time alone", len(main), "")
    yield Figure(
        "slowdown by the model, off in the mean", mean(abs(arrangement.off()) for arrangement in main), "%", MOST_OFF
    )
    yield Figure("... at most", max(abs(arrangement.off()) for arrangement in main), "%", MOST_OFF)
    yield Figure(
        "... by a model in which switching is free", mean(abs(arrangement.off(0.0)) for arrangement in main), "%"
    )
    yield Figure("... at most", max(abs(arrangement.off(0.0)) for arrangement in main), "%", MOST_OFF)
    yield Figure("switching that fits best, as a share of GPU work", best_switching(main), "")
    for part, part_name in _PARTS.items():
        points = gpu.part(part)
        yield Figure(f"{part_name}: off in the mean of {len(points)}", mean(abs(point.off()) for point in points), "%")
        yield Figure("... at most", max(abs(point.off()) for point in points), "%", MOST_OFF)
    unlike = [100 * abs(point.model / point.slowdown - 1) for point in gpu.mixed]
    yield Figure(f"processes that differ: each off, in the mean of {len(unlike)}", mean(unlike), "%", MOST_OFF)


def best_switching(points: list[MeasuredPoint]) -> float:
    """That by which the model is off least in the mean, in steps of 0.005."""
    steps = [at / 200 for at in range(41)]
    return min(steps, key=lambda switching: mean(abs(point.off(switching)) for point in points))


def table(gpu: MeasuredGpu) -> str:
    """For the manual: what was measured, and after a stroke what the model says; the mean of those measured twice."""
    main = gpu.part(MAIN)
    counts = sorted({arrangement.sharers for arrangement in main})
    lines = [
        f"| busy alone | {' | '.join(f'{count} processes' for count in counts)} |",
        "|---" * (len(counts) + 1) + "|",
    ]
    for planned in sorted({arrangement.planned for arrangement in main}):
        cells = []
        for count in counts:
            points_here = [
                arrangement for arrangement in main if (arrangement.planned, arrangement.sharers) == (planned, count)
            ]
            measured, model = (
                mean(values) for values in zip(*((e.slowdown, e.model()) for e in points_here), strict=True)
            )
            cells.append(f"{measured:.2f} / {model:.2f}")
        lines.append(f"| {planned:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for gpu in measured_gpus():
        print(f"{gpu.name}, driver {gpu.driver}, {gpu.date}\n{table(gpu)}")
