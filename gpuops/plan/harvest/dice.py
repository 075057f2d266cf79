"""Dice: chance that is the same in every run, drawn in blocks (one number at a time costs a call each)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, TypeVar

import numpy as np

Item = TypeVar("Item")

_BLOCK: Final = 4096


class Dice:
    """Numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block: list[float] = []

    def roll(self) -> float:
        """From 0 up to, and without, 1."""
        if not self._block:
            self._block = self._source.random(_BLOCK).tolist()
        return self._block.pop()

    @cached_property
    def _source(self) -> np.random.Generator:
        """Made when it is first asked: most nights are decided without chance."""
        return np.random.default_rng(self._seed)

    def below(self, most: int) -> int:
        """A whole number from 0 up to, and without, `most`."""
        return int(self.roll() * most)

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return sorted(items, key=lambda _: self.roll())
