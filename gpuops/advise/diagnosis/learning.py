"""Makes models from labelled cases: candidates compete on cases never seen. Needs scikit-learn (extra `diagnose`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.answer import scores
from gpuops.advise.diagnosis.features import columns, features
from gpuops.advise.diagnosis.judging import components_right
from gpuops.advise.diagnosis.made_cases import made_cases
from gpuops.advise.diagnosis.model import DecisionTrees, Forest, ForestSettings
from gpuops.model.measurements.case import LabelledCase
from gpuops.model.measurements.component import COMPONENTS, FAULTS, Component

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Examples = tuple[Floats, Ints]
"""Rows of features, and the place in COMPONENTS of what each shows."""

EACH_FAULT: Final = 100
"""So many cases of each fault are made, and as many without as with one."""
EXAM_SEED: Final = 1_000_003
EXAM_EACH: Final = 20
"""The cases by which a new model and the standing one are compared; no model is made of them."""
WEIGHT_OF_CONFIRMED: Final = 3.0
"""In a leaf a confirmed case counts as so many that are made: it is real, but people err."""
LEAST_OF_EACH: Final = 2
"""Cases in a leaf of the trees of each component alone: what one case alone shows is chance."""
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

    Candidates are the settings of the standing model and their neighbours; one of these wins where chance does not
    explain what it has more. The standing model stays where the new one has fewer right.
    """
    shown = with_hidden(list(made_cases(seed, each_fault)))
    made = examples(shown)
    start = standing.settings if standing is not None else START
    kinds = [case.case.facts.gpu_mib for case in shown]
    tried = tuple((each, _on_other_hardware(each, made, kinds)) for each in _candidates(start))
    of_cases = each_fault * 2 * len(FAULTS)
    settings = _winner(tried, of_cases)
    unseen = [case for case in confirmed if standing is None or case.name not in standing.corrections]
    exam = list(made_cases(EXAM_SEED, EXAM_EACH))
    grown = fitted(made, settings, seed)
    judged = taught(grown, made, confirmed)
    after = _right(judged, exam)
    if unseen and standing is not None:
        # of cases that it learns from a model is judged by one that did not
        after = _with_confirmed(after, len(exam), _right_of_unseen(grown, made, confirmed, unseen), len(unseen))
    before = None if standing is None else _right(standing, [*exam, *unseen])
    new = replace(
        judged, cases=of_cases + len(confirmed), corrections=tuple(case.name for case in confirmed), right=after
    )
    if standing is not None and before is not None and after < before:
        return Trained(standing, replaced=False, tried=tried, before=before, after=after)
    return Trained(new, replaced=True, tried=tried, before=before, after=after)


def fitted(made: Examples, settings: ForestSettings, seed: int) -> Forest:
    """Extremely randomised trees (Geurts, Ernst, Wehenkel 2006) of made examples."""
    rows, labels = made
    all_of_them = _grown(rows, labels, settings.trees, settings, seed)
    trees = _stacked([_tree(each.tree_, all_of_them.classes_) for each in all_of_them.estimators_])
    of_each = []
    for fault in FAULTS:
        its = columns(fault)
        is_it = labels == COMPONENTS.index(fault)
        least = replace(settings, least_in_leaf=max(LEAST_OF_EACH, settings.least_in_leaf))
        grown = _grown(rows[:, its], is_it, settings.trees_of_each, least, seed)
        of_each += [_tree_of_one(each.tree_, grown.classes_, fault, np.array(its)) for each in grown.estimators_]
    return Forest(trees, _stacked(of_each), settings, len(rows), (), float("nan"))


def taught(grown: Forest, made: Examples, confirmed: Sequence[LabelledCase]) -> Forest:
    """The forest with confirmed cases in its leaves; `made`: the examples of which it was grown.

    Confirmed cases count in the leaves to which they come, and part no node: trees that are drawn anew for each
    correction differ by chance more than by the correction. A wrong one reaches only cases that share leaves with it.
    """
    if not confirmed:
        return grown
    rows, labels = examples(confirmed)
    told = np.eye(len(COMPONENTS))[labels]
    return replace(
        grown,
        trees=_with_confirmed_leaves(grown.trees, made, rows, told, None),
        of_each=_with_confirmed_leaves(grown.of_each, made, rows, told, grown.settings.trees_of_each),
        cases=grown.cases + len(confirmed),
    )


