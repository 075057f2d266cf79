"""Boards: a pool for each GPU model of the fleet, at the prices of the site's mix.

A profile names its GPU model, so models do not compete for VMs. A pool is kept as long as the mix is near to the one it
was made for, and brought up to date where the index was read again: a VM more changes no price, and the scores of
thousands of decisions stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.catalog import Board
from gpuops.plan.placement.fleet.board import BoardGpus
from gpuops.plan.placement.fleet.mix import Asked, Mix, Offer, distance, largest, mix_of
from gpuops.plan.placement.fleet.pool import Pool
from gpuops.plan.placement.fleet.site import Often, large_of, shapes_of, typical, weighted
from gpuops.plan.placement.fleet.tables import NO_LIMIT

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.index import Fleet

STEP: Final = 0.001
"""Of a GPU: what differs by less is equal."""
SLACK: Final = 2.0
"""Memory feeds so much more than the mean VM's worth: not all of the small ones come at once."""
NEAR: Final = 0.02
"""Share of VMs by which the mix may differ from the one that a pool was made for."""


@dataclass(slots=True)
class Priced:
    """The pool of one board for one mix."""

    pool: Pool
    gpus: BoardGpus
    mix: Mix
    at: int
    """How much of what the index read again the pool has seen."""


class Boards:
    """The pools that were asked for."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pools: dict[str, Priced] = {}
        self._largest: dict[str, set[str]] = {}

    def priced(self, board: Board, asked: Asked) -> Priced:
        """The pool of this board where so much is asked for, as the index is now."""
        mix = mix_of(board.key, asked, self._largest_of(board))
        known = self._pools.get(board.key)
        if known is None or distance(known.mix, mix) > NEAR:
            known = self._pools[board.key] = self._new(board, mix)
        self._sync(known)
        return known

    def _sync(self, known: Priced) -> None:
        rows = sorted(set(self._fleet.read_again[known.at :]))
        known.at = len(self._fleet.read_again)
        if rows:
            pool = known.pool
            pool.state[rows], pool.memory[rows] = self._fleet.state[rows], self._fleet.free_mib(np.array(rows))
            pool.changed(rows)

    def _new(self, board: Board, mix: Mix) -> Priced:
        fleet = self._fleet
        devices: dict[str, float] = {}
        for shape, part in mix.items():
            devices[shape.profile] = devices.get(shape.profile, 0.0) + part * shape.devices
        gpus = BoardGpus(board, fleet.states, devices)
        often = [
            Often(gpus.kind(shape.profile), shape.devices, 0, shape.memory_mib, part) for shape, part in mix.items()
        ]
        sizes = {kind: gpus.size(kind) for kind in gpus.kinds}
        rows = np.arange(len(fleet.host_of))
        empties = np.unique(fleet.states.emptied().of(np.unique(fleet.state)))
        for state in empties.tolist():
            gpus.value(state)  # so that every kind has its price
        shapes = weighted(
            shapes_of(typical(often), sizes, fleet.state.shape[1]),
            often,
            {kind: gpus.price(kind) for kind in sizes},
            SLACK,
        )
        pool = Pool(
            gpus,
            fleet.state,
            np.full(len(rows), NO_LIMIT),  # vSphere shares cores, it does not hand them out
            fleet.free_mib(rows),
            shapes,
            step=STEP * board.framebuffer_mib,
            large=large_of(often, sizes, shapes, board.framebuffer_mib),
            sibling=fleet.sibling,
        )
        return Priced(pool, gpus, mix, len(fleet.read_again))

    def _largest_of(self, board: Board) -> set[str]:
        """Of the profiles that hosts offer for GPUs that they have, in the mode they are in, the largest."""
        if board.key not in self._largest:
            states = self._fleet.states
            empties = np.unique(states.emptied().of(np.unique(self._fleet.state))).tolist()
            there = [state for state in empties if state and states.of_board(state, board.key)]
            found = {}
            for name in self._fleet.offered_names():
                facts = states.catalog.profile(name)
                if facts is not None and facts.board == board.key and any(states.slots(name).at(s) for s in there):
                    found[name] = Offer(facts.framebuffer_mib, facts.mig_backed)
            self._largest[board.key] = largest(found)
        return self._largest[board.key]
