"""Tables: what is known of each state of a GPU, worked out by the exact rules when the state is first met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

NO_LIMIT: Final = 2**50
"""MiB of memory that is not known, or cores that are not counted: they do not limit."""
_UNKNOWN: Final = -(2**40)


class Table:
    """One number per state. Most GPUs of a fleet are in one of few states, so most answers are a look-up."""

    def __init__(self, answer: Callable[[int], int]) -> None:
        self._rows = Rows(lambda state: (answer(state),), 1)

    def of(self, states: Ints) -> Ints:
        """The answer for each of these states."""
        return self._rows.of(states)[..., 0]

    def at(self, state: int) -> int:
        """The answer for this state."""
        return int(self.of(np.array([state]))[0])


class Rows:
    """Some numbers per state, in an axis of their own."""

    def __init__(self, answer: Callable[[int], Sequence[int]], width: int) -> None:
        self._answer = answer
        self._known = np.full((64, width), _UNKNOWN, dtype=np.int64)

    def of(self, states: Ints) -> Ints:
        """The answers for each of these states."""
        try:
            found = self._known[states]
        except IndexError:  # sooner than to ask each time
            more = np.full((int(states.max()), self._known.shape[1]), _UNKNOWN, dtype=np.int64)
            self._known = np.concatenate([self._known, more])
            found = self._known[states]
        unknown = found[..., 0] == _UNKNOWN
        if unknown.any():
            for state in np.unique(states[unknown]):
                self._known[state] = self._answer(int(state))
            found = self._known[states]
        return found
