"""Moves: what one more device may make of the GPUs of a node, and what GPUs offer as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuops.plan.placement.fleet.ask import Geometry
from gpuops.plan.placement.fleet.tables import Rows

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.tables import Flags, Ints


class Moves:
    """What the geometry says, remembered. `kinds` are those that the mix asks for."""

    def __init__(self, geometry: Geometry, kinds: Sequence[int]) -> None:
        self._geometry = geometry

        def gains(state: int) -> list[int]:
            slots = [geometry.slots(state, kind) for kind in kinds]
            usable = [geometry.usable(state, kind) for kind in kinds]
            return [*slots, *usable, geometry.value(state), geometry.free(state)]

        self.gains = Rows(gains, 2 * len(kinds) + 2)
        """Of a state: the slots of each kind, what these could use, the value at the prices, and what is free."""
        self._after: dict[int, Rows] = {}

    def after(self, kind: int) -> Rows:
        """The states that one more device of the kind may lead to; 0 = no more."""
        if kind not in self._after:
            ways = self._geometry.ways

            def after(state: int) -> list[int]:
                found = list(self._geometry.after(state, kind))
                return found + [0] * (ways - len(found))

            self._after[kind] = Rows(after, ways)
        return self._after[kind]

    def one(self, kind: int, states: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Ways for one device: which of these nodes, GPU and way, its new state. Of GPUs that are alike the first."""
        after = self.after(kind).of(states)
        fresh: Flags = np.ones(states.shape, dtype=np.bool_)
        for gpu in range(1, states.shape[1]):
            fresh[:, gpu] = (states[:, :gpu] != states[:, gpu : gpu + 1]).all(axis=1)
        node, gpu_of, way = np.nonzero((after > 0) & fresh[:, :, None])
        return node, gpu_of, way, after[node, gpu_of, way]
