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
from gpuops.advise.diagnosis.model import NEVER, DecisionTree, Forest, ForestSettings
from gpuops.advise.diagnosis.shifting import varied
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
LEARNING_RATE: Final = 0.15
MOST_LEAVES: Final = 7
VARIANTS_SEED: Final = 21
LEARNED_IN_COMPETITION: Final = 0.67
"""The share of made cases that candidates learn from; they are judged by the others."""
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
    """The next model: of made and confirmed cases, by the settings that win; the standing one unless it is as good.

    Candidates are the settings of the standing model and their neighbours.
    """
    made = list(made_cases(seed, each_fault))
    rows, labels, weights = learned_from(made, confirmed)
    start = standing.settings if standing is not None else START
    tried = tuple((each, _cross_validated(each, made)) for each in _candidates(start))
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
    """Boosted trees of these examples (Friedman 2001; by histograms: Ke et al., LightGBM, 2017).

    Raises RuntimeError where the trees read out answer otherwise than scikit-learn does, as of a version unknown here.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    grown = HistGradientBoostingClassifier(
        max_iter=settings.trees,
        learning_rate=LEARNING_RATE,
        max_leaf_nodes=MOST_LEAVES,
        max_features=settings.features_tried,
        min_samples_leaf=settings.least_in_leaf,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    ).fit(rows, labels, weights)
    start = np.full(len(COMPONENTS), NEVER)
    start[grown.classes_] = grown._baseline_prediction.ravel()
    trees = tuple(
        _tree(one.nodes, int(component))
        for of_round in grown._predictors
        for component, one in zip(grown.classes_, of_round, strict=True)
    )
    found = Forest(trees, tuple(start.tolist()), settings, len(rows), (), float("nan"))
    some = rows[:100]
    if not np.allclose(found.probabilities(some)[:, grown.classes_], grown.predict_proba(some), atol=1e-6):
        raise RuntimeError("the trees of this version of scikit-learn are built otherwise: install that of the lock")
    return found


def _tree(nodes: Any, component: int) -> DecisionTree:
    leaf = nodes["is_leaf"].astype(bool)
    feature = np.where(leaf, -1, nodes["feature_idx"].astype(np.int64))
    low, high = (np.where(leaf, 0, nodes[side].astype(np.int64)) for side in ("left", "right"))
    threshold = np.where(leaf, 0.0, nodes["num_threshold"].astype(float))
    return DecisionTree(component, feature, threshold, low, high, nodes["value"].astype(float))


def examples(cases: Sequence[LabelledCase]) -> tuple[Floats, Ints]:
    """A row and a label for each component at fault: a case with two is there twice."""
    rows = features([case.case for case in cases])
    pairs = [(at, each) for at, case in enumerate(cases) for each in sorted(case.at_fault) or [Component.NONE]]
    labels = np.array([COMPONENTS.index(component) for _, component in pairs], np.int64)
    return rows[[at for at, _ in pairs]], labels


def learned_from(made: Sequence[LabelledCase], confirmed: Sequence[LabelledCase]) -> tuple[Floats, Ints, Floats]:
    """Rows, labels and weights: of made cases, a variant of each, and confirmed cases."""
    parts = [examples(made), examples(list(varied(made, VARIANTS_SEED)))]
    weights = [np.ones(len(labels)) for _, labels in parts]
    if confirmed:
        parts.append(examples(confirmed))
        weights.append(np.full(len(parts[-1][1]), WEIGHT_OF_CONFIRMED))
    return (
        np.vstack([rows for rows, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        np.concatenate(weights),
    )


def _candidates(start: ForestSettings) -> tuple[ForestSettings, ...]:
    """The start, and what lies beside it."""
    tried = min(0.9, start.features_tried * 1.5)
    fewer = replace(start, features_tried=round(start.features_tried / 1.5, 3))
    larger = replace(start, least_in_leaf=30 if start.least_in_leaf <= 15 else 15)
    return tuple(dict.fromkeys((start, replace(start, features_tried=round(tried, 3)), fewer, larger)))


def _cross_validated(settings: ForestSettings, made: Sequence[LabelledCase]) -> float:
    """The share of components right in variants of made cases of which the model has seen neither the case nor it."""
    first = np.random.default_rng(len(made)).random(len(made)) < LEARNED_IN_COMPETITION
    seen = [case for case, there in zip(made, first, strict=True) if there]
    others = [case for case, there in zip(made, first, strict=True) if not there]
    quick = replace(settings, trees=max(1, settings.trees // 2))
    return _right(fitted(*learned_from(seen, []), quick, 1), list(varied(others, VARIANTS_SEED + 1)))


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
        rows, labels, weights = learned_from(made, [case for case in confirmed if case.name not in names])
        found += [_right(fitted(rows, labels, weights, settings, seed), half)] * len(half)
    return sum(found) / len(found)


def _with_confirmed(one: float, count: int, other: float, more: int) -> float:
    return (one * count + other * more) / (count + more)
