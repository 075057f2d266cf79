"""Packs the measurements of one VM or host in some hours into bytes, and unpacks them. Pure.

Numbers up to 31 are kept exactly, larger ones with five significant bits, which is an error of at most 3.2 %. Packing
an unpacked block again gives the same bytes. Series change little from step to step, so the differences are stored and
compressed by LZMA (lzma of Python's library, raw streams): an eighth less than zlib, and a millisecond for a block.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.model.measurements.measurement import (
    FRAGMENTATION_COUNTERS,
    HOST_COUNTERS,
    MEMORY_BALLOONED,
    MEMORY_SWAPPED,
    SMI_GPU_COUNTERS,
    SMI_POWER_LIMIT,
    SMI_VM_COUNTERS,
    VM_COUNTERS,
)

MISSING: Final = -1
WHOLE: Final = 15
"""A step that samples cover completely, in fifteenths: a step of five minutes has fifteen samples."""

_FORMAT: Final = 2
_ZLIB: Final = 0x78
"""The first byte of blocks of format 1, which can still be read: zlib, and numbers of six significant bits."""
_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16},)
"""No contexts (lc, lp, pb are 0): neither the place of a byte nor the byte before it helps to predict it."""
_LATER: Final = (MEMORY_BALLOONED, MEMORY_SWAPPED, SMI_POWER_LIMIT)
_FIRST: Final = tuple(name for name in VM_COUNTERS if name not in _LATER)
_NUMBERED: Final = tuple(
    dict.fromkeys((*_FIRST, *HOST_COUNTERS, *SMI_VM_COUNTERS, *SMI_GPU_COUNTERS, *_LATER, *FRAGMENTATION_COUNTERS))
)
"""Counters are stored by their place in this tuple, so new ones must be added at the end."""
_NUMBERS: Final = {name: number for number, name in enumerate(_NUMBERED)}
_MOST_BYTES: Final = 16 * 1024 * 1024
_BITS: Final = 5
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
            raise ValueError("its length is not that of its series")
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
        counter, length = _NUMBERED[body[offset]], body[offset + 1]
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
    """Return the middle of the numbers that have this code."""
    exponents = np.maximum((codes >> (bits - 1)) - 1, 0)
    lowest = np.maximum(codes - (exponents << (bits - 1)), 0) << exponents
    return np.where(codes < 0, MISSING, lowest + ((1 << exponents) >> 1))
