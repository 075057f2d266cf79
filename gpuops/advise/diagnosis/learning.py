"""Makes models from labelled cases: candidates compete on cases never seen. Needs scikit-learn (extra `diagnose`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.answer import scores
from gpuops.advise.diagnosis.features import features
from gpuops.advise.diagnosis.judging import components_right
from gpuops.advise.diagnosis.made_cases import made_cases
from gpuops.advise.diagnosis.model import DecisionTree, Forest, ForestSettings
from gpuops.model.case import LabelledCase
from gpuops.model.component import COMPONENTS, Component

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EACH_FAULT: Final = 100
"""So many cases of each fault are made, and as many without as with one."""
EXAM_SEED: Final = 1_000_003
EXAM_EACH: Final = 20
"""The cases by which a new model and the standing one are compared; no model is made of them."""
WEIGHT_OF_CONFIRMED: Final = 3.0
"""A confirmed case counts as so many that are made: it is real, but people err."""
START: Final = ForestSettings()


@dataclass(frozen=True, slots=True)
class Trained:
    """What came out of a training."""

    model: Forest
    """The one that stands from now on."""
    replaced: bool
    """Whether it is the new one."""
    tried: tuple[tuple[ForestSettings, float], ...]
    """The candidates, and the share of components that each had right in cases never seen."""
    before: float | None
    """What the standing model had right in the cases by which both are compared; None = there was none."""
    after: float
    """What the new one had right in these."""


def trained(
    confirmed: Sequence[LabelledCase], standing: Forest | None, *, seed: int = 1, each_fault: int = EACH_FAULT
) -> Trained:
    """Learns the next model from made and confirmed cases by the settings that win.

    Candidates are the settings of the standing model and their neighbours. The standing model stays where the new
    one has fewer right.
    """
    made = list(made_cases(seed, each_fault))
    rows, labels, weights = _examples(made, confirmed)
    start = standing.settings if standing is not None else START
    tried = tuple((each, _cross_validated(each, rows, labels, weights, made)) for each in _candidates(start))
    settings = max(tried, key=lambda pair: pair[1])[0]
    unseen = [case for case in confirmed if standing is None or case.name not in standing.corrections]
    exam = list(made_cases(EXAM_SEED, EXAM_EACH))
    judged = fitted(rows, labels, weights, settings, seed)
    after = _right(judged, exam)
    if unseen and standing is not None:
        # of cases that it learns from a model is judged by one that did not
        after = _with_confirmed(
            after, len(exam), _right_of_unseen(made, confirmed, unseen, settings, seed), len(unseen)
        )
    before = None if standing is None else _right(standing, [*exam, *unseen])
    new = replace(judged, corrections=tuple(case.name for case in confirmed), right=after)
    if standing is not None and before is not None and after < before:
        return Trained(standing, replaced=False, tried=tried, before=before, after=after)
    return Trained(new, replaced=True, tried=tried, before=before, after=after)


def fitted(rows: Floats, labels: Ints, weights: Floats, settings: ForestSettings, seed: int) -> Forest:
    """A forest of extremely randomised trees (Geurts, Ernst, Wehenkel 2006) of these examples."""
    from sklearn.ensemble import ExtraTreesClassifier

    grown = ExtraTreesClassifier(
        settings.trees,
        max_features=settings.features_tried,
        min_samples_leaf=settings.least_in_leaf,
        random_state=seed,
    ).fit(rows, labels, weights)
    trees = tuple(_tree(each.tree_, grown.classes_) for each in grown.estimators_)
    return Forest(trees, settings, len(rows), (), float("nan"))


def _tree(grown: Any, classes: Ints) -> DecisionTree:
    shares = np.zeros((grown.node_count, len(COMPONENTS)))
    values = grown.value[:, 0, :]
    shares[:, classes] = values / values.sum(axis=1, keepdims=True)
    feature = np.where(grown.children_left < 0, -1, grown.feature).astype(np.int64)
    low, high = (np.maximum(side, 0).astype(np.int64) for side in (grown.children_left, grown.children_right))
    return DecisionTree(feature, grown.threshold.astype(float), low, high, shares)


def examples(cases: Sequence[LabelledCase]) -> tuple[Floats, Ints]:
    """A row and a label for each component at fault: a case with two is there twice."""
    rows = features([case.case for case in cases])
    pairs = [(at, each) for at, case in enumerate(cases) for each in sorted(case.at_fault) or [Component.NONE]]
    labels = np.array([COMPONENTS.index(component) for _, component in pairs], np.int64)
    return rows[[at for at, _ in pairs]], labels


def _examples(made: Sequence[LabelledCase], confirmed: Sequence[LabelledCase]) -> tuple[Floats, Ints, Floats]:
    rows, labels = examples(made)
    if not confirmed:
        return rows, labels, np.ones(len(rows))
    more, more_labels = examples(confirmed)
    weights = np.concatenate([np.ones(len(rows)), np.full(len(more), WEIGHT_OF_CONFIRMED)])
    return np.vstack([rows, more]), np.concatenate([labels, more_labels]), weights


def _candidates(start: ForestSettings) -> tuple[ForestSettings, ...]:
    """The start, and what lies beside it."""
    tried = min(0.9, start.features_tried * 1.5)
    fewer = replace(start, features_tried=round(start.features_tried / 1.5, 3))
    larger = replace(start, least_in_leaf=3 if start.least_in_leaf == 1 else 1)
    return tuple(dict.fromkeys((start, replace(start, features_tried=round(tried, 3)), fewer, larger)))


def _cross_validated(
    settings: ForestSettings, rows: Floats, labels: Ints, weights: Floats, made: Sequence[LabelledCase], folds: int = 3
) -> float:
    """The share of labels that are the most probable ones where the model has not seen the example."""
    fold = np.random.default_rng(len(made)).integers(0, folds, len(rows))
    right = 0
    for each in range(folds):
        there = fold != each
        model = fitted(rows[there], labels[there], weights[there], replace(settings, trees=20), each)
        right += int((model.probabilities(rows[~there]).argmax(axis=1) == labels[~there]).sum())
    return right / max(1, len(rows))


def _right(model: Forest, cases: Sequence[LabelledCase]) -> float:
    return components_right(scores([case.case for case in cases], model), [case.at_fault for case in cases])


def _right_of_unseen(
    made: Sequence[LabelledCase],
    confirmed: Sequence[LabelledCase],
    unseen: Sequence[LabelledCase],
    settings: ForestSettings,
    seed: int,
) -> float:
    """Of confirmed cases that the standing model has not seen, by models that have not seen them either."""
    halves = (unseen[::2], unseen[1::2])
    found = []
    for half in halves:
        names = {case.name for case in half}
        rows, labels, weights = _examples(made, [case for case in confirmed if case.name not in names])
        found += [_right(fitted(rows, labels, weights, settings, seed), half)] * len(half)
    return sum(found) / len(found)


def _with_confirmed(one: float, count: int, other: float, more: int) -> float:
    return (one * count + other * more) / (count + more)
