"""Computes the loss of a place: what a VM there takes from the other VMs that the site has or is asked for.

Both passes use it: `choice.py` for all places of the fleet at once, `select.py` for the few places that the exact rules
found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.plan.placement.fleet.board_pools import BoardPools, PricedPool
from gpuops.plan.placement.fleet.geometry import PoolRequest
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.fleet.site_demand import NO_LOSS, WHOLE, Loss, shapes_of_devices
from gpuops.plan.placement.vm_demand import Demand, Wanted, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints


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
