"""A pool for each GPU model of the fleet, at the prices of the site's mix; `losses.py` asks for it.

A profile names its GPU model, so models do not compete for VMs. A pool is kept as long as the mix is close to the one
that it was made for. Where the index was read again, its rows are updated. So one more VM changes no price, and the
scores of thousands of decisions stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuops.model.devices.catalog import Board
from gpuops.plan.placement.fleet.board_geometry import BoardGpus
from gpuops.plan.placement.fleet.geometry import NO_LIMIT
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.fleet.mix_value import (
    ShapeFrequency,
    commonest,
    large_shapes,
    make_shape_arrays,
    with_weights,
)
from gpuops.plan.placement.fleet.pool import NodePool
from gpuops.plan.placement.fleet.site_demand import (
    Mix,
    OfferedSize,
    ShapeCounts,
    board_mix,
    largest_profiles,
    mix_distance,
)

LOSS_STEP: Final = 0.001
"""Share of a GPU: losses that differ by less are equal."""
FEEDING_SLACK: Final = 2.0
"""CPU and memory are assumed to feed this many times the value of the mean VM: not all small VMs come at once."""
NEAR_MIX: Final = 0.02
"""Share of VMs by which the mix may differ from the one that a pool was made for."""


@dataclass(slots=True)
class PricedPool:
    """The pool of one board for one mix."""

    pool: NodePool
    gpus: BoardGpus
    mix: Mix
    at: int
    """How many entries of `FleetIndex.read_again` this pool has applied."""


class BoardPools:
    """The pools of a fleet, each made at its first use."""

    def __init__(self, fleet: FleetIndex) -> None:
        self._fleet = fleet
        self._pools: dict[str, PricedPool] = {}
        self._largest: dict[str, set[str]] = {}
        self._most_gpus: dict[str, int] = {}

    @classmethod
    def of(cls, fleet: FleetIndex) -> BoardPools:
        """Return the pools of this index; new ones if the GPU setup of a host changed."""
        board_pools = fleet.worked_out.get(cls)
        if not isinstance(board_pools, BoardPools):
            board_pools = fleet.worked_out[cls] = BoardPools(fleet)
        return board_pools

    def pool_for(self, board: Board, demand: ShapeCounts) -> PricedPool:
        """Return the pool of this board for this demand, brought up to date with the index."""
        mix = board_mix(board.key, demand, self._largest_of(board), self._host_gpus(board))
        priced_pool = self._pools.get(board.key)
        if priced_pool is None or mix_distance(priced_pool.mix, mix) > NEAR_MIX:
            priced_pool = self._pools[board.key] = self._new(board, mix)
        self._sync(priced_pool)
        return priced_pool

    def _sync(self, priced_pool: PricedPool) -> None:
        rows = sorted(set(self._fleet.read_again[priced_pool.at :]))
        priced_pool.at = len(self._fleet.read_again)
        if rows:
            pool = priced_pool.pool
            pool.state[rows], pool.memory[rows] = self._fleet.state[rows], self._fleet.free_mib(np.array(rows))
            pool.update_nodes(rows)

    def _new(self, board: Board, mix: Mix) -> PricedPool:
        fleet = self._fleet
        devices: dict[str, float] = {}
        for shape, part in mix.items():
            devices[shape.profile] = devices.get(shape.profile, 0.0) + part * shape.devices
        gpus = BoardGpus(board, fleet.states, devices)
        often = [
            ShapeFrequency(gpus.kind(shape.profile), shape.devices, 0, shape.memory_mib, part)
            for shape, part in mix.items()
        ]
        sizes = {kind: gpus.size(kind) for kind in gpus.kinds}
        rows = np.arange(len(fleet.host_of))
        empties = np.unique(fleet.states.when_empty().of(np.unique(fleet.state)))
        for state in empties.tolist():
            gpus.value(state)  # so that every kind has its price
        shapes = with_weights(
            make_shape_arrays(commonest(often), sizes, fleet.state.shape[1]),
            often,
            {kind: gpus.price(kind) for kind in sizes},
            FEEDING_SLACK,
            cut=any(gpus.is_cut(state) for state in empties.tolist()),
        )
        pool = NodePool(
            gpus,
            fleet.state,
            np.full(len(rows), NO_LIMIT),  # vSphere shares cores, it does not hand them out
            fleet.free_mib(rows),
            shapes,
            step=LOSS_STEP * board.framebuffer_mib,
            large=large_shapes(often, sizes, shapes, board.framebuffer_mib),
            sibling=fleet.sibling,
        )
        return PricedPool(pool, gpus, mix, len(fleet.read_again))

    def _host_gpus(self, board: Board) -> int:
        """Return the number of GPUs of the board in the host that has the most, in whatever mode they are."""
        if board.key not in self._most_gpus:
            states, state = self._fleet.states, self._fleet.state
            of_board = [number for number in np.unique(state).tolist() if number and states.of_board(number, board.key)]
            by_row = np.isin(state, of_board).sum(axis=1)
            self._most_gpus[board.key] = int(np.bincount(self._fleet.host_of, weights=by_row).max(initial=0))
        return self._most_gpus[board.key]

    def _largest_of(self, board: Board) -> set[str]:
        """Return the largest profiles that hosts offer for GPUs of the board in their current mode."""
        if board.key not in self._largest:
            states = self._fleet.states
            empties = np.unique(states.when_empty().of(np.unique(self._fleet.state))).tolist()
            board_states = [state for state in empties if state and states.of_board(state, board.key)]
            offers = {}
            for name in self._fleet.offered_names():
                facts = states.catalog.profile(name)
                if (
                    facts is not None
                    and facts.board == board.key
                    and any(states.slots(name).at(s) for s in board_states)
                ):
                    offers[name] = OfferedSize(facts.framebuffer_mib, facts.mig_backed)
            self._largest[board.key] = largest_profiles(offers)
        return self._largest[board.key]
