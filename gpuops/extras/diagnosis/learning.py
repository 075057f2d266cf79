"""Trains models from labelled cases and keeps the one that judges unseen cases best. Needs scikit-learn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.answer import scores
from gpuops.extras.diagnosis.case import COMPONENTS, FAULTS, Component, LabelledCase
from gpuops.extras.diagnosis.features import columns, features
from gpuops.extras.diagnosis.made_cases import made_cases
from gpuops.extras.diagnosis.model import DecisionTrees, Forest, ForestSettings

Rows = NDArray[np.float64]

NAMED: Final = 0.3
"""A component counts as named from this probability on; the most probable one always does."""


def most_probable(scores: Rows, count: int) -> set[Component]:
    """Return the `count` most probable components of one case; those without any probability are left out.

    `scores`: one number for each of COMPONENTS.
    """
    return {COMPONENTS[at] for at in np.argsort(-scores, kind="stable")[:count] if scores[at] > 0}


def components_right(scores: Rows, at_fault: Sequence[Collection[Component]]) -> float:
    """Return the share of components at fault that the scores rank first, 0 to 1.

    With n components at fault, the n most probable ones are compared with them; no fault is the component `none`.
    `scores`: a row for each case, a column for each of COMPONENTS. Example: a noisy neighbour and CPU ready are at
    fault; if these two are the most probable: 2 of 2; if CPU ready is first and `none` second: 1 of 2.
    """
    right = count = 0
    for row, components in zip(scores, at_fault, strict=True):
        expected = set(components) or {Component.NONE}
        right += len(expected & most_probable(row, len(expected)))
        count += len(expected)
    return right / max(1, count)


def alarms_right(scores: Rows, at_fault: Sequence[Collection[Component]]) -> float:
    """Return the correctly named components as a share of all that are at fault or named, 0 to 1.

    Users do not know how many components are at fault, so a wrong name counts as much as a missed component. Example:
    CPU ready is at fault, and CPU ready and the network are named: 1 of 2.
    """
    right = count = 0
    for row, components in zip(scores, at_fault, strict=True):
        expected = set(components) or {Component.NONE}
        named = {COMPONENTS[at] for at in np.flatnonzero(row >= NAMED)} | {COMPONENTS[int(row.argmax())]}
        right += len(expected & named)
        count += len(expected | named)
    return right / max(1, count)


def false_alarms(scores: Rows, at_fault: Sequence[Collection[Component]]) -> float:
    """Return the share of the cases without a fault whose most probable component is a fault, 0 to 1."""
    most_probable_ones = [
        COMPONENTS[int(row.argmax())] for row, faults in zip(scores, at_fault, strict=True) if not faults
    ]
    return sum(component is not Component.NONE for component in most_probable_ones) / max(1, len(most_probable_ones))


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Examples = tuple[Floats, Ints]
"""Rows of features, and for each row the index of its component in COMPONENTS."""

EACH_FAULT: Final = 100
"""The number of cases made for each fault; as many cases have no fault."""
EXAM_SEED: Final = 1_000_003
EXAM_EACH: Final = 20
"""The seed and the number of cases for each fault in the exam: cases that compare a new model with the current one.

