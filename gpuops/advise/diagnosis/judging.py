"""How right answers are, beside what is known of cases."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuops.model.component import COMPONENTS, Component

Floats = NDArray[np.float64]


def components_right(scores: Floats, at_fault: Sequence[Collection[Component]]) -> float:
    """The share of components that are among as many most probable ones as are at fault, 0 to 1; nothing at fault is
    one component, `none`.

    `scores`: a row for each case, a column for each of COMPONENTS.

    A case with a noisy neighbour and CPU ready, for which these two are the most probable: 2 of 2; for which CPU ready
    is the most probable and `none` the next: 1 of 2.
    """
    right = there = 0
    for row, wanted in zip(scores, at_fault, strict=True):
        meant = set(wanted) or {Component.NONE}
        told = {COMPONENTS[each] for each in np.argsort(-row, kind="stable")[: len(meant)]}
        right += len(meant & told)
        there += len(meant)
    return right / max(1, there)
