"""The generators of labelled cases are frozen: they were committed with these digests before any model was tried.

A change of one requires new measurements of all models, noted in `gpuops/extras/diagnosis/README.md`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

from gpuops.extras.diagnosis.case import FAULTS, SERIES, Component, LabelledCase
from gpuops.extras.diagnosis.made_cases import made_cases
from tests.bench.advice.diagnosis_fleets import FLEETS, fleet_cases

TRAINING = "6aaa22e42a54abdfefe46ff244d851cc0625afe6239c5cee14c3fbc6b4dbd753"
FLEETS_FOR_TESTS = "86f49afaeb3b68ea94add406c759fac7183dec8648c004345919d11d0f74fdb4"


def digest(cases: Iterable[LabelledCase]) -> str:
    """Of names, labels, facts and values. The last are rounded: processors differ in the last bits of a sine."""
    sha256 = hashlib.sha256()
    for case in cases:
        facts = case.case.facts
        remote = None if facts.remote_memory is None else round(facts.remote_memory, 6)
        plain = [getattr(facts, name) for name in facts.__slots__ if name != "remote_memory"]
        sha256.update(repr((case.name, sorted(case.at_fault), plain, remote)).encode())
        for name, values in sorted(case.case.series.items()):
            measured = np.where(np.isnan(values), -1.0, values)
            sha256.update(name.encode() + f"{len(measured)} {measured.mean():.4e} {measured.max():.4e}".encode())
    return sha256.hexdigest()


def test_the_training_cases_are_those_of_then() -> None:
    assert digest(made_cases(7, 2)) == TRAINING


def test_the_test_fleets_are_those_of_then() -> None:
    assert digest(case for fleet in FLEETS for case in fleet_cases(fleet, 7, 6)) == FLEETS_FOR_TESTS


def test_half_of_the_training_cases_have_no_fault_and_each_fault_is_there_as_often() -> None:
    counted = Counter(next(iter(case.at_fault), Component.NONE) for case in made_cases(1, 3))
    assert counted == Counter([*FAULTS * 3, *[Component.NONE] * 3 * len(FAULTS)])


def test_the_test_fleets_have_cases_with_two_faults_and_none_and_gaps() -> None:
    cases = list(fleet_cases("mixed", 2, 60))
    assert {len(case.at_fault) for case in cases} == {0, 1, 2}
    assert len({len(next(iter(case.case.series.values()))) for case in cases}) > 2
    assert all(set(case.case.series) <= set(SERIES) for case in cases)
    assert any(len(case.case.series) < len(SERIES) for case in cases)
    assert all(values[~np.isnan(values)].min(initial=0) >= 0 for case in cases for values in case.case.series.values())
