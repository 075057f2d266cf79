"""How probable each component is, by boosted trees. Needs no library of machine learning, and is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.features import NAMES
from gpuops.model.component import COMPONENTS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FORMAT: Final = 2
_MOST_DEPTH: Final = 64
_AT_ONCE: Final = 500
"""So many cases go through all trees together: memory is these times the number of trees."""
NEVER: Final = -50.0
"""The score of a component that no case of the training had."""


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """A regression tree: from node 0 on to `low` where the feature is at most the threshold, else to `high`."""

    component: int
    """The number in COMPONENTS of the one to whose score it adds."""
    feature: Ints
    """By node; -1 = it is a leaf."""
    threshold: Floats
    low: Ints
    high: Ints
    value: Floats
    """By node: what a leaf adds to the score, the logarithm of how probable the component is beside the others."""


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """How a forest is grown."""

    trees: int = 60
    """For each component, one after the other."""
    features_tried: float = 0.3
    """The share of all features that a split looks at."""
    least_in_leaf: int = 15


@dataclass(frozen=True, slots=True)
class Forest:
    """A model, and what is known of it."""

    trees: tuple[DecisionTree, ...]
    start: tuple[float, ...]
    """The score of each of COMPONENTS to which the trees add."""
    settings: ForestSettings
    cases: int
    """Of how many it was made."""
    corrections: tuple[str, ...]
    """The ids of the confirmed and corrected cases among them."""
    right: float
    """The share of components that it had right in cases never seen, 0 to 1."""

    def probabilities(self, rows: Floats) -> Floats:
        """A row for each case, a column for each of COMPONENTS; each row adds up to 1."""
        first = np.cumsum([0, *(len(tree.feature) for tree in self.trees)])[:-1]
        feature = np.concatenate([tree.feature for tree in self.trees])
        threshold = np.concatenate([tree.threshold for tree in self.trees])
        low = np.concatenate([tree.low + at for tree, at in zip(self.trees, first, strict=True)])
        high = np.concatenate([tree.high + at for tree, at in zip(self.trees, first, strict=True)])
        value = np.concatenate([tree.value for tree in self.trees])
        adds_to = np.array([tree.component for tree in self.trees])[:, None] == np.arange(len(COMPONENTS))
        found = np.zeros((len(rows), len(COMPONENTS)))
        for begin in range(0, len(rows), _AT_ONCE):
            some = rows[begin : begin + _AT_ONCE]
            node = np.tile(first, (len(some), 1))
            each = np.arange(len(some))[:, None]
            for _ in range(_MOST_DEPTH):
                asked = feature[node]
                inner = asked >= 0
                if not inner.any():
                    break
                goes_low = some[each, np.maximum(asked, 0)] <= threshold[node]
                node = np.where(inner, np.where(goes_low, low[node], high[node]), node)
            found[begin : begin + _AT_ONCE] = value[node] @ adds_to + np.array(self.start)
        likely = np.exp(found - found.max(axis=1, keepdims=True, initial=NEVER))
        shares: Floats = likely / likely.sum(axis=1, keepdims=True)
        return shares


def written(forest: Forest) -> dict[str, Any]:
    """The forest as JSON has it."""
    return {
        "format": FORMAT,
        "features": list(NAMES),
        "components": list(COMPONENTS),
        "settings": {
            "trees": forest.settings.trees,
            "features_tried": forest.settings.features_tried,
            "least_in_leaf": forest.settings.least_in_leaf,
        },
        "cases": forest.cases,
        "corrections": list(forest.corrections),
        "right": forest.right,
        "start": list(forest.start),
        "trees": [
            {
                "component": tree.component,
                "feature": tree.feature.tolist(),
                "threshold": [float(f"{value:.9g}") for value in tree.threshold],
                "low": tree.low.tolist(),
                "high": tree.high.tolist(),
                "value": [round(float(value), 5) for value in tree.value],
            }
            for tree in forest.trees
        ],
    }


def read(told: Mapping[str, Any]) -> Forest:
    """The forest that `written` wrote. Raises ValueError for anything else, another version's features too."""
    try:
        if told["format"] != FORMAT or told["features"] != list(NAMES) or told["components"] != list(COMPONENTS):
            raise ValueError("it is of another version of gpuops")
        trees = tuple(_tree(each) for each in told["trees"])
        if not trees:
            raise ValueError("it has no tree")
        settings = ForestSettings(**told["settings"])
        start = tuple(float(score) for score in told["start"])
        if len(start) != len(COMPONENTS) or not np.isfinite(start).all():
            raise ValueError("it has not one start for each component")
        return Forest(
            trees, start, settings, int(told["cases"]), tuple(map(str, told["corrections"])), float(told["right"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no model: {error}") from error


def _tree(told: Mapping[str, Any]) -> DecisionTree:
    component = int(told["component"])
    feature, low, high = (np.array(told[name], np.int64) for name in ("feature", "low", "high"))
    threshold, value = np.array(told["threshold"], float), np.array(told["value"], float)
    nodes = len(feature)
    if not nodes or {len(low), len(high), len(threshold), len(value)} != {nodes}:
        raise ValueError("a tree has parts of unlike lengths")
    if feature.max() >= len(NAMES) or max(low.max(), high.max()) >= nodes or not np.isfinite(value).all():
        raise ValueError("a tree goes by what is not there")
    if min(low.min(), high.min()) < 0 or not 0 <= component < len(COMPONENTS):
        raise ValueError("a tree goes by what is not there")
    return DecisionTree(component, feature, threshold, low, high, value)
