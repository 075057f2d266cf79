"""The model that comes with gpuops: it is of this version's numbers, small, and `make model` makes it again."""

from __future__ import annotations

import numpy as np
import pytest

from gpuops.extras.diagnosis.answer import scores
from gpuops.extras.diagnosis.case import FAULTS
from gpuops.extras.diagnosis.diagnoses import shipped_model
from gpuops.extras.diagnosis.features import features
from gpuops.extras.diagnosis.learning import EACH_FAULT, components_right, false_alarms
from gpuops.extras.diagnosis.made_cases import made_cases
from tests.make_model import PATH, make_model

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
