"""Packed blocks come out as they went in, within what is said of their exactness, and what is missing stays missing."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.execute.measurements.packing import WHOLE, Block, pack, unpack
from gpuops.model.measurement import CPU_MHZ, GPU_USE

EXACT_BELOW: Final = 64
OFF_AT_MOST: Final = 0.016

known = st.tuples(st.integers(0, 2**42), st.one_of(st.just(None), st.integers(0, 2**42)), st.integers(1, WHOLE))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    steps = draw(st.integers(1, 30))
    names = draw(st.sets(st.sampled_from([CPU_MHZ, GPU_USE, f"{GPU_USE}@0000:3b:00.0", "net.usage.average"])))
    series = {}
    for name in names:
        rows = []
        for _ in range(steps):
            told = draw(st.one_of(st.just(None), known))
            if told is None:
                rows.append((-1, -1, 0))
            else:
                average, above, covered = told
                rows.append((average, -1 if above is None else average + above, covered))
        series[name] = np.array(rows, dtype=np.int64)
    return Block(steps, series)


@given(blocks())
def test_what_was_packed_comes_out_again(block: Block) -> None:
    packed = pack(block)
    found = unpack(packed)
    assert (found.steps, found.series.keys()) == (block.steps, block.series.keys())
    for name, values in block.series.items():
        told = found.series[name]
        assert ((told < 0) == (values < 0)).all(), "missing stays missing, and nothing else is"
        assert (told[:, 2] == values[:, 2]).all()
        there = values >= 0
        off = np.abs(told[there] - values[there])
        assert (off <= np.where(values[there] < EXACT_BELOW, 0, values[there] * OFF_AT_MOST)).all()
    assert pack(found) == packed, "what is packed again is the same"


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"nothing",
        zlib.compress(b""),
        zlib.compress(b"\x09" + bytes(4)),
        zlib.compress(b"\x01\x05\x00\x01\x00\x00\x00"),
    ],
    ids=["empty", "not compressed", "no head", "another format", "cut off"],
)
def test_what_is_no_block_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"unpacked|format|cut off"):
        unpack(damaged)
