"""Blocks: the measurements of one VM or host in some hours, made from samples, combined, and packed into bytes. Pure.

Samples become steps of five minutes, these become hours, and two readings of the same time become one. Before that, GPU
counters of VMs whose GPU use is unknown are removed: a vGPU whose use is not measured shows 0 (VMware KB 319982), and a
MIG-backed vGPU has no counter. Such a 0 does not mean that the GPU is idle.

Numbers up to 31 are kept exactly, larger ones with five significant bits, which is an error of at most 3.2 %. Packing
an unpacked block again gives the same bytes. Series change little from step to step, so the differences are stored and
compressed by LZMA (raw streams of Python's lzma): an eighth smaller than with zlib, and a millisecond for a block.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.model.devices.vgpu import parse
from gpuops.model.measurements.measurement import (
    FRAGMENTATION_COUNTERS,
    GPU_MEMORY,
    HOST_COUNTERS,
    MEMORY_BALLOONED,
    MEMORY_SWAPPED,
    OF_GPUS,
    SMI_GPU_COUNTERS,
    SMI_POWER_LIMIT,
    SMI_VM_COUNTERS,
    VM_COUNTERS,
    Samples,
)
from gpuops.model.vcenter.vm import Vm

MISSING: Final = -1
WHOLE: Final = 15
"""The cover of a complete step, in fifteenths: a step of five minutes has fifteen samples of 20 s."""

_FORMAT: Final = 2
_ZLIB: Final = 0x78
"""The first byte of blocks of format 1, which can still be read: zlib, and numbers of six significant bits."""
_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16},)
"""No contexts (lc, lp, pb are 0): neither the place of a byte nor the byte before it helps to predict it."""
_ADDED_LATER: Final = (MEMORY_BALLOONED, MEMORY_SWAPPED, SMI_POWER_LIMIT)
_FIRST_VM_COUNTERS: Final = tuple(name for name in VM_COUNTERS if name not in _ADDED_LATER)
_COUNTERS: Final = tuple(
    dict.fromkeys(
        (
            *_FIRST_VM_COUNTERS,
            *HOST_COUNTERS,
            *SMI_VM_COUNTERS,
            *SMI_GPU_COUNTERS,
            *_ADDED_LATER,
            *FRAGMENTATION_COUNTERS,
        )
    )
)
"""Counters are stored by their place in this tuple, so new ones must be added at the end."""
_NUMBERS: Final = {name: number for number, name in enumerate(_COUNTERS)}
_MOST_BYTES: Final = 16 * 1024 * 1024
"""The most that a block may unpack to, so that a damaged one cannot fill the memory."""
_BITS: Final = 5
"""The significant bits of stored numbers."""
_BITS_OF_FORMAT_1: Final = 6
_LARGEST: Final = 1 << 52
"""Counters of kB reach 2^42; a larger number is an error."""

Values = NDArray[np.int64]
"""A row for each step with the average, the highest and the fifteenths covered; MISSING in the first two: unknown."""


@dataclass(frozen=True, slots=True)
class Block:
    """The measurements of one VM or host, by the names of the series; all series have the same number of steps."""

    steps: int
    series: Mapping[str, Values]


def pack(block: Block) -> bytes:
    """Return the bytes of a block, without series whose counter has no number in `_NUMBERS`."""
    names = [name for name in sorted(block.series) if name.partition("@")[0] in _NUMBERS]
    # the head: how many steps and series; for each series the number of its counter, and its instance with the length
    head = bytearray()
    head += block.steps.to_bytes(2, "little") + len(names).to_bytes(2, "little")
    for name in names:
        counter, _, instance = name.partition("@")
        instance_bytes = instance.encode()[:255]  # the length is stored in one byte
        head += bytes((_NUMBERS[counter], len(instance_bytes))) + instance_bytes
    if not names:
        return _compress(bytes(head))
    cube = np.stack([block.series[name] for name in names])  # series, step, (average, highest, covered)
    # codes are stored plus 1, so that 0 is MISSING; the highest is stored as how far it is above the average
    average, highest = _codes(cube[:, :, 0]) + 1, _codes(cube[:, :, 1]) + 1
    above = np.where(highest > 0, np.maximum(highest - average, 0) + 1, 0)
    # consecutive averages are alike, and small numbers compress well
    from_last = np.diff(average, axis=1, prepend=0)
    zigzag = (from_last << 1) ^ (from_last >> 63)  # 0, -1, 1, -2 become 0, 1, 2, 3: no negative numbers
    planes = (zigzag & 0xFF, zigzag >> 8, above & 0xFF, above >> 8, cube[:, :, 2])
    return _compress(bytes(head) + b"".join(plane.astype(np.uint8).tobytes() for plane in planes))


def _compress(body: bytes) -> bytes:
    return bytes((_FORMAT,)) + lzma.compress(body, lzma.FORMAT_RAW, filters=_FILTERS)


def unpack(packed: bytes) -> Block:
    """Return the block of these bytes. Raises ValueError for bytes that are not a block."""
    try:
        body, bits = _decompress(packed)
        names, steps, offset = _parse_head(body)
        count = len(names) * steps
        if len(body) != offset + 5 * count:  # `pack` writes five planes, of one byte for each number
            raise ValueError("its length does not match its number of series and steps")
        planes = np.frombuffer(body, dtype=np.uint8, offset=offset).astype(np.int64).reshape(5, len(names), steps)
    except (lzma.LZMAError, zlib.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    zigzag = planes[0] | planes[1] << 8
    average = np.cumsum((zigzag >> 1) ^ -(zigzag & 1), axis=1)
    above = planes[2] | planes[3] << 8
    highest = np.where(above > 0, average + above - 1, 0)
    cube = np.stack((_values(average - 1, bits), _values(highest - 1, bits), planes[4]), axis=2)
    return Block(steps, dict(zip(names, cube, strict=True)))


def _decompress(packed: bytes) -> tuple[bytes, int]:
    """Return the decompressed bytes, and the number of significant bits of their numbers."""
    if packed[0] == _ZLIB:
        body = zlib.decompressobj().decompress(packed, _MOST_BYTES)
        if body[0] != 1:
            raise ValueError(f"it has format {body[0]}, this version reads 1 and {_FORMAT}")
        return body[1:], _BITS_OF_FORMAT_1
    if packed[0] != _FORMAT:
        raise ValueError(f"it has format {packed[0]}, this version reads 1 and {_FORMAT}")
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS).decompress(packed[1:], _MOST_BYTES), _BITS


def _parse_head(body: bytes) -> tuple[list[str], int, int]:
    """Return the names of the series, the number of steps, and the offset of the numbers."""
    steps, count, offset = int.from_bytes(body[:2], "little"), int.from_bytes(body[2:4], "little"), 4
    names = []
    for _ in range(count):
        counter, length = _COUNTERS[body[offset]], body[offset + 1]
        instance = body[offset + 2 : offset + 2 + length].decode()
        names.append(f"{counter}@{instance}" if instance else counter)
        offset += 2 + length
    return names, steps, offset


def _codes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a code for each number: exact up to 31, then one of 16 codes for each doubling. MISSING stays."""
    limited = np.clip(numbers, 0, _LARGEST)
    exponents = np.maximum(np.frexp(limited.astype(np.float64))[1] - _BITS, 0).astype(np.int64)
    return np.where(numbers < 0, MISSING, (exponents << (_BITS - 1)) + (limited >> exponents))


