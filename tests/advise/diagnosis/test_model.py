"""A model as data, what rules are certain of, and that a worse model never replaces the one that stands."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gpuops.advise.diagnosis.answer import CERTAIN, scores
from gpuops.advise.diagnosis.features import NAMES, features
from gpuops.advise.diagnosis.judging import alarms_right, components_right, false_alarms
from gpuops.advise.diagnosis.learning import examples, fitted, trained
from gpuops.advise.diagnosis.made_cases import made_cases
from gpuops.advise.diagnosis.model import Forest, ForestSettings, read, written
from gpuops.advise.diagnosis.rules import certain, ruled_out
from gpuops.model.case import CaseFacts, DiagnosisCase
from gpuops.model.component import COMPONENTS, Component

CASES = list(made_cases(11, 6))


@pytest.fixture(scope="module")
def model() -> Forest:
    rows, labels = examples(CASES)
    return replace(fitted(rows, labels, np.ones(len(rows)), ForestSettings(trees=8), 1), right=0.5)


def test_a_row_has_a_number_for_each_name_and_none_is_missing() -> None:
    rows = features([case.case for case in CASES])
    assert rows.shape == (len(CASES), len(NAMES)) and np.isfinite(rows).all()
    assert np.isfinite(features([DiagnosisCase(300, {})])).all(), "of a case without any series, too"


def test_a_model_is_data_that_answers_as_before(model: Forest) -> None:
    rows = features([case.case for case in CASES])
    again = read(json.loads(json.dumps(written(model))))
    assert again.probabilities(rows) == pytest.approx(model.probabilities(rows), abs=0.01)
    assert model.probabilities(rows).sum(axis=1) == pytest.approx(1.0)
    assert (model.probabilities(rows).argmax(axis=1) == examples(CASES)[1]).mean() > 0.95, "these it has seen"


@pytest.mark.parametrize(
    "edit",
    [
        {"format": 2},
        {"features": ["other"]},
        {"trees": []},
        {"trees": [{"feature": [0]}]},
        {"trees": [{"feature": [9999], "threshold": [0], "low": [0], "high": [0], "shares": [[0] * len(COMPONENTS)]}]},
        {"settings": {"bogus": 1}},
    ],
)
def test_what_is_no_model_is_refused(model: Forest, edit: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"it |a tree "):
        read({**written(model), **edit})


def case(facts: CaseFacts | None = None, **series: list[float]) -> DiagnosisCase:
    named = {name.replace("__", ":").replace("_", "."): np.array(values) for name, values in series.items()}
    return DiagnosisCase(300, named, facts or CaseFacts())


def test_what_is_certain_is_named_with_its_number() -> None:
    found = certain(case(CaseFacts(pcie_width=16), gpu__smi_gpu_pcieWidth_latest=[16, np.nan, 8]))
    assert found == {Component.PCIE_LINK: "8 lanes, it should have 16"}
    errors = certain(case(gpu__smi_gpu_eccUncorrected_latest=[4, 4, np.nan, 7]))
    assert errors == {Component.ECC: "3 new errors that were not corrected"}
    assert certain(case(gpu__smi_gpu_eccUncorrected_latest=[4, 4, 4, 0])) == {}, "a boot is no error"
    assert Component.DRIVER in certain(case(CaseFacts(host_driver=535, guest_driver=550)))


def test_what_is_unknown_is_neither_certain_nor_ruled_out() -> None:
    assert certain(case()) == {} and ruled_out(case()) == frozenset()
    told = ruled_out(case(CaseFacts(sharers=1), vm__smi_vgpu_licensed_latest=[1, 1, 1]))
    assert told == {Component.LICENCE, Component.NOISY_NEIGHBOUR}


def test_a_rule_goes_over_the_model_and_after_a_fault_none_is_no_answer(model: Forest) -> None:
    slow = case(vm__smi_vgpu_licensed_latest=[0, 0, 0])
    for asked in (model, None):
        row = scores([slow], asked)[0]
        assert row[COMPONENTS.index(Component.LICENCE)] == CERTAIN
        assert row[COMPONENTS.index(Component.NONE)] == 0


def test_right_is_what_is_among_as_many_as_are_at_fault() -> None:
    row = np.zeros((1, len(COMPONENTS)))
    row[0, COMPONENTS.index(Component.ECC)], row[0, COMPONENTS.index(Component.NETWORK)] = 0.6, 0.3
    assert components_right(row, [{Component.ECC, Component.NETWORK}]) == 1.0
    assert components_right(row, [{Component.ECC, Component.DRIVER}]) == 0.5
    assert components_right(row, [set()]) == 0.0


def test_counted_strictly_one_named_too_many_counts() -> None:
    row = np.zeros((2, len(COMPONENTS)))
    row[0, COMPONENTS.index(Component.ECC)], row[0, COMPONENTS.index(Component.NETWORK)] = 0.6, 0.3
    row[1, COMPONENTS.index(Component.NONE)] = 0.9
    assert alarms_right(row, [{Component.ECC}, set()]) == 2 / 3
    assert alarms_right(row, [{Component.ECC, Component.NETWORK}, set()]) == 1.0
    assert false_alarms(row, [set(), set()]) == 0.5
    assert false_alarms(row, [{Component.ECC}, set()]) == 0.0


@pytest.mark.long
def test_a_worse_model_never_replaces_the_one_that_stands() -> None:
    good = trained([], None, each_fault=30)
    assert good.replaced and good.before is None
    worse = trained([], good.model, seed=2, each_fault=2)
    assert worse.before is not None and worse.after < worse.before
    assert not worse.replaced and worse.model is good.model
    assert good.model.settings in [settings for settings, _ in worse.tried], "the winner's are where the next begins"
