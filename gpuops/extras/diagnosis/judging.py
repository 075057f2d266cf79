"""Compares answers with what was at fault."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.extras.diagnosis.component import COMPONENTS, Component

Floats = NDArray[np.float64]

NAMED: Final = 0.3
"""From this probability on a component counts as named, beside the most probable one."""


def most_probable(scores: Floats, count: int) -> set[Component]:
    """Return the `count` most probable components of one case; those without any probability are left out.

    `scores`: one number for each of COMPONENTS.
    """
    return {COMPONENTS[at] for at in np.argsort(-scores, kind="stable")[:count] if scores[at] > 0}


def components_right(scores: Floats, at_fault: Sequence[Collection[Component]]) -> float:
    """Return the share of components that are among as many most probable ones as are at fault, 0 to 1.

    Nothing at fault is one component, `none`.

    `scores`: a row for each case, a column for each of COMPONENTS.

    A case with a noisy neighbour and CPU ready, for which these two are the most probable: 2 of 2; for which CPU ready
    is the most probable and `none` the next: 1 of 2.
    """
    right = count = 0
    for row, components in zip(scores, at_fault, strict=True):
        expected = set(components) or {Component.NONE}
        right += len(expected & most_probable(row, len(expected)))
        count += len(expected)
    return right / max(1, count)


def alarms_right(scores: Floats, at_fault: Sequence[Collection[Component]]) -> float:
    """Return the components named rightly as a share of all that are at fault or named, 0 to 1.

    Users do not know how many are at fault, so a component named too many counts as much as one that is missed.

    A case with CPU ready, for which it and the network are named: 1 of 2.
    """
    right = count = 0
    for row, components in zip(scores, at_fault, strict=True):
        expected = set(components) or {Component.NONE}
        named = {COMPONENTS[at] for at in np.flatnonzero(row >= NAMED)} | {COMPONENTS[int(row.argmax())]}
        right += len(expected & named)
        count += len(expected | named)
    return right / max(1, count)


def false_alarms(scores: Floats, at_fault: Sequence[Collection[Component]]) -> float:
    """Return the share of the cases without a fault whose most probable component is a fault, 0 to 1."""
    first = [COMPONENTS[int(row.argmax())] for row, faults in zip(scores, at_fault, strict=True) if not faults]
    return sum(component is not Component.NONE for component in first) / max(1, len(first))
