"""Packs what was measured of one VM or host in some hours into bytes, and unpacks it. Pure.

Values up to 31 are kept exactly, larger ones with five significant bits: off by 3.2 % at most. What has been packed
once is packed again to the same bytes. Series hardly change from step to step, so differences are kept, and compressed:
by LZMA (lzma of Python's library, raw streams), which takes an eighth less than zlib, and a millisecond for a block.
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
"""How much of a step is covered by samples, in fifteenths: a step of five minutes has fifteen samples."""

_FORMAT: Final = 2
_ZLIB: Final = 0x78
"""How blocks of format 1 begin, which are still read: zlib, and values of six significant bits."""
_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0, "dict_size": 1 << 16},)
"""Bytes of these planes say nothing by their place or by the one before: contexts would only be learnt for longer."""
_LATER: Final = (MEMORY_BALLOONED, MEMORY_SWAPPED, SMI_POWER_LIMIT)
_FIRST: Final = tuple(name for name in VM_COUNTERS if name not in _LATER)
_NUMBERED: Final = tuple(dict.fromkeys((*_FIRST, *HOST_COUNTERS, *SMI_VM_COUNTERS, *SMI_GPU_COUNTERS, *_LATER)))
"""Counters are kept by their place in here: new ones come last."""
_NUMBERS: Final = {name: number for number, name in enumerate(_NUMBERED)}
_MOST_BYTES: Final = 16 * 1024 * 1024
_BITS: Final = 5
_BITS_OF_FORMAT_1: Final = 6
_LARGEST: Final = 1 << 52
"""Counters of kB reach 2^42; a larger number is no measured value."""

Values = NDArray[np.int64]
"""A row for each step has the average, the highest and the fifteenths covered; MISSING in the first two = unknown."""


@dataclass(frozen=True, slots=True)
class Block:
    """What was measured of one VM or host, by the names of the series; all have equally many steps."""

    steps: int
    series: Mapping[str, Values]


def pack(block: Block) -> bytes:
    """The bytes of a block. Series of counters that are not known here are left out."""
    names = [name for name in sorted(block.series) if name.partition("@")[0] in _NUMBERS]
    head = bytearray()
    head += block.steps.to_bytes(2, "little") + len(names).to_bytes(2, "little")
    for name in names:
        counter, _, instance = name.partition("@")
        of = instance.encode()[:255]
        head += bytes((_NUMBERS[counter], len(of))) + of
    if not names:
        return _compressed(bytes(head))
    cube = np.stack([block.series[name] for name in names])
    average, highest = _codes(cube[:, :, 0]) + 1, _codes(cube[:, :, 1]) + 1
    above = np.where(highest > 0, np.maximum(highest - average, 0) + 1, 0)
    from_last = np.diff(average, axis=1, prepend=0)
    zigzag = (from_last << 1) ^ (from_last >> 63)
    planes = (zigzag & 0xFF, zigzag >> 8, above & 0xFF, above >> 8, cube[:, :, 2])
    return _compressed(bytes(head) + b"".join(plane.astype(np.uint8).tobytes() for plane in planes))


def _compressed(told: bytes) -> bytes:
    return bytes((_FORMAT,)) + lzma.compress(told, lzma.FORMAT_RAW, filters=_FILTERS)


def unpack(packed: bytes) -> Block:
    """The block of these bytes. Raises ValueError for bytes that are no block."""
    try:
        told, bits = _decompressed(packed)
        names, steps, at = _head(told)
        count = len(names) * steps
        if len(told) != at + 5 * count:
            raise ValueError("it is cut off")
        planes = np.frombuffer(told, dtype=np.uint8, offset=at).astype(np.int64).reshape(5, len(names), steps)
    except (lzma.LZMAError, zlib.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from error
    zigzag = planes[0] | planes[1] << 8
    average = np.cumsum((zigzag >> 1) ^ -(zigzag & 1), axis=1)
    above = planes[2] | planes[3] << 8
    highest = np.where(above > 0, average + above - 1, 0)
    cube = np.stack((_values(average - 1, bits), _values(highest - 1, bits), planes[4]), axis=2)
    return Block(steps, dict(zip(names, cube, strict=True)))


def _decompressed(packed: bytes) -> tuple[bytes, int]:
    """What was compressed, and how many bits its values have."""
    if packed[0] == _ZLIB:
        told = zlib.decompressobj().decompress(packed, _MOST_BYTES)
        if told[0] != 1:
            raise ValueError(f"it is of format {told[0]}, this version reads 1 and {_FORMAT}")
        return told[1:], _BITS_OF_FORMAT_1
    if packed[0] != _FORMAT:
        raise ValueError(f"it is of format {packed[0]}, this version reads 1 and {_FORMAT}")
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS).decompress(packed[1:], _MOST_BYTES), _BITS


def _head(told: bytes) -> tuple[list[str], int, int]:
    """The names of the series, how many steps there are, and where the values begin."""
    steps, count, at = int.from_bytes(told[:2], "little"), int.from_bytes(told[2:4], "little"), 4
    names = []
    for _ in range(count):
        counter, length = _NUMBERED[told[at]], told[at + 1]
        instance = told[at + 2 : at + 2 + length].decode()
        names.append(f"{counter}@{instance}" if instance else counter)
        at += 2 + length
    return names, steps, at


def _codes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """A small number for each value, exact up to 31, then one of 16 for each doubling; MISSING stays."""
    known = np.clip(values, 0, _LARGEST)
    exponents = np.maximum(np.frexp(known.astype(np.float64))[1] - _BITS, 0).astype(np.int64)
    return np.where(values < 0, MISSING, (exponents << (_BITS - 1)) + (known >> exponents))


def _values(codes: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """The middle of the values that have this code."""
    exponents = np.maximum((codes >> (bits - 1)) - 1, 0)
    known = np.maximum(codes - (exponents << (bits - 1)), 0) << exponents
    return np.where(codes < 0, MISSING, known + ((1 << exponents) >> 1))
