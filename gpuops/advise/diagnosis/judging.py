"""How right answers are, beside what is known of cases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.model.measurements.component import COMPONENTS, Component

Floats = NDArray[np.float64]

NAMED: Final = 0.3
"""From this probability on a component counts as named, beside the most probable one."""


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


def alarms_right(scores: Floats, at_fault: Sequence[Collection[Component]]) -> float:
    """Components named rightly as a part of all that are at fault or named, 0 to 1. Whoever asks does not know how
    many are at fault, so that one named too many counts as one that is missed does.

    A case with CPU ready, for which it and the network are named: 1 of 2.
    """
    right = all_of_them = 0
    for row, wanted in zip(scores, at_fault, strict=True):
        meant = set(wanted) or {Component.NONE}
        told = {COMPONENTS[each] for each in np.flatnonzero(row >= NAMED)} | {COMPONENTS[int(row.argmax())]}
        right += len(meant & told)
        all_of_them += len(meant | told)
    return right / max(1, all_of_them)


def false_alarms(scores: Floats, at_fault: Sequence[Collection[Component]]) -> float:
    """The share of cases without a fault of which one is the most probable, 0 to 1."""
    healthy = [COMPONENTS[int(row.argmax())] for row, wanted in zip(scores, at_fault, strict=True) if not wanted]
    return sum(told is not Component.NONE for told in healthy) / max(1, len(healthy))