def _values(codes: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Return for each code the middle of the numbers that have this code."""
    exponents = np.maximum((codes >> (bits - 1)) - 1, 0)
    lowest = np.maximum(codes - (exponents << (bits - 1)), 0) << exponents
    return np.where(codes < 0, MISSING, lowest + ((1 << exponents) >> 1))


FINE_S: Final = 300
HOUR_S: Final = 3600
SAMPLE_S: Final = 20
"""The interval of a host's own samples."""

CombineIntoSteps = Callable[[NDArray[np.int64], NDArray[np.int64], int], Values]
"""Gets for each sample the number of its step and its value, and the number of steps; returns a row for each step."""


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


def _block(samples: Samples, begin: int, steps: int, combine: CombineIntoSteps) -> Block:
    """Return the block of `steps` steps from `begin` on; `combine` makes the steps of one series."""
    # a sample that ends on the border of two steps belongs to the first
    places = (samples.ends - 1 - begin) // FINE_S
    within = (places >= 0) & (places < steps)
    series = {}
    for name, numbers in samples.values.items():
        is_inside = within & (numbers >= 0)
        if is_inside.any():
            series[name] = combine(places[is_inside], numbers[is_inside], steps)
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
    """Return for each step the row that covers more of it; if equal, one whose highest is known, or else the first."""
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
