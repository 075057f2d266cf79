"""Which components can be diagnosed in a case: those whose own counters it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuops.extras.diagnosis.answer import (
    NEEDS,
    CounterSource,
    diagnose_cases,
    scores,
    tellable_by,
    untellable,
    without_contradictions,
)
from gpuops.extras.diagnosis.case import COMPONENTS, FAULTS, SERIES, CaseFacts, Component, DiagnosisCase
from gpuops.extras.diagnosis.channels import channels
from gpuops.extras.diagnosis.diagnoses import shipped_model
from gpuops.extras.diagnosis.made_cases import made_cases

BY_SMI = {Component.LICENCE, Component.THROTTLING, Component.PCIE_LINK, Component.ECC}
BY_VCENTER = {
    Component.SCHEDULER,
    Component.REMOTE_NUMA,
    Component.NOISY_NEIGHBOUR,
    Component.CPU_READY,
    Component.FRAME_BUFFER,
}


def test_the_table_has_each_fault_and_counters_that_there_are() -> None:
    assert set(NEEDS) == set(FAULTS)
    assert {name for need in NEEDS.values() for name in (*need.series, *need.beside)} <= set(SERIES)
    assert {name for need in NEEDS.values() for name in need.facts} <= set(CaseFacts.__slots__)
    assert tellable_by(CounterSource.NVIDIA_SMI) >= BY_SMI
    assert tellable_by(CounterSource.VCENTER) >= BY_VCENTER and tellable_by(CounterSource.VCENTER).isdisjoint(BY_SMI)
    assert tellable_by(CounterSource.GUEST) == {Component.LICENCE}


def test_without_nvidia_smi_nothing_is_said_of_what_it_alone_shows() -> None:
    cases = [without_smi(case.case) for case in made_cases(8, 2)]
    assert all(untellable(case) >= BY_SMI for case in cases)
    rows = scores(cases, shipped_model())
    assert not rows[:, [COMPONENTS.index(component) for component in BY_SMI]].any()
    for answer in diagnose_cases(cases, shipped_model()):
        assert {suspect.component for suspect in answer.suspects}.isdisjoint(BY_SMI)
        assert set(answer.untellable) >= BY_SMI


def test_a_counter_without_any_value_is_absent() -> None:
    ready = {"vm:cpu.ready.summation": np.full(12, np.nan)}
    assert Component.CPU_READY in untellable(DiagnosisCase(300, ready))
    ready["vm:cpu.ready.summation"][3] = 0
    assert Component.CPU_READY not in untellable(DiagnosisCase(300, ready))


def test_a_vm_without_a_counter_uses_what_its_neighbours_leave_of_the_gpus_use() -> None:
    series = {"gpu:gpu.utilization.average": np.full(12, 9_000.0), "neighbours:gpu.utilization.average": np.zeros(12)}
    case = DiagnosisCase(300, series)
    assert {Component.NOISY_NEIGHBOUR, Component.DRIVER}.isdisjoint(untellable(case))
    assert (channels(case)["gpu use"] == 0.9).all()
    del series["neighbours:gpu.utilization.average"]
    assert {Component.NOISY_NEIGHBOUR, Component.DRIVER} <= untellable(case)


def test_a_vm_that_uses_more_than_its_gpu_makes_both_unknown() -> None:
    steps = np.full(12, 1.0)
    contradicting = {
        "vm:gpu.utilization.average": 6_000 * steps,
        "gpu:gpu.utilization.average": 0 * steps,
        "neighbours:gpu.utilization.average": 0 * steps,
        "vm:cpu.ready.summation": 0 * steps,
    }
    case, notes = without_contradictions(DiagnosisCase(300, contradicting))
    assert set(case.series) == {"vm:cpu.ready.summation"}
    assert notes == ("the VM uses 60% of a GPU whose own counter shows 0%: the use of both is unknown",)
    [answer] = diagnose_cases([DiagnosisCase(300, contradicting)], shipped_model())
    assert answer.contradictions == notes and Component.NOISY_NEIGHBOUR in answer.untellable


def test_vms_that_use_three_gpus_of_one_make_the_neighbours_unknown() -> None:
    steps = np.full(12, 1.0)
    of = {"vm:gpu.utilization.average": 6_000 * steps, "neighbours:gpu.utilization.average": 24_100 * steps}
    case, notes = without_contradictions(DiagnosisCase(300, of))
    assert set(case.series) == {"vm:gpu.utilization.average"} and "together use 301%" in notes[0]
    apart = {**of, "neighbours:gpu.utilization.average": 4_000 * steps}
    assert without_contradictions(DiagnosisCase(300, apart))[1] == ()


def without_smi(case: DiagnosisCase) -> DiagnosisCase:
    return replace(case, series={name: values for name, values in case.series.items() if ":smi." not in name})
