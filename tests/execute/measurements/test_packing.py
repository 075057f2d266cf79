"""Packed blocks come out as they went in, within what is said of their exactness, and what is missing stays missing."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.observe.packing import WHOLE, Block, pack, unpack
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_USE

EXACT_BELOW: Final = 32
OFF_AT_MOST: Final = 0.032

OF_FORMAT_1: Final = bytes.fromhex(
    "789c63646660626060e0e43100022be3242b03033d83a04081658b1919c032120cb20c402618f033b0f3333200009c2e04fe"
)
"""Packed by the version before: a step that is missing, a highest that is unknown."""

known = st.tuples(st.integers(0, 2**42), st.one_of(st.just(None), st.integers(0, 2**42)), st.integers(1, WHOLE))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    steps = draw(st.integers(1, 30))
    names = draw(st.sets(st.sampled_from([CPU_MHZ, GPU_USE, f"{GPU_USE}@0000:3b:00.0", "net.usage.average"])))
    series = {}
    for name in names:
        rows = []
        for _ in range(steps):
            drawn = draw(st.one_of(st.just(None), known))
            if drawn is None:
                rows.append((-1, -1, 0))
            else:
                average, above, covered = drawn
                rows.append((average, -1 if above is None else average + above, covered))
        series[name] = np.array(rows, dtype=np.int64)
    return Block(steps, series)


@pytest.mark.long
@given(blocks())
def test_what_was_packed_comes_out_again(block: Block) -> None:
    packed = pack(block)
    unpacked = unpack(packed)
    assert (unpacked.steps, unpacked.series.keys()) == (block.steps, block.series.keys())
    for name, values in block.series.items():
        series_read = unpacked.series[name]
        assert ((series_read < 0) == (values < 0)).all(), "missing stays missing, and nothing else is"
        assert (series_read[:, 2] == values[:, 2]).all()
        is_measured = values >= 0
        off = np.abs(series_read[is_measured] - values[is_measured])
        assert (off <= np.where(values[is_measured] < EXACT_BELOW, 0, values[is_measured] * OFF_AT_MOST)).all()
        assert (series_read[series_read[:, 1] >= 0, 1] >= series_read[series_read[:, 1] >= 0, 0]).all(), (
            "nothing is higher than the highest"
        )
    assert pack(unpacked) == packed, "what is packed again is the same"


def test_what_an_earlier_version_packed_is_read_and_packed_anew() -> None:
    unpacked = unpack(OF_FORMAT_1)
    assert {name: values.tolist() for name, values in unpacked.series.items()} == {
        CPU_MHZ: [[40, 63, 15], [-1, -1, 0], [5056, 9088, 7]],
        f"{GPU_USE}@0000:3b:00.0": [[101, -1, 15], [0, 0, 1], [-1, -1, 0]],
    }
    repacked = unpack(pack(unpacked))
    assert repacked.series[CPU_MHZ].tolist() == [[41, 63, 15], [-1, -1, 0], [4992, 8960, 7]]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"nothing",
        zlib.compress(b""),
        zlib.compress(b"\x09" + bytes(4)),
        zlib.compress(b"\x01\x05\x00\x01\x00\x00\x00"),
        b"\x02",
        b"\x02nothing",
        pack(Block(2, {CPU_MHZ: np.array([[1, 2, 15], [3, 4, 15]])}))[:-9],
    ],
    ids=["empty", "not compressed", "no head", "another format", "cut off", "no data", "no LZMA", "LZMA cut off"],
)
def test_what_is_no_block_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"unpacked|format|length"):
        unpack(damaged)
