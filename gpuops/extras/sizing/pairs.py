"""Predicts the slowdown of pairs of workloads from pairs that shared a GPU: two numbers for each workload. Pure.

The speed of i next to j (1 = as fast as alone) is modelled as keeps_i * leaves_j: the share of its speed that i keeps
next to any workload, times the share that j leaves to any other. Both are fitted by least absolute errors (reweighted
least squares, in turns), so that a single unusual pair changes neither much. A workload that was in few pairs is moved
towards the mean of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.extras.sizing.sharing import pairwise_slowdowns
from gpuops.model.devices.shared_gpu import ObservedPair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_ROUNDS: Final = 60
_DRAWN: Final = 0.2
"""The weight of the mean of all, in observations."""
_ORDINARY: Final = 0.03
"""Errors of speed up to here count by their squares, larger ones by their size."""
SLOWEST: Final = 0.01
FEWEST_TESTED: Final = 5
"""With fewer pairs the error on unknown pairs is not computed."""


@dataclass(frozen=True, slots=True)
class PairModel:
    """The speed of each known workload next to each other one."""

    names: tuple[str, ...]
    keeps: tuple[float, ...]
    leaves: tuple[float, ...]

    def speed(self, of: str, beside: str) -> float | None:
        """Return the speed of a workload, 1 = as fast as alone; None = one of the two was in no pair."""
        if of not in self.names or beside not in self.names:
            return None
        product = self.keeps[self.names.index(of)] * self.leaves[self.names.index(beside)]
        return min(1.0, max(SLOWEST, product))

    def slowdowns(self, kinds: Sequence[str]) -> Floats:
        """Return the slowdown of each workload (row) next to each other (column); NaN = one of them was in no pair."""
        positions = {name: at for at, name in enumerate(self.names)}
        places = np.array([positions.get(kind, -1) for kind in kinds])
        speeds = np.outer(np.array([*self.keeps, np.nan])[places], np.array([*self.leaves, np.nan])[places])
        factors: Floats = 1.0 / np.clip(speeds, SLOWEST, 1.0)
        return factors

    @property
    def sensitivity(self) -> Mapping[str, float]:
        """Return by workload the share of its speed that it loses next to an average one."""
        mean_leaves = mean(self.leaves)
        return {name: 1.0 - keeps * mean_leaves for name, keeps in zip(self.names, self.keeps, strict=True)}

    @property
    def pressure(self) -> Mapping[str, float]:
        """Return by workload the share of its speed that an average one loses next to it."""
        mean_keeps = mean(self.keeps)
        return {name: 1.0 - leaves * mean_keeps for name, leaves in zip(self.names, self.leaves, strict=True)}


def fit_pairs(pairs: Sequence[ObservedPair]) -> PairModel:
    """Return the share of its speed that each workload of these pairs keeps, and the share that it leaves to others."""
    names = tuple(sorted({name for pair in pairs for name in pair.names}))
    if not names:
        return PairModel((), (), ())
    number_by_name = {name: at for at, name in enumerate(names)}
    directed = [  # (workload, its neighbour, its speed): two of each pair
        (number_by_name[workload], number_by_name[neighbour], speed)
        for pair in pairs
        for workload, neighbour, speed in zip(pair.names, pair.names[::-1], pair.speeds, strict=True)
    ]
    workloads, neighbours = (np.array([observation[at] for observation in directed]) for at in (0, 1))
    keeps, leaves = _fit(workloads, neighbours, np.array([speed for _, _, speed in directed]), len(names))
    return PairModel(names, tuple(keeps.tolist()), tuple(leaves.tolist()))


def error_on_unknown(pairs: Sequence[ObservedPair]) -> float | None:
    """Return the mean error of the speeds of pairs that the fit does not know (ten-fold cross-validation).

    1 = the speed alone; None = there are too few pairs. Both directions of a pair are left out together.
    """
    if len(pairs) < FEWEST_TESTED:
        return None
    parts = min(10, len(pairs))
    errors: list[float] = []
    for part in range(parts):
        model = fit_pairs([pair for number, pair in enumerate(pairs) if number % parts != part])
        for pair in pairs[part::parts]:
            for name, neighbour, speed in zip(pair.names, pair.names[::-1], pair.speeds, strict=True):
                expected_speed = model.speed(name, neighbour)
                if expected_speed is not None:
                    errors.append(abs(expected_speed - speed))
    return mean(errors) if errors else None


def corrections(pairs: PairModel, kinds: Sequence[str], works: NDArray[np.bool_], working: Floats) -> Floats:
    """Return the factor by which each VM of a group (column) is slower in each step (row) than busy shares predict.

    For each other VM at work, the factor is the slowdown of the pair by `pairs`, divided by the slowdown that `sharing`
    predicts for two such VMs while both work. The result is the geometric mean over these VMs. `works`: whether each VM
    (column) works in each step (row); `working`: the mean busy share of each VM while it works.
    """
    logs = np.log(pairs.slowdowns(kinds)) - np.log(pairwise_slowdowns(working))
    np.fill_diagonal(logs, np.nan)  # a VM is no neighbour of its own
    is_known = (~np.isnan(logs)).astype(float)
    at_work = works.astype(float)
    factors: Floats = np.exp((at_work @ np.nan_to_num(logs).T) / np.maximum(at_work @ is_known.T, 1.0))
    return factors


def _fit(
    workloads: NDArray[np.int64], neighbours: NDArray[np.int64], speed: Floats, count: int
) -> tuple[Floats, Floats]:
    """Return the share of its speed that each of `count` workloads keeps, and the share that it leaves to others.

    The arrays have an element for each direction of a pair: the number of the workload, that of its neighbour, and the
    speed of the workload.
    """
    mean_factor = float(np.sqrt(speed.mean()))  # a speed is keeps * leaves, so the root is the mean of each of the two
    keeps, leaves, weight = np.full(count, mean_factor), np.full(count, mean_factor), np.ones(len(speed))
    for _ in range(_ROUNDS):
        # first what workloads keep, given what their neighbours leave; then what they leave, given what others keep
        left_by_neighbour = leaves[neighbours]
        keeps = np.bincount(workloads, weight * speed * left_by_neighbour, count) + _DRAWN * mean_factor
        keeps /= np.bincount(workloads, weight * left_by_neighbour * left_by_neighbour, count) + _DRAWN
        kept_speed = keeps[workloads]
        leaves = np.bincount(neighbours, weight * speed * kept_speed, count) + _DRAWN * mean_factor
        leaves /= np.bincount(neighbours, weight * kept_speed * kept_speed, count) + _DRAWN
        # a large error counts by its size and not by its square
        weight = 1.0 / np.maximum(np.abs(speed - keeps[workloads] * leaves[neighbours]), _ORDINARY)
        weight /= weight.mean()
    return keeps, leaves
