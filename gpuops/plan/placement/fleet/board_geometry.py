"""The states that GPUs of one model can have, by the exact rules, and the value of what still fits in each state.

`board_pools.py` makes one for each model. Kinds of device are the vGPU profiles of the model, and one GPU given whole.
GPUs of another model have no room for any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import VgpuMode
from gpuops.plan.placement.fleet.mix_value import VALUE_UNIT
from gpuops.plan.placement.fleet.prices import slot_prices
from gpuops.plan.placement.fleet.site_demand import WHOLE
from gpuops.plan.placement.fleet.states import GpuStates

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints

_MOST_STATES_PRICED: Final = 400
"""Limit of states that are followed to find the fillings of a GPU in MIG mode; beyond, only fillings of one kind are
used."""
_MOST_STATES_VALUED: Final = 4000
"""Limit of states of such GPUs whose best filling is looked for; beyond, the best filling of one kind is used."""


class BoardGpus:
    """The geometry of one GPU model. `demand`: the devices of each profile that the mix asks for, in any proportion."""

    ways = 1

    def __init__(self, board: Board, states: GpuStates, demand: Mapping[str, float]) -> None:
        self._board, self._states, self._demand = board, states, demand
        self._profiles: list[str] = []
        self._prices: dict[int, dict[int, float]] = {}
        self._values: dict[tuple[int, int], float] = {}
        self.kinds = tuple(self.kind(profile) for profile in demand)

    def kind(self, profile: str) -> int:
        """The number of the profile."""
        if profile not in self._profiles:
            self._profiles.append(profile)
        return self._profiles.index(profile)

    def size(self, kind: int) -> int:
        """GPU memory of one device, in MiB."""
        facts = self._states.catalog.profile(self._profiles[kind])
        return self._board.framebuffer_mib if facts is None else facts.framebuffer_mib

    def after(self, state: int, kind: int) -> Sequence[int]:
        profile = self._profiles[kind]
        if not state or not self._states.of_board(state, self._board.key):
            return ()
        if profile == WHOLE:
            free = self._states.any_whole().at(state)
            return (self._states.given_whole().at(state),) if free else ()
        free = self._states.vgpu_surely(profile).at(state)
        return (self._states.with_vgpu(profile).at(state),) if free else ()

    def slots(self, state: int, kind: int) -> int:
        profile = self._profiles[kind]
        if not state or not self._states.of_board(state, self._board.key):
            return 0
        return (self._states.any_whole() if profile == WHOLE else self._states.slots(profile)).at(state)

    def usable(self, state: int, kind: int) -> int:
        return self.slots(state, kind) * self.size(kind)

    def free(self, state: int) -> int:
        return self._states.free_mib(state, self._board) if state else 0

    def value(self, state: int) -> int:
        if not state or not self._states.of_board(state, self._board.key):
            return 0
        return round(VALUE_UNIT * self._value(state, self._states.when_empty().at(state)))

    def price(self, kind: int) -> float:
        """Return the price in MiB of GPU memory; the highest if GPUs of several modes offer the kind."""
        prices = [prices_by_kind[kind] for prices_by_kind in self._prices.values() if kind in prices_by_kind]
        return max(prices, default=float(self.size(kind)))

    def _value(self, state: int, empty: int) -> float:
        """Return the worth of the best filling of what is free, at the prices of GPUs whose unused state is `empty`."""
        price = self._prices_of(empty)
        key = (state, empty)
        if not self.is_cut(empty) or (key not in self._values and len(self._values) >= _MOST_STATES_VALUED):
            return max((self.slots(state, kind) * unit_price for kind, unit_price in price.items()), default=0.0)
        if key not in self._values:
            after = (
                (unit_price, state_after)
                for kind, unit_price in price.items()
                for state_after in self.after(state, kind)
            )
            self._values[key] = max(
                (unit_price + self._value(state_after, empty) for unit_price, state_after in after), default=0.0
            )
        return self._values[key]

    def is_cut(self, empty: int) -> bool:
        """Whether vGPUs of several sizes share such a GPU, each in its own GPU instance (MIG), so that their mixtures
        are searched device by device.

        That is not done if several vGPUs share an instance (RTX PRO): 48 vGPUs of many sizes have millions of mixtures.
        There each size gets a share of the instances, so fillings of one size and shares of them are exact enough.
        """
        if self._states.mode(empty) is not VgpuMode.MULTI_INSTANCE:
            return False
        sold = (self._states.catalog.profile(self._profiles[kind]) for kind in self.kinds)
        return all(facts is None or (facts.max_per_gpu_instance or 1) == 1 for facts in sold)

    def _prices_of(self, empty: int) -> dict[int, float]:
        """The price of a device of each kind on such GPUs."""
        if empty not in self._prices:
            sold = [kind for kind in self.kinds if self.slots(empty, kind)]
            sizes = np.array([self.size(kind) for kind in sold]) / self._board.framebuffer_mib
            demand = np.array([self._demand[self._profiles[kind]] for kind in sold], dtype=np.float64)
            fillings = self._fillings(empty, sold) if sold else np.zeros((0, 0), dtype=np.int64)
            sale_prices = slot_prices(sizes, demand, lambda price: _best_filling(fillings, price)) if sold else sizes
            self._prices[empty] = {
                kind: self._board.framebuffer_mib * sale_price
                for kind, sale_price in zip(sold, sale_prices.tolist(), strict=True)
            }
        return self._prices[empty]

    def _fillings(self, empty: int, sold: Sequence[int]) -> Ints:
        """Return the fillings of an empty GPU as numbers of each kind: full of one kind, and in MIG mode every full
        mixture."""
        fillings = {tuple(self.slots(empty, kind) * (kind == other_kind) for other_kind in sold) for kind in sold}
        if self.is_cut(empty):
            mixtures_of: dict[int, frozenset[tuple[int, ...]]] = {}
            fillings |= self._mixtures(empty, sold, mixtures_of)
        return np.array(sorted(fillings), dtype=np.int64)

    def _mixtures(
        self, state: int, sold: Sequence[int], mixtures_of: dict[int, frozenset[tuple[int, ...]]]
    ) -> frozenset[tuple[int, ...]]:
        """Return every full mixture of what is free, as the number of devices of each kind."""
        if state not in mixtures_of and len(mixtures_of) < _MOST_STATES_PRICED:
            mixtures_of[state] = frozenset()
            mixtures = {
                tuple(count + (position == at) for position, count in enumerate(mixture))
                for at, kind in enumerate(sold)
                for state_after in self.after(state, kind)
                for mixture in self._mixtures(state_after, sold, mixtures_of)
            }
            mixtures_of[state] = frozenset(mixtures or {(0,) * len(sold)})
        return mixtures_of.get(state, frozenset())


def _best_filling(fillings: Ints, price: Floats) -> Ints:
    best: Ints = fillings[(fillings @ price).argmax()]
    return best
