"""Puts samples together to steps, steps of five minutes to hours, and two readings of one time to one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.execute.measurements.packing import MISSING, WHOLE, Block, Values
from gpuops.model.measurements.measurement import Samples

FINE_S: Final = 300
HOUR_S: Final = 3600
SAMPLE_S: Final = 20
"""A host's own samples."""

Steps = Callable[[NDArray[np.int64], NDArray[np.int64], int], Values]


def steps_of_samples(samples: Samples, begin: int, steps: int) -> Block:
    """Steps of five minutes from a host's samples of 20 s."""
    return _block(samples, begin, steps, _measured)


def steps_of_averages(samples: Samples, begin: int, steps: int) -> Block:
    """Steps of five minutes from the averages that vCenter keeps of them: the highest is unknown."""
    return _block(samples, begin, steps, _averaged)


def merged(one: Block, other: Block) -> Block:
    """Both readings of the same time: of each step what covers more of it, and the first where both do as much.

    What is read twice, or by two machines, is there once.
    """
    found = dict(one.series)
    for name, theirs in other.series.items():
        ours = found.get(name)
        found[name] = theirs if ours is None else _better(ours, theirs)
    return Block(one.steps, found)


def hours(block: Block) -> Block:
    """Hours from steps of five minutes. The highest of an hour is known where it is of each step that is there."""
    per_hour = HOUR_S // FINE_S
    return Block(block.steps // per_hour, {name: _hourly(values, per_hour) for name, values in block.series.items()})


def nothing_in(values: Values) -> bool:
    """Whether each step is missing."""
    return not (values[:, 2] > 0).any()


def empty(steps: int) -> Values:
    """Steps that are all missing."""
    values = np.full((steps, 3), MISSING, dtype=np.int64)
    values[:, 2] = 0
    return values


def placed(block: Block, at: int, steps: int) -> Block:
    """The block as the part from step `at` on of one of so many steps, all others missing."""
    series = {}
    for name, values in block.series.items():
        series[name] = empty(steps)
        series[name][at : at + block.steps] = values
    return Block(steps, series)


def _block(samples: Samples, begin: int, steps: int, of: Steps) -> Block:
    # a sample that ends on the border of two steps is of the first
    places = (samples.ends - 1 - begin) // FINE_S
    within = (places >= 0) & (places < steps)
    series = {}
    for name, values in samples.values.items():
        there = within & (values >= 0)
        if there.any():
            series[name] = of(places[there], values[there], steps)
    return Block(steps, series)


def _measured(places: NDArray[np.int64], values: NDArray[np.int64], steps: int) -> Values:
    counts = np.bincount(places, minlength=steps)
    sums = np.bincount(places, weights=values, minlength=steps)
    found = empty(steps)
    some = counts > 0
    found[some, 0] = np.rint(sums[some] / counts[some])
    np.maximum.at(found[:, 1], places, values)
    found[:, 2] = np.minimum(counts * SAMPLE_S * WHOLE // FINE_S, WHOLE)
    return found


def _averaged(places: NDArray[np.int64], values: NDArray[np.int64], steps: int) -> Values:
    found = empty(steps)
    found[places, 0] = values
    found[places, 2] = WHOLE
    return found


def _better(ours: Values, theirs: Values) -> Values:
    more = theirs[:, 2] > ours[:, 2]
    more |= (theirs[:, 2] == ours[:, 2]) & (theirs[:, 1] >= 0) & (ours[:, 1] < 0)
    return np.where(more[:, None], theirs, ours)


def _hourly(values: Values, per_hour: int) -> Values:
    by_hour = values.reshape(-1, per_hour, 3)
    average, highest, covered = by_hour[:, :, 0], by_hour[:, :, 1], by_hour[:, :, 2]
    there = covered > 0
    weight = covered.sum(axis=1)
    found = empty(len(by_hour))
    some = weight > 0
    found[some, 0] = np.rint(np.where(there, average * covered, 0).sum(axis=1)[some] / weight[some])
    known = some & ((highest >= 0) | ~there).all(axis=1)
    found[known, 1] = highest.max(axis=1)[known]
    found[some, 2] = np.maximum(weight[some] // per_hour, 1)
    return found
