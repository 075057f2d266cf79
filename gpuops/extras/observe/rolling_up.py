"""Combines samples into steps, steps of five minutes into hours, and two readings of the same time into one. Pure.

Before that, GPU counters of VMs whose GPU use is unknown are removed: a vGPU whose use is not measured shows 0 (VMware
KB 319982), and a MIG-backed vGPU has no counter. Such a 0 does not mean that the GPU is idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.observe.packing import MISSING, WHOLE, Block, Values
from gpuops.model.devices.vgpu import parse
from gpuops.model.measurements.measurement import GPU_MEMORY, OF_GPUS, Samples
from gpuops.model.vcenter.vm import Vm

FINE_S: Final = 300
HOUR_S: Final = 3600
SAMPLE_S: Final = 20
"""The interval of a host's own samples."""

Steps = Callable[[NDArray[np.int64], NDArray[np.int64], int], Values]


def steps_of_samples(samples: Samples, begin: int, steps: int) -> Block:
    """Return steps of five minutes from a host's samples of 20 s."""
    return _block(samples, begin, steps, _steps_of_numbers)


def steps_of_averages(samples: Samples, begin: int, steps: int) -> Block:
    """Return steps of five minutes from vCenter's averages of five minutes; the highest is unknown."""
    return _block(samples, begin, steps, _steps_of_known_averages)


def merge_blocks(first: Block, second: Block) -> Block:
    """Combine two readings of the same time: for each step the one that covers more of it, or else the first.

    Samples that were read twice, or by two machines, are stored once.
    """
    series = dict(first.series)
    for name, second_rows in second.series.items():
        first_rows = series.get(name)
        series[name] = second_rows if first_rows is None else _choose_better(first_rows, second_rows)
    return Block(first.steps, series)


def hours(block: Block) -> Block:
    """Return hours from steps of five minutes. The highest of an hour is known if it is known for each of its steps."""
    per_hour = HOUR_S // FINE_S
    return Block(block.steps // per_hour, {name: _hours_of_rows(rows, per_hour) for name, rows in block.series.items()})


def nothing_in(rows: Values) -> bool:
    """Return whether all steps are missing."""
    return not (rows[:, 2] > 0).any()


def empty(steps: int) -> Values:
    """Return rows for steps that are all missing."""
    rows = np.full((steps, 3), MISSING, dtype=np.int64)
    rows[:, 2] = 0
    return rows


def place_block(block: Block, at: int, steps: int) -> Block:
    """Return a block of `steps` steps that holds this block from step `at` on; all other steps are missing."""
    series = {}
    for name, rows in block.series.items():
        series[name] = empty(steps)
        series[name][at : at + block.steps] = rows
    return Block(steps, series)


def _block(samples: Samples, begin: int, steps: int, of: Steps) -> Block:
    # a sample that ends on the border of two steps belongs to the first
    places = (samples.ends - 1 - begin) // FINE_S
    within = (places >= 0) & (places < steps)
    series = {}
    for name, numbers in samples.values.items():
        is_inside = within & (numbers >= 0)
        if is_inside.any():
            series[name] = of(places[is_inside], numbers[is_inside], steps)
    return Block(steps, series)


def _steps_of_numbers(places: NDArray[np.int64], numbers: NDArray[np.int64], steps: int) -> Values:
    counts = np.bincount(places, minlength=steps)
    sums = np.bincount(places, weights=numbers, minlength=steps)
    rows = empty(steps)
    has_samples = counts > 0
    rows[has_samples, 0] = np.rint(sums[has_samples] / counts[has_samples])
    np.maximum.at(rows[:, 1], places, numbers)
    rows[:, 2] = np.minimum(counts * SAMPLE_S * WHOLE // FINE_S, WHOLE)
    return rows


def _steps_of_known_averages(places: NDArray[np.int64], averages: NDArray[np.int64], steps: int) -> Values:
    rows = empty(steps)
    rows[places, 0] = averages
    rows[places, 2] = WHOLE
    return rows


def _choose_better(first_rows: Values, second_rows: Values) -> Values:
    is_second_better = second_rows[:, 2] > first_rows[:, 2]
    is_second_better |= (second_rows[:, 2] == first_rows[:, 2]) & (second_rows[:, 1] >= 0) & (first_rows[:, 1] < 0)
    return np.where(is_second_better[:, None], second_rows, first_rows)


def _hours_of_rows(rows: Values, per_hour: int) -> Values:
    """Return a row for each hour from `per_hour` rows each; in the average a row counts by the time that it covers."""
    by_hour = rows.reshape(-1, per_hour, 3)
    average, highest, covered = by_hour[:, :, 0], by_hour[:, :, 1], by_hour[:, :, 2]
    has_samples = covered > 0
    weight = covered.sum(axis=1)
    hour_rows = empty(len(by_hour))
    has_weight = weight > 0
    hour_rows[has_weight, 0] = np.rint(
        np.where(has_samples, average * covered, 0).sum(axis=1)[has_weight] / weight[has_weight]
    )
    is_highest_known = has_weight & ((highest >= 0) | ~has_samples).all(axis=1)
    hour_rows[is_highest_known, 1] = highest.max(axis=1)[is_highest_known]
    hour_rows[has_weight, 2] = np.maximum(weight[has_weight] // per_hour, 1)  # 0 would mean that the hour is missing
    return hour_rows


def without_unknown_use(vm: Vm, samples: Samples) -> Samples:
    """Return the samples of a VM without the numbers of GPU counters that do not show its real use.

    All GPU counters are removed for a VM without a vGPU or with a MIG-backed vGPU. For other VMs a 0 becomes MISSING,
    unless GPU memory is in use in the same sample: a guest with a running driver always uses some (our inference).
    """
    if not any(name.startswith(OF_GPUS) for name in samples.values):
        return samples
    other_series = {name: numbers for name, numbers in samples.values.items() if not name.startswith(OF_GPUS)}
    if not vm.profiles or any(_is_mig_backed(profile) for profile in vm.profiles):
        return replace(samples, values=other_series)
    memory = samples.values.get(GPU_MEMORY)
    in_use = memory > 0 if memory is not None else np.zeros(len(samples.ends), dtype=bool)
    known_gpu_series = {
        name: np.where(in_use | (numbers > 0), numbers, MISSING)
        for name, numbers in samples.values.items()
        if name.startswith(OF_GPUS)
    }
    return replace(samples, values=other_series | known_gpu_series)


def _is_mig_backed(profile: str) -> bool:
    parsed_name = parse(profile)
    return parsed_name is not None and parsed_name.slices is not None
