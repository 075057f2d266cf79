"""Samples become steps, steps become hours, two readings become one; what is missing is missing, never zero."""

from __future__ import annotations

import numpy as np
import pytest

from gpuops.extras.observe.packing import (
    WHOLE,
    Block,
    empty,
    hours,
    merge_blocks,
    place_block,
    steps_of_averages,
    steps_of_samples,
    without_unknown_use,
)
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_MEMORY, GPU_USE, Samples
from gpuops.model.vcenter.vm import VgpuDevice, Vm

BEGIN = 1_795_000_200
MISSING = [-1, -1, 0]


def samples(values_by_counter: dict[str, list[int]], step_s: int = 20) -> Samples:
    count = len(next(iter(values_by_counter.values())))
    ends = np.arange(1, count + 1, dtype=np.int64) * step_s + BEGIN
    return Samples("vm-1", ends, {name: np.array(values, dtype=np.int64) for name, values in values_by_counter.items()})


def rows(block: Block, name: str = CPU_MHZ) -> list[list[int]]:
    row_lists: list[list[int]] = block.series[name].tolist()
    return row_lists


def test_fifteen_samples_are_a_step() -> None:
    busy, gap, late = [10] * 14 + [40], [-1] * 15, [0] * 3 + [-1] * 12
    block = steps_of_samples(samples({CPU_MHZ: busy + gap + late}), BEGIN, 3)
    assert rows(block) == [[12, 40, WHOLE], MISSING, [0, 0, 3]]
    assert steps_of_samples(samples({CPU_MHZ: gap}), BEGIN, 1).series == {}


def test_samples_outside_of_the_steps_do_not_count() -> None:
    block = steps_of_samples(samples({CPU_MHZ: [90] * 15 + [7] * 15 + [90]}), BEGIN + 300, 1)
    assert rows(block) == [[7, 7, WHOLE]]


def test_of_an_average_the_highest_is_unknown() -> None:
    block = steps_of_averages(samples({CPU_MHZ: [12, -1]}, step_s=300), BEGIN, 2)
    assert rows(block) == [[12, -1, WHOLE], MISSING]


@pytest.mark.parametrize(
    ("first", "second", "merged_row"),
    [
        (MISSING, [5, 9, 15], [5, 9, 15]),
        ([5, 9, 15], MISSING, [5, 9, 15]),
        ([5, 9, 14], [6, 9, 15], [6, 9, 15]),
        ([5, 9, 15], [6, 9, 15], [5, 9, 15]),
        ([5, -1, 15], [6, 9, 15], [6, 9, 15]),
        ([5, 9, 15], [6, -1, 15], [5, 9, 15]),
    ],
    ids=["new", "gone", "covers more", "the same twice", "a highest", "no highest"],
)
def test_two_readings_of_one_time_are_there_once(first: list[int], second: list[int], merged_row: list[int]) -> None:
    merged = merge_blocks(*(Block(1, {CPU_MHZ: np.array([row], dtype=np.int64)}) for row in (first, second)))
    assert rows(merged) == [merged_row]


def test_an_hour_says_how_much_of_it_is_known() -> None:
    values = np.concatenate([empty(24) for _ in range(2)])
    values[0:12] = [[10, 20, WHOLE]] * 11 + [[120, 700, WHOLE]]
    values[12:14] = [[30, 40, WHOLE], [60, -1, WHOLE]]
    hourly = rows(hours(Block(48, {CPU_MHZ: values})))
    assert hourly == [[19, 700, WHOLE], [45, -1, 2], MISSING, MISSING]
    assert rows(place_block(hours(Block(12, {CPU_MHZ: values[:12]})), 1, 3)) == [MISSING, [19, 700, WHOLE], MISSING]


TIME_SLICED, MIG_BACKED = "grid_a100-10c", "grid_a100-3-20c"


@pytest.mark.parametrize(
    ("profiles", "memory", "use", "expected_use"),
    [
        ([TIME_SLICED], 500, 0, [0]),
        ([TIME_SLICED], 0, 0, [-1]),
        ([TIME_SLICED], -1, 0, [-1]),
        ([TIME_SLICED], 0, 900, [900]),
        ([MIG_BACKED], 500, 900, None),
        ([TIME_SLICED, MIG_BACKED], 500, 0, None),
        ([], 0, 0, None),
    ],
    ids=["idle", "no memory in use", "memory unknown", "used", "MIG-backed", "one of two MIG-backed", "no vGPU"],
)
def test_a_zero_that_nobody_measured_is_missing(
    profiles: list[str], memory: int, use: int, expected_use: list[int] | None
) -> None:
    vm = Vm("vm-1", "ml-01", devices=tuple(VgpuDevice(key, profile) for key, profile in enumerate(profiles)))
    counters = without_unknown_use(vm, samples({CPU_MHZ: [3], GPU_MEMORY: [memory], GPU_USE: [use]})).values
    assert counters[CPU_MHZ].tolist() == [3]
    assert (counters[GPU_USE].tolist() if GPU_USE in counters else None) == expected_use
