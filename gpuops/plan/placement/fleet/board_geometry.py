"""The states that GPUs of one model can have, as numbers, and the value of what still fits in each state.

Each state that a rule may treat differently has its own number; `index.py` numbers the GPUs of a snapshot. Every answer
comes from the rules that judge one GPU of one host (`gpu_filters.py`, `advise.capacity`), applied to a stand-in for the
state. This module decides nothing itself.

`losses.py` makes one geometry for each model. Kinds of device are the vGPU profiles of the model, and one GPU given
whole. GPUs of another model have no room for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import GpuState, Rooms, Tenant, may_run, with_expected
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement.fleet.geometry import VALUE_UNIT, Table, slot_prices
from gpuops.plan.placement.fleet.site_demand import WHOLE
from gpuops.plan.placement.gpu_filters import judge_slot, matches_type, slots_in_turn
from gpuops.plan.placement.vm_demand import WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints


_SOMEWHERE: Final = PciAddress(0, 0, 0, 0)
_HOST: Final = Host(ref="", name="")
_VM: Final = Vm(ref="", name="")

_Key = tuple[object, ...]


class GpuStates:
    """The states numbered so far, and a table of answers for every question about them."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._stand_ins: list[tuple[GpuState, bool] | None] = [None]
        self._numbers: dict[_Key, int] = {}
        self._tables: dict[_Key, Table] = {}
        self._rooms = Rooms(catalog)

    def __len__(self) -> int:
        return len(self._stand_ins)

    def number(self, state: GpuState, is_held: bool) -> int:
        """Return the number of this state; `is_held` = a VM has the GPU as a whole."""
        gpu = state.gpu
        # Sorted as texts: a start may be None, which has no order among numbers.
        tenant_starts = tuple(sorted(((tenant.profile, tenant.start) for tenant in state.tenants), key=str))
        vgpus_reported = state.gpu.vgpus is not None
        key = (
            gpu.admission_traits,
            gpu.passthrough,
            vgpus_reported,
            tenant_starts,
            state.fewest,
            bool(state.unclear),
            is_held,
        )
        state_number = self._numbers.get(key)
        if state_number is None:
            state_number = self._numbers[key] = len(self._stand_ins)
            # GPUs that differ only in address and NUMA node have the same number.
            stand_in = replace(state, gpu=replace(gpu, address=_SOMEWHERE, numa_node=None))
            self._stand_ins.append((stand_in, is_held))
        return state_number

    def vgpu_surely(self, profile: str) -> Table:
        """Return a table with 1 for the states in which a vGPU of the profile finds a slot for certain, else 0."""
        demand = WantsVgpu(0, profile)
        return self._table(
            ("surely", profile), lambda state, _: judge_slot(state, demand, _VM, _HOST, self.catalog) == ""
        )

    def with_vgpu(self, profile: str) -> Table:
        """Return a table of the states with one more vGPU of the profile."""

        def after(state: GpuState, is_held: bool) -> int:
            return self.number(with_expected(state, Tenant("", "", profile), self.catalog), is_held)

        return self._table(("with", profile), after)

    def made_for(self, profile: str) -> Table:
        """Return a table with 1 for the states of GPUs that serve vGPUs and may be of the profile's model, else 0."""

        def answer(state: GpuState, _: bool) -> bool:
            shared = state.gpu.graphics_type is GraphicsType.SHARED_DIRECT and not state.gpu.vgpu_obstacle
            return shared and may_run(state.gpu, profile, self.catalog) is not False

        return self._table(("made for", profile), answer)

    def whole_free(self, demand: WantsDynamic) -> Table:
        """Return a table with 1 for the states in which the demand can get the complete GPU, else 0."""

        def answer(state: GpuState, is_held: bool) -> bool:
            gpu = state.gpu
            return not is_held and matches_type(gpu, demand) and gpu.is_active_in_passthrough

        return self._table(("whole", demand.allowed, demand.label), answer)

    def given_whole(self) -> Table:
        """Return a table of the states once a VM has the complete GPU."""
        return self._table(("given",), lambda state, _: self.number(state, True))

    def slots(self, profile: str) -> Table:
        """Return a table of the number of vGPUs of the profile that surely fit next to what runs."""

        def answer(state: GpuState, _: bool) -> int:
            return free_slots(state.gpu, state.holders, profile, self.catalog, state.starts).at_least

        return self._table(("slots", profile), answer)

    def slots_in_turn(self, profile: str) -> Table:
        """Return a table of the number of vGPUs of the profile that a VM can get, including doubtful ones."""
        return self._table(("in turn", profile), lambda state, _: slots_in_turn(state, profile, "", self.catalog)[1])

    def surely_free(self, profile: str) -> Table:
        """Return a table of the number of vGPUs of the profile that surely fit next to all that may run on the GPU."""

        def answer(state: GpuState, _: bool) -> int:
            sure_slots = self._rooms.on(state, (profile,)).get(profile)
            return 0 if sure_slots is None else sure_slots.at_least

        return self._table(("surely free", profile), answer)

    def any_whole(self) -> Table:
        """Return a table with 1 for the states in which a VM can get the complete GPU, else 0."""

        def answer(state: GpuState, is_held: bool) -> bool:
            return not is_held and state.gpu.is_active_in_passthrough

        return self._table(("any whole",), answer)

    def when_empty(self) -> Table:
        """Return a table of the states of the same GPUs with nothing on them."""
        return self._table(("emptied",), lambda state, _: self.number(GpuState(replace(state.gpu, vms=())), False))

    def mode(self, state: int) -> VgpuMode | None:
        """Return the vGPU mode of the GPU; None = unknown, or no GPU."""
        stand_in = self._stand_ins[state]
        return None if stand_in is None else stand_in[0].gpu.vgpu_mode

    def of_board(self, state: int, board: str) -> bool:
        """Whether the GPU is of this model."""
        stand_in = self._stand_ins[state]
        return stand_in is not None and self._board(stand_in[0]) == board

    def free_mib(self, state: int, board: Board) -> int:
        """Return the free frame buffer of a GPU of this model; 0 for other models and for GPUs held as a whole."""
        stand_in = self._stand_ins[state]
        if stand_in is None or stand_in[1] or self._board(stand_in[0]) != board.key:
            return 0
        held_profiles = (self.catalog.profile(tenant.profile) for tenant in stand_in[0].tenants)
        held_mib = sum(facts.framebuffer_mib for facts in held_profiles if facts is not None)
        return max(0, board.framebuffer_mib - held_mib)

    def _board(self, state: GpuState) -> str | None:
        board = self.catalog.board_by_pci(state.gpu.vendor_id, state.gpu.device_id, state.gpu.subsystem_id)
        return None if board is None else board.key

    def _table(self, key: _Key, answer: Callable[[GpuState, bool], int]) -> Table:
        if key not in self._tables:

            def answer_for_number(number: int) -> int:
                stand_in = self._stand_ins[number]
                # State 0 is no GPU: no room, nothing free, and no state that it could change to.
                return 0 if stand_in is None else int(answer(*stand_in))

            self._tables[key] = Table(answer_for_number)
        return self._tables[key]


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
        """Return the number of the profile."""
        if profile not in self._profiles:
            self._profiles.append(profile)
        return self._profiles.index(profile)

    def size(self, kind: int) -> int:
        """Return the GPU memory of one device in MiB."""
        facts = self._states.catalog.profile(self._profiles[kind])
        return self._board.framebuffer_mib if facts is None else facts.framebuffer_mib

    def after(self, state: int, kind: int) -> Sequence[int]:
        profile = self._profiles[kind]
        if not self._states.of_board(state, self._board.key):
            return ()
        if profile == WHOLE:
            free = self._states.any_whole().at(state)
            return (self._states.given_whole().at(state),) if free else ()
        free = self._states.vgpu_surely(profile).at(state)
        return (self._states.with_vgpu(profile).at(state),) if free else ()

    def slots(self, state: int, kind: int) -> int:
        profile = self._profiles[kind]
        if not self._states.of_board(state, self._board.key):
            return 0
        return (self._states.any_whole() if profile == WHOLE else self._states.slots(profile)).at(state)

    def free(self, state: int) -> int:
        return self._states.free_mib(state, self._board)

    def value(self, state: int) -> int:
        if not self._states.of_board(state, self._board.key):
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
        # Without mixtures of MIG instances, the best filling has one kind. With too many states this is an estimate.
        if not self.is_cut(empty) or (key not in self._values and len(self._values) >= _MOST_STATES_VALUED):
            return max((self.slots(state, kind) * unit_price for kind, unit_price in price.items()), default=0.0)
        if key not in self._values:
            values = (
                unit_price + self._value(state_after, empty)
                for kind, unit_price in price.items()
                for state_after in self.after(state, kind)
            )
            self._values[key] = max(values, default=0.0)
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
        """Return the price of a device of each kind on such GPUs, in MiB of GPU memory."""
        if empty in self._prices:
            return self._prices[empty]
        sold = [kind for kind in self.kinds if self.slots(empty, kind)]
        if not sold:
            self._prices[empty] = {}
            return {}
        # The fillings of an empty GPU, as numbers of each kind: full of one kind, and in MIG mode every full mixture.
        # An A40 and the kinds 24q and 8q: (2, 0) and (0, 6). `kind == other` is 1 at the place of the kind, else 0.
        all_fillings = {tuple(self.slots(empty, kind) * (kind == other) for other in sold) for kind in sold}
        if self.is_cut(empty):
            mixtures_of: dict[int, frozenset[tuple[int, ...]]] = {}
            all_fillings |= self._mixtures(empty, sold, mixtures_of)
        fillings = np.array(sorted(all_fillings), dtype=np.int64)

        def best_filling(price: Floats) -> Ints:
            best: Ints = fillings[(fillings @ price).argmax()]
            return best

        sizes = np.array([self.size(kind) for kind in sold]) / self._board.framebuffer_mib
        demand = np.array([self._demand[self._profiles[kind]] for kind in sold], dtype=np.float64)
        prices = self._board.framebuffer_mib * slot_prices(sizes, demand, best_filling)
        self._prices[empty] = dict(zip(sold, prices.tolist(), strict=True))
        return self._prices[empty]

    def _mixtures(
        self, state: int, sold: Sequence[int], mixtures_of: dict[int, frozenset[tuple[int, ...]]]
    ) -> frozenset[tuple[int, ...]]:
        """Return every full mixture of what is free, as the number of devices of each kind."""
        if state not in mixtures_of and len(mixtures_of) < _MOST_STATES_PRICED:
            mixtures_of[state] = frozenset()  # counts towards the limit while the states after it are searched
            mixtures: set[tuple[int, ...]] = set()
            for position, kind in enumerate(sold):
                # One device of this kind more than in each mixture of what is free after it.
                for state_after in self.after(state, kind):
                    for mixture in self._mixtures(state_after, sold, mixtures_of):
                        mixtures.add((*mixture[:position], mixture[position] + 1, *mixture[position + 1 :]))
            mixtures_of[state] = frozenset(mixtures or {(0,) * len(sold)})
        return mixtures_of.get(state, frozenset())