No model is trained with them.
"""
WEIGHT_OF_CONFIRMED: Final = 3.0
"""A confirmed case counts in a leaf as much as three made cases: it is real, but people err."""
_STORED_BITS: Final = 5
"""The significant bits of a stored number (`observe/packing.py`)."""
LEAST_OF_EACH: Final = 2
"""The least number of cases in a leaf of the trees for one component: a single case may be chance."""
START: Final = ForestSettings()


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """The outcome of a training."""

    model: Forest
    """The model to use from now on: the new one, or the standing one if that is better."""
    replaced: bool
    """Whether `model` is the new one."""
    tried: tuple[tuple[ForestSettings, float], ...]
    """The candidates, and the share of components that each had right in cases never seen."""
    before: float | None
    """The share that the current model had right in the cases by which both are compared; None = there was none."""
    after: float
    """The share that the new one had right in these cases."""


def train(
    confirmed: Sequence[LabelledCase], standing: Forest | None, *, seed: int = 1, each_fault: int = EACH_FAULT
) -> TrainingOutcome:
    """Train the next model on made and confirmed cases, with the best settings.

    `standing`: the current model, None = there is none. Candidates are its settings and their neighbours. A neighbour
    wins if its score is better by more than chance explains. The current model stays if the new one has fewer
    components right.
    """
    training_cases = with_hidden(as_stored(made_cases(seed, each_fault)))
    made_examples = examples(training_cases)
    start = standing.settings if standing is not None else START
    gpu_memories = [case.case.facts.gpu_mib for case in training_cases]
    tried = tuple(
        (candidate, _on_other_hardware(candidate, made_examples, gpu_memories)) for candidate in _candidates(start)
    )
    made_count = each_fault * 2 * len(FAULTS)  # as many cases without a fault as with one
    settings = _best_settings(tried, made_count)
    # confirmed cases that the standing model has not learned from: only these compare it fairly with the new one
    unseen = [case for case in confirmed if standing is None or case.name not in standing.corrections]
    exam = as_stored(made_cases(EXAM_SEED, EXAM_EACH))
    grown = fit_forest(made_examples, settings, seed)
    new_model = with_confirmed(grown, made_examples, confirmed)
    new_right = _share_right(new_model, exam)
    if unseen and standing is not None:
        # confirmed cases are judged by models that did not learn from them
        new_right = _mean_share(
            new_right, len(exam), _share_right_of_unseen(grown, made_examples, confirmed, unseen), len(unseen)
        )
    standing_right = None if standing is None else _share_right(standing, [*exam, *unseen])
    new = replace(
        new_model,
        cases=made_count + len(confirmed),
        corrections=tuple(case.name for case in confirmed),
        right=new_right,
    )
    if standing is not None and standing_right is not None and new_right < standing_right:
        return TrainingOutcome(standing, replaced=False, tried=tried, before=standing_right, after=new_right)
    return TrainingOutcome(new, replaced=True, tried=tried, before=standing_right, after=new_right)


def fit_forest(made_examples: Examples, settings: ForestSettings, seed: int) -> Forest:
    """Return extremely randomised trees (Geurts, Ernst, Wehenkel 2006) that are fitted to made examples.

    Some trees tell all components apart; others recognise one fault each, by the numbers that bear on it.
    """
    rows, labels = made_examples
    all_faults_trees = _grow_trees(rows, labels, settings.trees, settings, seed)
    trees = _stack_trees([_tree(tree.tree_, all_faults_trees.classes_) for tree in all_faults_trees.estimators_])
    of_each = []
    for fault in FAULTS:
        fault_columns = columns(fault)
        has_fault = labels == COMPONENTS.index(fault)
        least = replace(settings, least_in_leaf=max(LEAST_OF_EACH, settings.least_in_leaf))
        grown = _grow_trees(rows[:, fault_columns], has_fault, settings.trees_of_each, least, seed)
        of_each += [
            _tree_of_one(tree.tree_, grown.classes_, fault, np.array(fault_columns)) for tree in grown.estimators_
        ]
    return Forest(trees, _stack_trees(of_each), settings, len(rows), (), float("nan"))


def with_confirmed(grown: Forest, made_examples: Examples, confirmed: Sequence[LabelledCase]) -> Forest:
    """Return the forest with confirmed cases in its leaves; `made_examples`: the examples it was grown from.

    Confirmed cases count in the leaves that they reach, but the trees stay the same: trees that are grown again after
    each correction would differ more by chance than by the correction. A wrong correction affects only cases that reach
    the same leaves.
    """
    if not confirmed:
        return grown
    rows, labels = examples(confirmed)
    one_hot = np.eye(len(COMPONENTS))[labels]
    return replace(
        grown,
        trees=_with_confirmed_leaves(grown.trees, made_examples, rows, one_hot, None),
        of_each=_with_confirmed_leaves(grown.of_each, made_examples, rows, one_hot, grown.settings.trees_of_each),
        cases=grown.cases + len(confirmed),
    )


def _with_confirmed_leaves(
    trees: DecisionTrees, made_examples: Examples, confirmed_rows: Floats, confirmed_labels: Floats, of_each: int | None
) -> DecisionTrees:
    """Return the trees whose leaves hold the shares of the components among made and confirmed cases.

    `confirmed_labels`: a row for each confirmed example with 1 for its component; `of_each`: how many trees
    recognise each fault, None = all trees recognise all faults. A confirmed case counts `WEIGHT_OF_CONFIRMED` times: a
    leaf with 1 made case of ECC errors and 1 confirmed case of the network has the shares 1/4 and 3/4.
    """
    leaves, added_leaves = trees.leaves(made_examples[0]), trees.leaves(confirmed_rows)
    cases = np.bincount(leaves.ravel(), minlength=len(trees.feature)).astype(float)
    summed = trees.shares * cases[:, None]
    for tree, added in enumerate(added_leaves.T):
        counted_labels = confirmed_labels
        if of_each is not None:
            fault = COMPONENTS.index(FAULTS[tree // of_each])
            counted_labels = np.where(np.arange(len(COMPONENTS)) == fault, confirmed_labels, 0.0)
        np.add.at(summed, added, WEIGHT_OF_CONFIRMED * counted_labels)
        np.add.at(cases, added, WEIGHT_OF_CONFIRMED)
    return replace(trees, shares=np.where(trees.feature[:, None] < 0, summed / np.maximum(cases, 1)[:, None], 0.0))


def _grow_trees(rows: Floats, labels: NDArray[Any], trees: int, settings: ForestSettings, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(
        trees,
        max_features=settings.features_tried,
        min_samples_leaf=settings.least_in_leaf,
        random_state=seed,
    ).fit(rows, labels)


def _tree(grown: Any, classes: Ints) -> DecisionTrees:
    """Return a tree of scikit-learn as DecisionTrees; `classes`: the component of each of its columns of counts."""
    shares = np.zeros((grown.node_count, len(COMPONENTS)))
    node_counts = grown.value[:, 0, :]
    shares[:, classes] = node_counts / node_counts.sum(axis=1, keepdims=True)
    feature = np.where(grown.children_left < 0, -1, grown.feature).astype(np.int64)
    low, high = (np.maximum(side, 0).astype(np.int64) for side in (grown.children_left, grown.children_right))
    return DecisionTrees(feature, grown.threshold.astype(float), low, high, shares, np.zeros(1, np.int64))


def _tree_of_one(grown: Any, classes: NDArray[np.bool_], fault: Component, fault_columns: Ints) -> DecisionTrees:
    """Return a tree over all columns, from one that recognises a fault by `fault_columns` only."""
    tree = _tree(grown, np.flatnonzero(np.isin((False, True), classes)))
    shares = np.zeros_like(tree.shares)
    shares[:, COMPONENTS.index(fault)] = tree.shares[:, 1]
    return replace(tree, feature=np.where(tree.feature < 0, -1, fault_columns[tree.feature]), shares=shares)


def _stack_trees(trees: Sequence[DecisionTrees]) -> DecisionTrees:
    """Return all trees in one, with their nodes one after the other; node numbers are shifted accordingly."""
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


def as_stored(cases: Iterable[LabelledCase]) -> list[LabelledCase]:
    """Return the cases with numbers as `observe` stores them and `diagnose` reads them: with five significant bits.

    For example, the uses 97.0 and 97.3 % are stored as 94.7 and 99.8 %. A model that learned from numbers that are not
    rounded would use thresholds that stored numbers do not have.
    """
    return [
        replace(case, case=replace(case.case, series={name: _rounded(row) for name, row in case.case.series.items()}))
        for case in cases
    ]


def _rounded(samples: Floats) -> Floats:
    """Return samples rounded as by `observe.packing`: to the middle of the numbers with the same code."""
    whole = np.round(samples)
    exponents = np.maximum(np.frexp(np.nan_to_num(whole))[1] - _STORED_BITS, 0)
    unit = np.exp2(exponents)
    rounded: Floats = np.floor(whole / unit) * unit + np.floor(unit / 2)
    return rounded


def with_hidden(original_cases: Sequence[LabelledCase]) -> list[LabelledCase]:
    """Return each made case, and for each with counters of nvidia-smi a second one of that name without them.

    Otherwise models would learn from only a quarter of the cases what a fault looks like without a host shell.
    """
    all_cases = list(original_cases)
    for case in original_cases:
        visible_series = {name: samples for name, samples in case.case.series.items() if ":smi." not in name}
        if len(visible_series) < len(case.case.series):
            all_cases.append(replace(case, case=replace(case.case, series=visible_series)))
    return all_cases


def examples(cases: Sequence[LabelledCase]) -> Examples:
    """Return a row and a label for each component at fault: a case with two of them has two rows."""
    rows = features([case.case for case in cases])
    pairs = [(at, cause) for at, case in enumerate(cases) for cause in sorted(case.at_fault) or [Component.NONE]]
    labels = np.array([COMPONENTS.index(component) for _, component in pairs], np.int64)
    return rows[[at for at, _ in pairs]], labels


def _candidates(start: ForestSettings) -> tuple[ForestSettings, ...]:
    """Return the settings to try: `start`, and three that differ from it in one setting."""
    more = replace(start, features_tried=round(min(0.9, start.features_tried * 1.5), 3))
    fewer = replace(start, features_tried=round(start.features_tried / 1.5, 3))
    larger = replace(start, least_in_leaf=3 if start.least_in_leaf == 1 else 1)
    return tuple(dict.fromkeys((start, more, fewer, larger)))


def _best_settings(tried: Sequence[tuple[ForestSettings, float]], cases: int) -> ForestSettings:
    """Return the best candidate, or the first, the start, if that is within one standard error of it.

    Breiman and others, Classification and Regression Trees, 1984: 0.96 of 2,600 cases is known to 0.004.
    """
    settings, right = max(tried, key=lambda pair: pair[1])
    start, right_of_start = tried[0]
    return settings if right - right_of_start > (right * (1 - right) / cases) ** 0.5 else start


def _on_other_hardware(settings: ForestSettings, made_examples: Examples, gpu_memories: Sequence[int | None]) -> float:
    """Return the share of labels, 0 to 1, that models have right on a GPU model that they were not trained with.

    `gpu_memories`: the memory of the GPU of each example in MiB, which identifies the GPU model. Random
    folds would not measure how well models judge hardware that they have not seen.
    """
    rows, labels = made_examples
    right = 0
    for tested_mib in sorted(set(gpu_memories), key=str):
        is_other_model = np.array([gpu_mib != tested_mib for gpu_mib in gpu_memories])
        model = fit_forest(
            (rows[is_other_model], labels[is_other_model]), replace(settings, trees=20, trees_of_each=5), 1
        )
        right += int((model.probabilities(rows[~is_other_model]).argmax(axis=1) == labels[~is_other_model]).sum())
    return right / max(1, len(rows))


def _share_right(model: Forest, cases: Sequence[LabelledCase]) -> float:
    """Return the share of components that the model has right in these cases."""
    return components_right(scores([case.case for case in cases], model), [case.at_fault for case in cases])


def _share_right_of_unseen(
    grown: Forest, made_examples: Examples, confirmed: Sequence[LabelledCase], unseen: Sequence[LabelledCase]
) -> float:
    """Return the share right of confirmed cases new to the standing model, by models that have not seen them either."""
    halves = (unseen[::2], unseen[1::2])
    shares = []
    for half in halves:
        names = {case.name for case in half}
        other_cases = [case for case in confirmed if case.name not in names]
        shares += [_share_right(with_confirmed(grown, made_examples, other_cases), half)] * len(half)
    return sum(shares) / len(shares)


def _mean_share(made_share: float, made_count: int, confirmed_share: float, confirmed_count: int) -> float:
    """Return the share right of made and confirmed cases together."""
    return (made_share * made_count + confirmed_share * confirmed_count) / (made_count + confirmed_count)
