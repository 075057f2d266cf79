"""What is kept of measurements: packed blocks, steps and hours, diagnoses, and the model that comes with gpuops."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.errors import StateDamaged
from gpuops.extras.diagnosis.answer import Suspect, scores
from gpuops.extras.diagnosis.case import FAULTS, Component
from gpuops.extras.diagnosis.diagnoses import Diagnoses, shipped_model
from gpuops.extras.diagnosis.features import features
from gpuops.extras.diagnosis.learning import EACH_FAULT, components_right, false_alarms
from gpuops.extras.diagnosis.made_cases import made_cases
from gpuops.extras.observe.blocks import (
    WHOLE,
    Block,
    empty,
    hours,
    merge_blocks,
    pack,
    place_block,
    steps_of_averages,
    steps_of_samples,
    unpack,
    without_unknown_use,
)
from gpuops.model.measurements.measurement import CPU_MHZ, GPU_MEMORY, GPU_USE, Samples
from gpuops.model.vcenter.vm import VgpuDevice, Vm
from tests.make_model import PATH, make_model

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


NOW = datetime(2026, 11, 2, 18, tzinfo=UTC)


def suspects_of(component: Component) -> list[Suspect]:
    return [Suspect(component, 0.9, (), by_rule=False)]


def test_what_is_confirmed_is_what_the_last_model_said(tmp_path: Path) -> None:
    diagnoses, case = Diagnoses(tmp_path), next(iter(made_cases(3, 1))).case
    name = diagnoses.note("vc", "vm-1", case, suspects_of(Component.NETWORK), NOW)
    assert diagnoses.note("vc", "vm-1", case, suspects_of(Component.DATASTORE), NOW) == name, (
        "the same numbers are the same diagnosis"
    )
    assert diagnoses.settle(name, None) == (Component.DATASTORE,)
    diagnoses.note("vc", "vm-1", case, suspects_of(Component.CPU_READY), NOW)
    [settled] = diagnoses.confirmed_cases()
    assert settled.at_fault == {Component.DATASTORE}, "what people found stays, whatever a later model says"


@pytest.mark.parametrize("damage", [{"found": ["no-such"]}, {"found": 5}, {"case": {"name": "a"}}])
def test_a_kept_diagnosis_that_is_damaged_is_named(tmp_path: Path, damage: dict[str, object]) -> None:
    diagnoses, case = Diagnoses(tmp_path), next(iter(made_cases(3, 1))).case
    name = diagnoses.note("vc", "vm-1", case, suspects_of(Component.NETWORK), NOW)
    diagnoses.settle(name, None)
    path = tmp_path / "diagnosis" / "cases" / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **damage}), encoding="utf-8")
    with pytest.raises(StateDamaged, match=f"{name}.json cannot be read"):
        diagnoses.confirmed_cases()


MOST_BYTES = 1_000_000


def test_it_is_small_learned_from_all_made_cases_and_knows_cases_that_it_has_not_seen() -> None:
    model, cases = shipped_model(), list(made_cases(71, 2))
    assert PATH.stat().st_size < MOST_BYTES
    assert (model.cases, model.corrections) == (2 * EACH_FAULT * len(FAULTS), ())
    rows = scores([case.case for case in cases], model)
    at_fault = [case.at_fault for case in cases]
    assert components_right(rows, at_fault) > 0.85 and false_alarms(rows, at_fault) < 0.1


@pytest.mark.long
def test_the_command_that_made_it_makes_it_again() -> None:
    """What is written has four digits of each share; another processor may part a node elsewhere."""
    rows = features([case.case for case in made_cases(72, 4)])
    remade, shipped = make_model().probabilities(rows), shipped_model().probabilities(rows)
    assert np.abs(remade - shipped).mean() < 0.005, "make model"
