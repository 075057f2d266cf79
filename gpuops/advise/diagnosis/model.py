"""How probable each component is, by a forest of decision trees. Needs no library of machine learning, and is data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.diagnosis.features import NAMES
from gpuops.model.component import COMPONENTS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FORMAT: Final = 1
_MOST_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class DecisionTree:
    """A decision tree. It goes from node 0 on to `low` where the feature is at most the threshold, else to `high`."""

    feature: Ints
    """By node; -1 = it is a leaf."""
    threshold: Floats
    low: Ints
    high: Ints
    shares: Floats
    """For each node a row with the share of each of COMPONENTS among the cases that came to it."""


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """How a forest is grown."""

    trees: int = 60
    features_tried: float = 0.3
    """The share of all features that a split looks at."""
    least_in_leaf: int = 1


@dataclass(frozen=True, slots=True)
class Forest:
    """A model, and what is known of it."""

    trees: tuple[DecisionTree, ...]
    settings: ForestSettings
    cases: int
    """Of how many it was made."""
    corrections: tuple[str, ...]
    """The ids of the confirmed and corrected cases among them."""
    right: float
    """The share of components that it had right in cases never seen, 0 to 1."""

    def probabilities(self, rows: Floats) -> Floats:
        """A row for each case, a column for each of COMPONENTS; each row adds up to 1."""
        found = np.zeros((len(rows), len(COMPONENTS)))
        each = np.arange(len(rows))
        for tree in self.trees:
            node = np.zeros(len(rows), np.int64)
            for _ in range(_MOST_DEPTH):
                feature = tree.feature[node]
                inner = feature >= 0
                if not inner.any():
                    break
                goes_low = rows[each, np.maximum(feature, 0)] <= tree.threshold[node]
                node = np.where(inner, np.where(goes_low, tree.low[node], tree.high[node]), node)
            found += tree.shares[node]
        return found / len(self.trees)


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
        "trees": [
            {
                "feature": tree.feature.tolist(),
                "threshold": [float(f"{value:.6g}") for value in tree.threshold],
                "low": tree.low.tolist(),
                "high": tree.high.tolist(),
                "shares": [[round(float(share), 4) for share in row] for row in tree.shares],
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
        return Forest(trees, settings, int(told["cases"]), tuple(map(str, told["corrections"])), float(told["right"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no model: {error}") from error


def _tree(told: Mapping[str, Sequence[Any]]) -> DecisionTree:
    feature, low, high = (np.array(told[name], np.int64) for name in ("feature", "low", "high"))
    threshold, shares = np.array(told["threshold"], float), np.array(told["shares"], float)
    nodes = len(feature)
    if not nodes or {len(low), len(high), len(threshold)} != {nodes} or shares.shape != (nodes, len(COMPONENTS)):
        raise ValueError("a tree has parts of unlike lengths")
    if feature.max() >= len(NAMES) or max(low.max(), high.max()) >= nodes or not np.isfinite(shares).all():
        raise ValueError("a tree goes by what is not there")
    return DecisionTree(feature, threshold, low, high, shares)
