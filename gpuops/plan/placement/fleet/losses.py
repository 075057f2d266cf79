"""Computes the loss of a place, which is what a VM there takes from the other VMs that the site has or is asked for.

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
from gpuops.plan.placement.wanted import Demand, Wanted, WantsDynamic, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Floats, Ints


@dataclass(frozen=True)
class Losses:
    """The measure of losses for one VM in one snapshot."""

    wanted: Wanted
    fleet: FleetIndex

    @cached_property
    def pools(self) -> tuple[PricedPool, ...]:
        """One for each GPU model that the VM asks for."""
        fleet, vm = self.fleet, self.wanted.vm
        devices = [each for demand in self.wanted.demands if (each := self._device(demand)) is not None]
        own = shapes_of_devices(devices, vm.memory_mib)
        asked = fleet.mix.shape_counts(vm.ref, own, self.wanted.coming, fleet.inventory)
        boards, pools = (fleet.catalog.board(key) for key in own), BoardPools.of(fleet)
        return tuple(pools.priced(board, asked) for board in boards if board is not None)

    def _device(self, demand: Demand) -> tuple[str, str] | None:
        """The board and the profile; None = unknown, or the device is named: there is nothing to choose."""
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
        """The pool of the profile and the request to it; None = the catalogue does not know the profile."""
        if not self.pools:
            return None
        (priced,) = self.pools
        return priced, PoolRequest(priced.gpus.kind(profile), count, 0, self.wanted.vm.memory_mib or 0, beside=beside)

    def on_node(self, profile: str, host: Host, node: int) -> tuple[PciAddress, ...] | None:
        """The GPUs of the node that the pool would choose for so many vGPUs, one each; None = it has not the room."""
        asked = self.ask(profile, len(self.wanted.demands), beside=True)
        row = next((row for address, (row, _) in self.fleet.where(host).items() if _node(host, address) == node), None)
        if asked is None or row is None:
            return None
        gpus = asked[0].pool.in_turn(asked[1], row)
        return tuple(self.fleet.address[row][gpu] for gpu in gpus) if len(gpus) == len(self.wanted.demands) else None

    def of(self, seatings: Sequence[tuple[Host, Mapping[int, PciAddress]]]) -> list[Loss]:
        """The loss of each of these seatings, by ordinal of the device."""
        rows: list[int] = []
        place: list[int] = []
        parts: list[tuple[int, int]] = []
        states: list[Ints] = []
        for number, (host, seats) in enumerate(seatings):
            where = self.fleet.where(host)
            after: dict[int, Ints] = {}
            devices: dict[int, int] = {}
            for demand in self.wanted.demands:
                position = where.get(seats[demand.ordinal]) if demand.ordinal in seats else None
                if position is not None:
                    now = after.setdefault(position[0], self.fleet.state[position[0]].copy())
                    now[position[1]] = self._after(demand, int(now[position[1]]))
                    devices[position[0]] = devices.get(position[0], 0) + 1
            rows += after
            states += after.values()
            place += [number] * len(after)
            parts += [(count, sum(devices.values())) for count in devices.values()]
        if not rows:
            return [NO_LOSS] * len(seatings)
        memory = [(self.wanted.vm.memory_mib or 0) * count // total for count, total in parts]
        measured = self.at(np.array(rows), np.array(states), np.array(memory), np.array(place), len(seatings))
        return [Loss(int(s), float(w), float(k)) for s, w, k in zip(*measured, strict=True)]

    def _after(self, demand: Demand, state: int) -> int:
        states = self.fleet.states
        table = states.with_vgpu(demand.profile) if isinstance(demand, WantsVgpu) else states.given_whole()
        return table.at(state)

    def at(self, rows: Ints, states: Ints, memory: Ints, place: Ints, places: int) -> tuple[Ints, Floats, Floats]:
        """For each place the loss in steps, in use and in places for large VMs.

        `rows` would be in these `states` and have so much less `memory`; `place`: the place that each row belongs to.
        """
        steps = np.zeros(places, dtype=np.int64)
        worth, kept = np.zeros(places), np.zeros(places)
        for priced in self.pools:
            pool = priced.pool
            loss, destroyed = pool.losses(rows, states, 0 * memory, memory)
            of_place = np.bincount(place, weights=loss, minlength=places).astype(np.float64)
            gone = np.zeros((places, destroyed.shape[1]), dtype=np.int64)
            np.add.at(gone, place, destroyed)
            steps += pool.total(of_place, gone).astype(np.int64)
            worth += of_place
            kept += gone @ pool.reserve()
        return steps, worth, kept


def _node(host: Host, address: PciAddress) -> int | None:
    gpu = host.gpu(address)
    return None if gpu is None else gpu.numa_node
