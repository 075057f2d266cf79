"""Decision trees as plain data, which give the probability of each component without a machine-learning library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.case import COMPONENTS, FAULTS, Component
from gpuops.extras.diagnosis.features import NAMES
from gpuops.model.stored import from_stored, stored_as, to_stored

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FORMAT: Final = 2
_MOST_DEPTH: Final = 64
_AT_ONCE: Final = 64
"""The number of cases computed together: their shares fit into a processor's cache."""
_LEAST_SHARE: Final = 5e-5
"""Smaller shares are not stored: they would be rounded to 0.0000."""
_NONE: Final = COMPONENTS.index(Component.NONE)


@dataclass(frozen=True, slots=True)
class DecisionTrees:
    """Trees with their nodes one after the other.

    A case goes from the root to `low` where the feature is at most the threshold, else to `high`.
    """

    feature: Ints
    """The feature that each node tests; -1 = the node is a leaf."""
    threshold: Floats
    low: Ints
    high: Ints
    shares: Floats
    """For each node a row with the share of each of COMPONENTS among the cases that came to it."""
    roots: Ints
    """The first node of each tree."""

    def leaves(self, rows: Floats) -> Ints:
        """Return the node number of the leaf that each case reaches: a row for each case, a column for each tree."""
        # a leaf leads to itself here, so that all cases can go as deep as the deepest tree
        inner = self.feature >= 0
        node_numbers = np.arange(len(self.feature))
        feature, low, high = (
            np.where(inner, links, at_leaf)
            for links, at_leaf in ((self.feature, 0), (self.low, node_numbers), (self.high, node_numbers))
        )
        node = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        rows_at = np.arange(len(rows))[:, None]  # selects from each row the feature that its node tests
        for _ in range(_MOST_DEPTH):
            further = np.where(rows[rows_at, feature[node]] <= self.threshold[node], low[node], high[node])
            if (further == node).all():
                break
            node = further
        return node

    def sum_shares(self, rows: Floats) -> Floats:
        """Return the shares at the leaves that each case reaches, summed over all trees."""
        leaves = self.leaves(rows)
        parts = [self.shares[leaves[at : at + _AT_ONCE]].sum(axis=1) for at in range(0, len(leaves), _AT_ONCE)]
        return np.vstack(parts) if parts else np.zeros((0, len(COMPONENTS)))


@stored_as(
    "ForestSettings",
    trees="trees",
    features_tried="features_tried",
    least_in_leaf="least_in_leaf",
    trees_of_each="trees_of_each",
)
@dataclass(frozen=True, slots=True)
class ForestSettings:
    """How a forest is grown."""

    trees: int = 60
    features_tried: float = 0.3
    """The share of all features that a split looks at."""
    least_in_leaf: int = 1
    trees_of_each: int = 20
    """The number of further trees for each component alone."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A model with its settings and its origin."""

    trees: DecisionTrees
    """Trees that use all features, for all components."""
    of_each: DecisionTrees
    """Equally many trees for each component alone, which use the features that bear on it (`features.BEARS_ON`)."""
    settings: ForestSettings
    cases: int
    """The number of cases that it learned from."""
    corrections: tuple[str, ...]
    """The ids of the confirmed and corrected cases among them."""
    right: float
    """The share of components that it had right in cases outside its training, 0 to 1."""

    def probabilities(self, rows: Floats) -> Floats:
        """Return probabilities of 0 to 1: a row for each case, a column for each of COMPONENTS.

        They are means of both kinds of trees. Two faults can both be probable, so that a row adds up to 1 or more.
        """
        of_each = self.of_each.sum_shares(rows) / self.settings.trees_of_each
        # no fault: the probability that each of the faults is absent
        of_each[:, _NONE] = np.prod(1 - np.delete(of_each, _NONE, axis=1), axis=1)
        return (self.trees.sum_shares(rows) / len(self.trees.roots) + of_each) / 2


def to_document(forest: Forest) -> dict[str, Any]:
    """Return the forest as a JSON document."""
    return {
        "format": FORMAT,
        "features": list(NAMES),
        "components": list(COMPONENTS),
        "settings": to_stored(forest.settings),
        "cases": forest.cases,
        "corrections": list(forest.corrections),
        "right": forest.right,
        "trees": _trees_document(forest.trees),
        "trees_of_each": _trees_document(forest.of_each),
    }


def _trees_document(trees: DecisionTrees) -> dict[str, Any]:
    """Return the trees as lists, with numbers rounded as they are stored."""
    # only leaves have shares, and most shares are 0: the others are stored as (leaf, component, share)
    node, component = np.nonzero(np.where(trees.feature[:, None] < 0, trees.shares, 0) >= _LEAST_SHARE)
    return {
        "feature": trees.feature.tolist(),
        "threshold": [float(f"{threshold:.6g}") for threshold in trees.threshold],
        "low": trees.low.tolist(),
        "high": trees.high.tolist(),
        "roots": trees.roots.tolist(),
        "leaf": node.tolist(),
        "component": component.tolist(),
        "share": trees.shares[node, component].round(4).tolist(),
    }


def from_document(document: Mapping[str, Any]) -> Forest:
    """Return the forest of a document. Raises ValueError if `to_document` of this version did not make it."""
    try:
        if (
            document["format"] != FORMAT
            or document["features"] != list(NAMES)
            or document["components"] != list(COMPONENTS)
        ):
            raise ValueError("another version of gpuops wrote it")
        settings = from_stored(ForestSettings, document["settings"])
        trees, of_each = _trees_of(document["trees"]), _trees_of(document["trees_of_each"])
        if len(of_each.roots) != settings.trees_of_each * len(FAULTS):
            raise ValueError("it has no trees for one of the components")
        corrections = tuple(map(str, document["corrections"]))
        return Forest(trees, of_each, settings, int(document["cases"]), corrections, float(document["right"]))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is not a model: {error}") from error


def _trees_of(document: Mapping[str, Sequence[Any]]) -> DecisionTrees:
    """Return the trees of a document. Raises ValueError for lengths, features, nodes or components out of range."""
    feature, low, high, roots, leaf, component = (
        np.array(document[name], np.int64) for name in ("feature", "low", "high", "roots", "leaf", "component")
    )
    threshold, share = np.array(document["threshold"], float), np.array(document["share"], float)
    nodes = len(feature)
    if not len(roots):
        raise ValueError("it has no tree")
    if {len(low), len(high), len(threshold)} != {nodes} or {len(leaf), len(component)} != {len(share)}:
        raise ValueError("the lists of a tree have different lengths")
    if feature.max() >= len(NAMES) or not np.isfinite(share).all() or not np.isfinite(threshold).all():
        raise ValueError("a tree uses a feature that does not exist")
    if any(len(indices) and not 0 <= indices.min() <= indices.max() < nodes for indices in (low, high, roots, leaf)):
        raise ValueError("a tree leads to a node that does not exist")
    if len(component) and not 0 <= component.min() <= component.max() < len(COMPONENTS):
        raise ValueError("a tree names a component that does not exist")
    shares = np.zeros((nodes, len(COMPONENTS)))
    shares[leaf, component] = share
    return DecisionTrees(feature, threshold, low, high, shares, roots)
