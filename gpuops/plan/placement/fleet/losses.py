"""The loss of a place (what a VM there takes from the other VMs that the site has or is asked for), and the best place.

Both passes use it: `choice.py` for all places of the fleet at once, `select.py` for the few places that the exact rules
found. A loss comes from a pool for each GPU model of the fleet, at the prices of the site's mix.

A profile names its GPU model, so models do not compete for VMs. A pool is kept as long as the mix is close to the one
that it was made for. Where the index was read again, its rows are updated. So one more VM changes no price, and the
scores of thousands of decisions stay valid.

A `NodePool` holds NUMA nodes with GPUs of one geometry. The geometry defines the states of a GPU; a node also has CPU
and memory. The place with the smallest loss in steps wins; of equal places, the first node. Scores of a request are
kept until a node changes, so that a decision only has to score the nodes that changed since the last equal request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.plan.placement.fleet.board_geometry import BoardGpus
from gpuops.plan.placement.fleet.geometry import (
    NO_LIMIT,
    Geometry,
    GpuTransitions,
    LargeShapes,
    PoolRequest,
    ShapeArrays,
    ShapeFrequency,
    count_places,
    half_of_two_nodes,
    large_shapes,
    make_shape_arrays,
    node_value,
    place_prices,
)
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.fleet.site_demand import (
    NO_LOSS,
    WHOLE,
    Loss,
    Mix,
    ShapeCounts,
    board_mix,
    mix_distance,
    shapes_of_devices,
)
from gpuops.plan.placement.vm_demand import Demand, Wanted, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Flags, Floats, Ints


@dataclass(slots=True)
class _ScoredRequest:
    """The loss of one request in each way on each node, when it was last scored; infinite = does not fit.

    A way is a GPU and one of the states that it may have afterwards.
    """

    at: int
    """How many changes of the pool these scores include."""
    loss: Floats
    destroyed: Ints
    """Places for each large shape that this way destroys."""


NO_ROOM: Final = np.inf
"""The loss of a way that does not exist, because the devices do not fit."""


class NodePool:
    """The current nodes, and the value of each to the mix. `sibling` is the other node of a host with two nodes, else
    -1."""

    def __init__(
        self,
        geometry: Geometry,
        state: Ints,
        cpu: Ints,
        memory: Ints,
        shapes: ShapeArrays,
        *,
        step: float,
        sibling: Ints,
        large: LargeShapes | None = None,
    ) -> None:
        self.geometry, self.shapes, self.step, self.large = geometry, shapes, step, large
        self.state, self.cpu, self.memory = state.copy(), cpu.copy(), memory.copy()
        self.sibling = sibling
        self._wide = np.zeros(0, dtype=np.bool_) if large is None else large.count > state.shape[1]
        self._half = half_of_two_nodes(large) if large is not None and self._wide.any() else None
        self.moves = GpuTransitions(geometry, shapes.kinds)
        self._scored: dict[PoolRequest, _ScoredRequest] = {}
        self._changed: list[int] = []
        self.gains = self.moves.gains.of(self.state).sum(axis=1)
        all_rows = np.arange(len(cpu))
        self.value = self._value(all_rows, self.gains, self.cpu, self.memory)
        self.places = self._places(all_rows, self.gains, self.cpu, self.memory)

    def best(self, request: PoolRequest, among: Flags) -> tuple[int, int, float] | None:
        """Return the best node among these, the way there, and the loss in steps; None if no node has room. For several
        devices the way is 0: `in_turn` returns their GPUs."""
        scored = self._up_to_date(request)
        loss: Floats = np.where(among[:, None], scored.loss, NO_ROOM)
        total = self.total(loss, scored.destroyed)
        row, way = divmod(int(total.argmin()), loss.shape[1])
        return None if loss[row, way] == NO_ROOM else (row, way, float(total[row, way]))

    def steps(self, request: PoolRequest, row: int, gpu: int) -> float:
        """Return the loss in steps of one device on this GPU, if that leads to one state; infinite = no room."""
        scored = self._up_to_date(request)
        # Of several GPUs in the same state only the first is scored.
        way = int((self.state[row] == self.state[row, gpu]).argmax()) * self.geometry.ways
        return float(self.total(scored.loss[row, way : way + 1], scored.destroyed[row, way : way + 1])[0])

    def update_nodes(self, rows: Iterable[int]) -> None:
        """Compute these nodes anew, and mark them and their siblings as changed for all kept scores."""
        changed_rows = np.array(sorted(set(rows)), dtype=np.int64)
        self.gains[changed_rows] = self.moves.gains.of(self.state[changed_rows]).sum(axis=1)
        self.value[changed_rows] = self._value(
            changed_rows, self.gains[changed_rows], self.cpu[changed_rows], self.memory[changed_rows]
        )
        siblings = self.sibling[changed_rows]
        near = np.unique(np.concatenate([changed_rows, siblings[siblings >= 0]]))
        self.places[near] = self._places(near, self.gains[near], self.cpu[near], self.memory[near])
        self._changed += near.tolist()

    def losses(self, rows: Ints, states: Ints, cpu: Ints, memory: Ints) -> tuple[Floats, Ints]:
        """Return the loss of each node with its GPUs in these states and this CPU and memory taken, and the places
        lost."""
        gains = self.moves.gains.of(states).sum(axis=1)
        cpu, memory = np.maximum(0, self.cpu[rows] - cpu), np.maximum(0, self.memory[rows] - memory)
        loss: Floats = self.value[rows] - self._value(rows, gains, cpu, memory)
        return loss, np.maximum(0, self.places[rows] - self._places(rows, gains, cpu, memory))

    def _value(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Floats:
        return node_value(self.shapes, gains, cpu, memory)

    def _places(self, rows: Ints, gains: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Return the places for each large shape on these nodes with these gains, CPU and memory. A shape that needs
        both nodes of a host has a place there if each node has room for one half. The place counts on both nodes."""
        if self.large is None:
            return np.zeros((len(rows), 0), dtype=np.int64)
        counts = count_places(self.large, gains, cpu, memory)
        if self._half is not None:
            wide, siblings = self._wide, self.sibling[rows]
            half_here = count_places(self._half, gains, cpu, memory)
            half_there = count_places(self._half, self.gains[siblings], self.cpu[siblings], self.memory[siblings])
            both = np.where((siblings >= 0)[:, None], np.minimum(1, np.minimum(half_here, half_there)), 0)
            counts[:, wide] = both[:, wide]
        return counts

    def _up_to_date(self, request: PoolRequest) -> _ScoredRequest:
        """Return the scores of the request on all nodes. Only nodes that changed since the last call are scored."""
        scored = self._scored.get(request)
        if scored is None:
            changed = np.arange(len(self.cpu))  # the first call: all of them
            # One row for each node, one column for each way.
            size = (len(self.cpu), self.state.shape[1] * self.geometry.ways)
            destroyed = np.zeros((*size, self.places.shape[1]), dtype=np.int64)
            scored = self._scored[request] = _ScoredRequest(0, np.full(size, NO_ROOM), destroyed)
        else:
            changed = np.array(sorted(set(self._changed[scored.at :])), dtype=np.int64)
        scored.at = len(self._changed)
        if len(changed):
            self._score(request, changed, scored)
        return scored

    def _score(self, request: PoolRequest, rows: Ints, scored: _ScoredRequest) -> None:
        """Score these nodes for the request anew."""
        # 1. Nodes with room for CPU and memory, if these must be local.
        scored.loss[rows] = NO_ROOM
        if request.beside:
            rows = rows[(self.cpu[rows] >= request.cpu) & (self.memory[rows] >= request.memory)]
        # 2. Every way to add the devices, and the value that the node loses by each.
        option, way, gains = self._options(request, rows)
        at = rows[option]
        # Each GPU has `geometry.ways` ways in a row: with 2 of them, ways 4 and 5 are on GPU 2.
        scored.loss[at, way] = self.cost(request, at, way // self.geometry.ways, gains)
        # 3. The places for large shapes that it destroys; their price depends on the whole pool, so `total` adds it.
        if self.large is not None:
            places_after = self._places(at, gains, *self._left(request, at))
            scored.destroyed[at, way] = np.maximum(0, self.places[at] - places_after)

    def total(self, cost: Floats, destroyed: Ints) -> Floats:
        """Return the loss with the price of the destroyed places, in steps: smaller differences do not count."""
        steps: Floats = np.floor((cost + destroyed @ self.reserve()) / self.step + 0.5 + 1e-6)
        return steps

    def reserve(self) -> Floats:
        """The price of one place of each large shape now."""
        if self.large is None:
            return np.zeros(0)
        free_places = self.places.sum(axis=0)
        free_places = np.where(self._wide, free_places // 2, free_places)
        return place_prices(self.large, free_places, float(self.gains[:, -1].sum()))

    def cost(self, request: PoolRequest, rows: Ints, gpu: Ints, gains: Ints) -> Floats:
        """Return the value that these nodes lose to the mix by the VM."""
        return self.value[rows] - self._value(rows, gains, *self._left(request, rows))

    def _left(self, request: PoolRequest, rows: Ints) -> tuple[Ints, Ints]:
        """Return the CPU and memory that the VM leaves of each node; at least 0, since other nodes give the missing
        part."""
        return np.maximum(0, self.cpu[rows] - request.cpu), np.maximum(0, self.memory[rows] - request.memory)

    def _options(self, request: PoolRequest, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return every way to seat the devices, as arrays: node, way, new gains of the node. For several devices there
        is one way on each node: one device after the other, each where the node keeps the most value."""
        states = self.state[rows]
        if request.count == 1:
            option, gpu, way, new = self.moves.add_one(request.kind, states)
            after = self.gains[rows[option]] + self.moves.gains.of(new) - self.moves.gains.of(states[option, gpu])
            return option, gpu * self.geometry.ways + way, after
        open_rows = np.arange(len(rows))
        for has_room, _, new_states in self.seat_in_turn(request, rows):
            open_rows, states = open_rows[has_room], new_states
        return open_rows, 0 * open_rows, self.moves.gains.of(states).sum(axis=1)

    def seat_in_turn(self, request: PoolRequest, rows: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Seat the devices of a VM one after the other, on all of these nodes at once. Yield for each device which of
        the remaining nodes have room, on which GPU, and the new states of all their GPUs."""
        states = self.state[rows]
        for _ in range(request.count):
            # 1. Every GPU that one more device fits on: `option` is the position of its node in `rows`.
            option, gpu, _, new = self.moves.add_one(request.kind, states)
            after, node = states[option], rows[option]
            after[np.arange(len(option)), gpu] = new
            # 2. The value that the node keeps: less of it is a higher cost.
            gains = self.moves.gains.of(after).sum(axis=1)
            cost = -self._value(node, gains, self.cpu[node], self.memory[node])
            # 3. The cheapest option of each node; the sort is stable, so of equals the first. Costs (3, 1, 2) on nodes
            # (0, 0, 1) give options 1 and 2.
            order = np.lexsort((np.round(cost / self.step, 3), option))
            first = order[np.concatenate([[True], np.diff(option[order]) != 0])] if len(order) else order
            # 4. Nodes without room are dropped for the devices that follow.
            has_room, states = option[first], after[first]
            rows = rows[has_room]
            yield has_room, gpu[first], states

    def in_turn(self, request: PoolRequest, row: int) -> tuple[int, ...]:
        """The GPU of each of several devices on this node, as many as there is room for."""
        return tuple(int(gpu) for _, gpus, _ in self.seat_in_turn(request, np.array([row])) for gpu in gpus)


LOSS_STEP: Final = 0.001
"""Share of a GPU: losses that differ by less are equal."""
NEAR_MIX: Final = 0.02
"""Share of VMs by which the mix may differ from the one that a pool was made for."""


@dataclass(slots=True)
class PricedPool:
    """The pool of one board for one mix."""

    pool: NodePool
    gpus: BoardGpus
    mix: Mix
    at: int
    """How many entries of `FleetIndex.rows_read` this pool has applied."""


class BoardPools:
    """The pools of a fleet, each made at its first use."""

    def __init__(self, fleet: FleetIndex) -> None:
        self._fleet = fleet
        self._pools: dict[str, PricedPool] = {}
        self._offers: dict[str, tuple[set[str], int]] = {}

    @classmethod
    def of(cls, fleet: FleetIndex) -> BoardPools:
        """Return the pools of this index; new ones if the GPU setup of a host changed."""
        board_pools = fleet.worked_out.get(cls)
        if not isinstance(board_pools, BoardPools):
            board_pools = fleet.worked_out[cls] = BoardPools(fleet)
        return board_pools

    def pool_for(self, board: Board, demand: ShapeCounts) -> PricedPool:
        """Return the pool of this board for this demand, brought up to date with the index.

        A pool is used again as long as the demand has nearly the mix that its prices were computed for.
        """
        if board.key not in self._offers:
            self._offers[board.key] = self._read_offer(board)
        mix = board_mix(board.key, demand, *self._offers[board.key])
        priced_pool = self._pools.get(board.key)
        if priced_pool is None or mix_distance(priced_pool.mix, mix) > NEAR_MIX:
            priced_pool = self._pools[board.key] = self._new(board, mix)
        self._sync(priced_pool)
        return priced_pool

    def _sync(self, priced_pool: PricedPool) -> None:
        rows = sorted(set(self._fleet.rows_read[priced_pool.at :]))
        priced_pool.at = len(self._fleet.rows_read)
        if rows:
            pool = priced_pool.pool
            pool.state[rows], pool.memory[rows] = self._fleet.state[rows], self._fleet.free_mib(np.array(rows))
            pool.update_nodes(rows)

    def _new(self, board: Board, mix: Mix) -> PricedPool:
        """Return a new pool of the GPUs of this board, with the prices of this mix."""
        fleet = self._fleet
        devices_by_profile: dict[str, float] = {}
        for shape, share in mix.items():
            devices_by_profile[shape.profile] = devices_by_profile.get(shape.profile, 0.0) + share * shape.devices
        gpus = BoardGpus(board, fleet.states, devices_by_profile)
        frequencies = [
            ShapeFrequency(gpus.kind(shape.profile), shape.devices, 0, shape.memory_mib, share)
            for shape, share in mix.items()
        ]
        sizes = {kind: gpus.size(kind) for kind in gpus.kinds}
        rows = np.arange(len(fleet.host_of))
        empty_states = np.unique(fleet.states.when_empty().of(np.unique(fleet.state))).tolist()
        for state in empty_states:
            gpus.value(state)  # called because it sets the price of every kind
        shapes = make_shape_arrays(
            frequencies,
            sizes,
            fleet.state.shape[1],
            {kind: gpus.price(kind) for kind in sizes},
            cut=any(gpus.is_cut(state) for state in empty_states),
        )
        pool = NodePool(
            gpus,
            fleet.state,
            np.full(len(rows), NO_LIMIT),  # vSphere shares cores, it does not hand them out
            fleet.free_mib(rows),
            shapes,
            step=LOSS_STEP * board.framebuffer_mib,
            large=large_shapes(frequencies, sizes, shapes, board.framebuffer_mib),
            sibling=fleet.sibling,
        )
        return PricedPool(pool, gpus, mix, len(fleet.rows_read))

    def _read_offer(self, board: Board) -> tuple[set[str], int]:
        """Return the largest profiles, time-sliced and MIG-backed, that hosts offer for GPUs of the board in their
        current mode, and the most GPUs of the board in one host."""
        fleet, states = self._fleet, self._fleet.states
        states_of_board = [state for state in np.unique(fleet.state).tolist() if states.of_board(state, board.key)]
        empty_states = {states.when_empty().at(state) for state in states_of_board}
        offered = [
            (name, facts) for name in fleet.offered_names() if (facts := states.catalog.profile(name)) is not None
        ]
        largest: dict[bool, str] = {}
        # From the smallest on: a larger profile takes the place of a smaller one, of equal ones the last by name.
        for name, facts in sorted(offered, key=lambda named_facts: named_facts[1].framebuffer_mib):
            if facts.board == board.key and any(states.slots(name).at(state) for state in empty_states):
                largest[facts.mig_backed] = name
        gpus_by_host = np.bincount(fleet.host_of, weights=np.isin(fleet.state, states_of_board).sum(axis=1))
        return set(largest.values()), int(gpus_by_host.max(initial=0))


@dataclass(frozen=True)
class Losses:
    """Measures the losses that places for one VM cause in one snapshot."""

    needs: Wanted
    fleet: FleetIndex

    @cached_property
    def pools(self) -> tuple[PricedPool, ...]:
        """One pool for each GPU model that the VM asks for."""
        fleet, vm = self.fleet, self.needs.vm
        devices = [device for demand in self.needs.demands if (device := self._device(demand)) is not None]
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
            case WantsDynamic(allowed=[(vendor, number), *_]):  # of several allowed models the first counts
                board = catalog.board_by_pci(vendor, number)
                return (board.key, WHOLE) if board else None
            case _:
                return None

    def request_to_pool(self, profile: str, count: int, *, beside: bool) -> tuple[PricedPool, PoolRequest] | None:
        """Return the pool of the profile and the request to it; None if the catalogue does not know the profile."""
        if not self.pools:
            return None
        (priced_pool,) = self.pools
        return priced_pool, PoolRequest(
            priced_pool.gpus.kind(profile), count, 0, self.needs.vm.memory_mib or 0, beside=beside
        )

    def on_node(self, profile: str, host: Host, node: int) -> tuple[PciAddress, ...] | None:
        """Return the GPU that the pool would choose for each vGPU of the VM on this node; None = no room."""
        count = len(self.needs.demands)
        priced_request = self.request_to_pool(profile, count, beside=True)
        row_of_gpu = {address: row for address, (row, _) in self.fleet.gpu_positions(host).items()}
        on_node = [gpu.address for gpu in host.gpus if gpu.numa_node == node and gpu.address in row_of_gpu]
        if priced_request is None or not on_node:
            return None
        row = row_of_gpu[on_node[0]]  # all GPUs of a node are in one row
        gpus = priced_request[0].pool.in_turn(priced_request[1], row)
        return tuple(self.fleet.address[row][gpu] for gpu in gpus) if len(gpus) == count else None

    def of(self, seatings: Sequence[tuple[Host, Mapping[int, PciAddress]]]) -> list[Loss]:
        """Return the loss of each of these seatings: a host, and the GPU of each device by its ordinal.

        Each NUMA node (row of the index) on which a seating has a GPU is measured with the new states of its GPUs, and
        with the part of the VM's memory that falls to its devices there.
        """
        tables = self.fleet.states
        rows: list[int] = []
        place_of_row: list[int] = []
        device_counts: list[tuple[int, int]] = []
        """For each row (devices on the row, devices on all rows of the place)."""
        new_states: list[Ints] = []
        for place, (host, seats) in enumerate(seatings):
            gpu_positions = self.fleet.gpu_positions(host)
            states_by_row: dict[int, Ints] = {}
            devices_by_row: Counter[int] = Counter()
            for demand in self.needs.demands:
                position = gpu_positions.get(seats[demand.ordinal]) if demand.ordinal in seats else None
                if position is None:
                    continue
                row, column = position
                states = states_by_row.setdefault(row, self.fleet.state[row].copy())
                table = tables.with_vgpu(demand.profile) if isinstance(demand, WantsVgpu) else tables.given_whole()
                states[column] = table.at(int(states[column]))
                devices_by_row[row] += 1
            rows += states_by_row
            new_states += states_by_row.values()
            place_of_row += [place] * len(states_by_row)
            device_counts += [(count, devices_by_row.total()) for count in devices_by_row.values()]
        if not rows:
            return [NO_LOSS] * len(seatings)
        memory = [(self.needs.vm.memory_mib or 0) * count // total for count, total in device_counts]
        measured = self.at(
            np.array(rows), np.array(new_states), np.array(memory), np.array(place_of_row), len(seatings)
        )
        return [Loss(int(s), float(w), float(k)) for s, w, k in zip(*measured, strict=True)]

    def at(
        self, rows: Ints, states: Ints, memory: Ints, place_of_row: Ints, place_count: int
    ) -> tuple[Ints, Floats, Floats]:
        """Return the loss of each place in steps, in usable GPU memory and in places for large VMs. `rows` change to
        these `states` and lose this `memory` (MiB); `place_of_row`: the number of the place that each row is of."""
        steps = np.zeros(place_count, dtype=np.int64)
        worth_mib, kept_mib = np.zeros(place_count), np.zeros(place_count)
        for priced_pool in self.pools:
            pool = priced_pool.pool
            # No CPU is taken: vSphere shares cores.
            loss, destroyed = pool.losses(rows, states, 0 * memory, memory)
            loss_by_place = np.bincount(place_of_row, weights=loss, minlength=place_count).astype(np.float64)
            destroyed_by_place = np.zeros((place_count, destroyed.shape[1]), dtype=np.int64)
            np.add.at(destroyed_by_place, place_of_row, destroyed)
            steps += pool.total(loss_by_place, destroyed_by_place).astype(np.int64)
            worth_mib += loss_by_place
            kept_mib += destroyed_by_place @ pool.reserve()
        return steps, worth_mib, kept_mib
