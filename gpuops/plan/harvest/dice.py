"""Dice: chance that is the same in every run, drawn in blocks (one number at a time costs a call each)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

Item = TypeVar("Item")

_BLOCK: Final = 4096


class Dice:
    """Numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.default_rng(seed)
        self._block: list[float] = []

    def roll(self) -> float:
        """From 0 up to, and without, 1."""
        if not self._block:
            self._block = self._source.random(_BLOCK).tolist()
        return self._block.pop()

    def below(self, most: int) -> int:
        """A whole number from 0 up to, and without, `most`."""
        return int(self.roll() * most)

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return sorted(items, key=lambda _: self.roll())