def _with_confirmed_leaves(
    trees: DecisionTrees, made: Examples, more: Floats, told: Floats, of_each: int | None
) -> DecisionTrees:
    """The shares in each leaf among its made cases and the confirmed ones that come to it, by their weight.

    `told`: a row for each confirmed example with 1 for its component; `of_each`: so many trees tell one fault alone.
    A leaf of 1 made case of ECC errors and 1 confirmed one of the network: 1/4 and 3/4.
    """
    leaves, added_leaves = trees.leaves(made[0]), trees.leaves(more)
    cases = np.bincount(leaves.ravel(), minlength=len(trees.feature)).astype(float)
    summed = trees.shares * cases[:, None]
    for tree, added in enumerate(added_leaves.T):
        heard = told
        if of_each is not None:
            fault = COMPONENTS.index(FAULTS[tree // of_each])
            heard = np.where(np.arange(len(COMPONENTS)) == fault, told, 0.0)
        np.add.at(summed, added, WEIGHT_OF_CONFIRMED * heard)
        np.add.at(cases, added, WEIGHT_OF_CONFIRMED)
    return replace(trees, shares=np.where(trees.feature[:, None] < 0, summed / np.maximum(cases, 1)[:, None], 0.0))


def _grown(rows: Floats, labels: NDArray[Any], trees: int, settings: ForestSettings, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(
        trees,
        max_features=settings.features_tried,
        min_samples_leaf=settings.least_in_leaf,
        random_state=seed,
    ).fit(rows, labels)


def _tree(grown: Any, classes: Ints) -> DecisionTrees:
    shares = np.zeros((grown.node_count, len(COMPONENTS)))
    values = grown.value[:, 0, :]
    shares[:, classes] = values / values.sum(axis=1, keepdims=True)
    feature = np.where(grown.children_left < 0, -1, grown.feature).astype(np.int64)
    low, high = (np.maximum(side, 0).astype(np.int64) for side in (grown.children_left, grown.children_right))
    return DecisionTrees(feature, grown.threshold.astype(float), low, high, shares, np.zeros(1, np.int64))


def _tree_of_one(grown: Any, classes: NDArray[np.bool_], fault: Component, its: Ints) -> DecisionTrees:
    """Of a tree that tells a fault from all else by its columns, as one of all columns that tells this one alone."""
    tree = _tree(grown, np.flatnonzero(np.isin((False, True), classes)))
    shares = np.zeros_like(tree.shares)
    shares[:, COMPONENTS.index(fault)] = tree.shares[:, 1]
    return replace(tree, feature=np.where(tree.feature < 0, -1, its[tree.feature]), shares=shares)


def _stacked(trees: Sequence[DecisionTrees]) -> DecisionTrees:
    begins = np.cumsum([0, *(len(tree.feature) for tree in trees)])[:-1]
    pairs = list(zip(trees, begins, strict=True))
    return DecisionTrees(
        np.concatenate([tree.feature for tree in trees]),
        np.concatenate([tree.threshold for tree in trees]),
        np.concatenate([tree.low + begin for tree, begin in pairs]),
        np.concatenate([tree.high + begin for tree, begin in pairs]),
        np.vstack([tree.shares for tree in trees]),
        begins.astype(np.int64),
    )


def with_hidden(made: Sequence[LabelledCase]) -> list[LabelledCase]:
    """Each made case, and of each that has counters of nvidia-smi a second one of the same name without them.

    Of hosts that no shell asks, whatever is at fault, models would learn from a quarter of the cases alone.
    """
    found = list(made)
    for case in made:
        kept = {name: values for name, values in case.case.series.items() if ":smi." not in name}
        if len(kept) < len(case.case.series):
            found.append(replace(case, case=replace(case.case, series=kept)))
    return found


def examples(cases: Sequence[LabelledCase]) -> Examples:
    """A row and a label for each component at fault: a case with two is there twice."""
    rows = features([case.case for case in cases])
    pairs = [(at, each) for at, case in enumerate(cases) for each in sorted(case.at_fault) or [Component.NONE]]
    labels = np.array([COMPONENTS.index(component) for _, component in pairs], np.int64)
    return rows[[at for at, _ in pairs]], labels


def _candidates(start: ForestSettings) -> tuple[ForestSettings, ...]:
    """The start, and what lies beside it."""
    tried = min(0.9, start.features_tried * 1.5)
    fewer = replace(start, features_tried=round(start.features_tried / 1.5, 3))
    larger = replace(start, least_in_leaf=3 if start.least_in_leaf == 1 else 1)
    return tuple(dict.fromkeys((start, replace(start, features_tried=round(tried, 3)), fewer, larger)))


def _winner(tried: Sequence[tuple[ForestSettings, float]], cases: int) -> ForestSettings:
    """The candidate with the most right, unless the first, the start, is within one standard error of it (Breiman and
    others, Classification and Regression Trees, 1984): 0.96 of 2,600 cases is known to 0.004.
    """
    settings, right = max(tried, key=lambda pair: pair[1])
    start, as_before = tried[0]
    return settings if right - as_before > (right * (1 - right) / cases) ** 0.5 else start


def _on_other_hardware(settings: ForestSettings, made: Examples, kinds: Sequence[int | None]) -> float:
    """The share of labels that are the most probable ones where the model has seen no example of such a GPU.

    `kinds`: of which kind of GPU each example is, by its memory. Folds that are drawn tell nothing of other hardware.
    """
    rows, labels = made
    right = 0
    for kind in sorted(set(kinds), key=str):
        there = np.array([each != kind for each in kinds])
        model = fitted((rows[there], labels[there]), replace(settings, trees=20, trees_of_each=5), 1)
        right += int((model.probabilities(rows[~there]).argmax(axis=1) == labels[~there]).sum())
    return right / max(1, len(rows))


def _right(model: Forest, cases: Sequence[LabelledCase]) -> float:
    return components_right(scores([case.case for case in cases], model), [case.at_fault for case in cases])


def _right_of_unseen(
    grown: Forest, made: Examples, confirmed: Sequence[LabelledCase], unseen: Sequence[LabelledCase]
) -> float:
    """Of confirmed cases that the standing model has not seen, by models that have not seen them either."""
    halves = (unseen[::2], unseen[1::2])
    found = []
    for half in halves:
        names = {case.name for case in half}
        others = [case for case in confirmed if case.name not in names]
        found += [_right(taught(grown, made, others), half)] * len(half)
    return sum(found) / len(found)


def _with_confirmed(one: float, count: int, other: float, more: int) -> float:
    return (one * count + other * more) / (count + more)
