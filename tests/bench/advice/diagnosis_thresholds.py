"""Single-threshold rules: of each fault one number, above or below one value: the mean of a channel, or a fact.

They are the measure of how hard the cases of the test fleets are: number and value are those that tell the fault best
in the training cases, out of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import COMPONENTS, FAULTS, Component, LabelledCase
from gpuops.extras.diagnosis.channels import CHANNELS, channels
from gpuops.extras.diagnosis.features import FACTS, UNKNOWN, features

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Threshold:
    channel: str
    sign: int
    """1 = above it is a fault, -1 = below."""
    value: float
    spread: float


NUMBERS = (*CHANNELS, *FACTS)
"""What rules may go by."""


def means(cases: Sequence[LabelledCase]) -> Floats:
    """The mean of each channel, and each fact; NaN = missing."""
    rows = []
    for case in cases:
        of = channels(case.case)
        rows.append(
            [values[~np.isnan(values)].mean() if not np.isnan(values).all() else np.nan for values in of.values()]
        )
    facts = features([case.case for case in cases])[:, -len(FACTS) :]
    return np.hstack([np.array(rows), np.where(facts == UNKNOWN, np.nan, facts)])


def thresholds(cases: Sequence[LabelledCase]) -> dict[Component, Threshold]:
    """The best of each fault: as many of its cases told as possible, each false alarm taken off."""
    case_means = means(cases)
    best_by_fault: dict[Component, Threshold] = {}
    for fault in FAULTS:
        is_it = np.array([fault in case.at_fault for case in cases])
        best = (-np.inf, Threshold("", 1, 0.0, 1.0))
        for column, channel in enumerate(NUMBERS):
            values = case_means[:, column]
            spread = float(np.nanstd(values)) or 1.0
            for value in np.unique(np.nanpercentile(values, np.arange(0.5, 100, 0.5))):
                for sign in (1, -1):
                    is_over = np.nan_to_num(sign * (values - value), nan=-1.0) > 0
                    score = float(is_over[is_it].sum() - is_over[~is_it].sum())
                    best = max(best, (score, Threshold(channel, sign, float(value), spread)), key=lambda pair: pair[0])
        best_by_fault[fault] = best[1]
    return best_by_fault


def scores(rules: dict[Component, Threshold], cases: Sequence[LabelledCase]) -> Floats:
    """Return by how many spreads each threshold is passed; the score of `none` is 0: it wins if none is passed."""
    case_means, names = means(cases), list(NUMBERS)
    score_rows = np.zeros((len(cases), len(COMPONENTS)))
    for fault, rule in rules.items():
        passed = rule.sign * (case_means[:, names.index(rule.channel)] - rule.value) / rule.spread
        score_rows[:, COMPONENTS.index(fault)] = np.nan_to_num(passed, nan=-1.0)
    return score_rows
