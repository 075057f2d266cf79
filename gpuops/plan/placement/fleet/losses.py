"""Computes the loss of a place: what a VM there takes from the other VMs that the site has or is asked for.

Both passes use it: `choice.py` for all places of the fleet at once, `select.py` for the few places that the exact rules
found. A loss comes from a pool for each GPU model of the fleet, at the prices of the site's mix.

A profile names its GPU model, so models do not compete for VMs. A pool is kept as long as the mix is close to the one
that it was made for. Where the index was read again, its rows are updated. So one more VM changes no price, and the
scores of thousands of decisions stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.plan.placement.fleet.board_geometry import BoardGpus
from gpuops.plan.placement.fleet.geometry import NO_LIMIT, PoolRequest
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
    NO_LOSS,
    WHOLE,
    Loss,
    Mix,
    OfferedSize,
    ShapeCounts,
    board_mix,
    largest_profiles,
    mix_distance,
    shapes_of_devices,
)
from gpuops.plan.placement.vm_demand import Demand, Wanted, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints


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


@dataclass(frozen=True)
class Losses:
    """Measures the losses that places for one VM cause in one snapshot."""

    needs: Wanted
    fleet: FleetIndex

    @cached_property
    def pools(self) -> tuple[PricedPool, ...]:
        """One pool for each GPU model that the VM asks for."""
        fleet, vm = self.fleet, self.needs.vm
        devices = [
            board_profile for demand in self.needs.demands if (board_profile := self._device(demand)) is not None
        ]
        own_shapes = shapes_of_devices(devices, vm.memory_mib)
        site_shapes = fleet.mix.shape_counts(vm.ref, own_shapes, self.needs.coming, fleet.inventory)
        boards, pools = (fleet.catalog.board(key) for key in own_shapes), BoardPools.of(fleet)
        return tuple(pools.pool_for(board, site_shapes) for board in boards if board is not None)

    def _device(self, demand: Demand) -> tuple[str, str] | None:
        """Return the board and the profile; None if the model is unknown or the demand names its device."""
        catalog = self.fleet.catalog
        match demand:
            case WantsVgpu(profile=profile):
                board = catalog.board_of(profile)
                return (board.key, profile) if board else None
            case WantsDynamic(allowed=[(vendor, number), *_]):
                board = catalog.board_by_pci(vendor, number)
                return (board.key, WHOLE) if board else None
            case _:
                return None

    def ask(self, profile: str, count: int, *, beside: bool) -> tuple[PricedPool, PoolRequest] | None:
        """Return the pool of the profile and the request to it; None if the catalogue does not know the profile."""
        if not self.pools:
            return None
        (priced_pool,) = self.pools
        return priced_pool, PoolRequest(
            priced_pool.gpus.kind(profile), count, 0, self.needs.vm.memory_mib or 0, beside=beside
        )

    def on_node(self, profile: str, host: Host, node: int) -> tuple[PciAddress, ...] | None:
        """Return the GPU that the pool would choose for each vGPU of the VM on this node; None = no room."""
        priced_request = self.ask(profile, len(self.needs.demands), beside=True)
        row = next((row for address, (row, _) in self.fleet.where(host).items() if _node(host, address) == node), None)
        if priced_request is None or row is None:
            return None
        gpus = priced_request[0].pool.in_turn(priced_request[1], row)
        return tuple(self.fleet.address[row][gpu] for gpu in gpus) if len(gpus) == len(self.needs.demands) else None

    def of(self, seatings: Sequence[tuple[Host, Mapping[int, PciAddress]]]) -> list[Loss]:
        """Return the loss of each of these seatings, which have the GPU of each device by ordinal."""
        rows: list[int] = []
        place: list[int] = []
        parts: list[tuple[int, int]] = []
        states: list[Ints] = []
        for number, (host, seats) in enumerate(seatings):
            where = self.fleet.where(host)
            after: dict[int, Ints] = {}
            devices: dict[int, int] = {}
            for demand in self.needs.demands:
                position = where.get(seats[demand.ordinal]) if demand.ordinal in seats else None
                if position is not None:
                    node_states = after.setdefault(position[0], self.fleet.state[position[0]].copy())
                    node_states[position[1]] = self._after(demand, int(node_states[position[1]]))
                    devices[position[0]] = devices.get(position[0], 0) + 1
            rows += after
            states += after.values()
            place += [number] * len(after)
            parts += [(count, sum(devices.values())) for count in devices.values()]
        if not rows:
            return [NO_LOSS] * len(seatings)
        memory = [(self.needs.vm.memory_mib or 0) * count // total for count, total in parts]
        measured = self.at(np.array(rows), np.array(states), np.array(memory), np.array(place), len(seatings))
        return [Loss(int(s), float(w), float(k)) for s, w, k in zip(*measured, strict=True)]

    def _after(self, demand: Demand, state: int) -> int:
        states = self.fleet.states
        table = states.with_vgpu(demand.profile) if isinstance(demand, WantsVgpu) else states.given_whole()
        return table.at(state)

    def at(self, rows: Ints, states: Ints, memory: Ints, place: Ints, places: int) -> tuple[Ints, Floats, Floats]:
        """Return the loss of each place in steps, in usable GPU memory and in places for large VMs.

        `rows` change to these `states` and lose so much `memory`; `place`: the place that each row belongs to.
        """
        steps = np.zeros(places, dtype=np.int64)
        worth_mib, kept_mib = np.zeros(places), np.zeros(places)
        for priced_pool in self.pools:
            pool = priced_pool.pool
            loss, destroyed = pool.losses(rows, states, 0 * memory, memory)
            of_place = np.bincount(place, weights=loss, minlength=places).astype(np.float64)
            destroyed_places = np.zeros((places, destroyed.shape[1]), dtype=np.int64)
            np.add.at(destroyed_places, place, destroyed)
            steps += pool.total(of_place, destroyed_places).astype(np.int64)
            worth_mib += of_place
            kept_mib += destroyed_places @ pool.reserve()
        return steps, worth_mib, kept_mib


def _node(host: Host, address: PciAddress) -> int | None:
    gpu = host.gpu(address)
    return None if gpu is None else gpu.numa_node
