"""A frame buffer that its framework fills at its start is no fault; one whose guest pages or whose programs end is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gpuops.extras.diagnosis.answer import ruled_out, scores
from gpuops.extras.diagnosis.case import COMPONENTS, CaseFacts, Component, DiagnosisCase
from gpuops.extras.diagnosis.diagnoses import shipped_model
from tests.bench.advice.diagnosis_fleets import Way, fleet_cases

FRAME_BUFFER = COMPONENTS.index(Component.FRAME_BUFFER)


def healthy(seed: int, count: int) -> Iterator[DiagnosisCase]:
    """Healthy VMs of the test fleet `models`, whose frame buffer is then filled as frameworks do."""
    rng = np.random.default_rng(seed)
    for case in fleet_cases("models", seed, 4 * count, Way.VCENTER):
        series = dict(case.case.series)
        if case.at_fault or "vm:gpu.mem.used.average" not in series:
            continue
        level = rng.uniform(0.95, 0.995) * (case.case.facts.vgpu_mib or 0) * 1024
        is_measured = ~np.isnan(series["vm:gpu.mem.used.average"])
        series["vm:gpu.mem.used.average"] = np.where(is_measured, level, np.nan)
        yield DiagnosisCase(300, series, case.case.facts)


def test_a_framework_that_takes_all_memory_at_its_start_is_not_accused() -> None:
    rows = scores(list(healthy(3, 12)), shipped_model())
    named = (rows.argmax(axis=1) == FRAME_BUFFER).mean()
    assert len(rows) > 10 and named <= 0.05, "it was 0.89"


@pytest.mark.parametrize(("used", "excluded"), [((0.2, 0.77), True), ((0.2, 0.81), False), ((np.nan, np.nan), False)])
def test_a_frame_buffer_that_is_never_nearly_full_is_ruled_out(used: tuple[float, float], excluded: bool) -> None:
    series = {"vm:gpu.mem.used.average": np.array(used) * 12288 * 1024}
    assert (Component.FRAME_BUFFER in ruled_out(DiagnosisCase(300, series, CaseFacts(vgpu_mib=12288)))) is excluded


def test_programs_that_end_for_want_of_memory_and_guests_that_page_are_told() -> None:
    steps = np.arange(48)
    ended = steps % 4 == 3
    paged = np.where(steps % 3 == 0, 0.7, 0.1)
    common = {
        "vm:cpu.ready.summation": np.full(48, 900.0),
        "vm:disk.maxTotalLatency.latest": np.full(48, 4.0),
        "vm:net.droppedRx.summation": np.zeros(48),
        "vm:net.usage.average": np.full(48, 300.0),
        "vm:mem.swapped.average": np.zeros(48),
        "vm:mem.vmmemctl.average": np.zeros(48),
    }
    ends = common | {
        "vm:gpu.mem.used.average": np.where(ended, 0.3, 0.98) * 12288 * 1024,
        "vm:gpu.utilization.average": np.where(ended, 200.0, 4_000.0),
        "gpu:gpu.utilization.average": np.where(ended, 200.0, 4_000.0),
        "vm:cpu.usagemhz.average": np.where(ended, 800.0, 4_000.0),
        "vm:mem.active.average": np.full(48, 0.3 * 32 * 1024 * 1024),
    }
    pages = common | {
        "vm:gpu.mem.used.average": np.full(48, 0.985 * 12288 * 1024),
        "vm:gpu.utilization.average": 5_000.0 * (1 - paged),
        "gpu:gpu.utilization.average": 5_000.0 * (1 - paged),
        "vm:cpu.usagemhz.average": (0.15 + 0.5 * paged) * 8 * 2600,
        "vm:mem.active.average": (0.3 + 0.4 * paged) * 32 * 1024 * 1024,
    }
    facts = CaseFacts(8, 32 * 1024, 2600, 48, 512 * 1024, 12288, 49152, 4, 2)
    rows = scores([DiagnosisCase(300, series, facts) for series in (ends, pages)], shipped_model())
    assert (rows.argmax(axis=1) == FRAME_BUFFER).all()
