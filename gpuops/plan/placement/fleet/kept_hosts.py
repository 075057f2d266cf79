"""Which hosts of a fleet leave enough free whichever GPU a VM gets, and on which that depends on the GPU.

`select.py` calls it if the best place of all would leave too few free (`keep_free.py`). The index searches the first
kind of hosts, the exact pass the second. All other hosts leave too few on any GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.keep_free import KeptRoom
from gpuops.plan.placement.reserved_slots import is_reserved_in
from gpuops.plan.placement.vm_demand import WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Ints

_NOWHERE: Final = 2**30


@dataclass(frozen=True, slots=True)
class KeptHosts:
    """Refs of the hosts that surely leave enough free, and of those where it depends on the GPU, in requested order."""

    sure: tuple[str, ...]
    unsure: tuple[str, ...]


def kept_hosts(kept_room: KeptRoom, fleet: FleetIndex) -> KeptHosts:
    """Sort the hosts that the VM may go to by what they leave free once it runs there."""
    needs, keep = kept_room.needs, kept_room.needs.keep_free.profiles
    taken_by_profile = [_taken_by_one(kept_profile.profile, kept_room, fleet) for kept_profile in keep]
    sure: list[str] = []
    unsure: list[str] = []
    for ref in needs.hosts:
        host = fleet.inventory.hosts[ref]
        spare = [kept_room.spare(host, kept_profile) for kept_profile in keep]
        free = [kept_room.free_on(host, kept_profile.profile) for kept_profile in keep]
        # (least, most) slots taken: a host without free slots loses none, and an unknown loss is at most all of them.
        taken = [
            taken_by_host.get(ref, (0, free_here)) if free_here else (0, 0)
            for taken_by_host, free_here in zip(taken_by_profile, free, strict=True)
        ]
        reserved = is_reserved_in(host, kept_room.inventory)
        if not reserved and all(most <= spare_here for (_, most), spare_here in zip(taken, spare, strict=True)):
            sure.append(ref)
        elif all(least <= spare_here for (least, _), spare_here in zip(taken, spare, strict=True)):
            unsure.append(ref)
    return KeptHosts(tuple(sure), tuple(unsure))


def _taken_by_one(profile: str, kept_room: KeptRoom, fleet: FleetIndex) -> dict[str, tuple[int, int]]:
    """Return how many vGPUs of the profile a new VM with one vGPU takes away on each host: (at least, at most).

    Empty for VMs of another kind; hosts whose last free memory the VM would reserve are left out.
    """
    needs = kept_room.needs
    if len(needs.demands) != 1 or needs.vm.host is not None or needs.keep_free.claims:
        return {}
    (demand,) = needs.demands
    if not isinstance(demand, WantsVgpu):
        return {}
    states, now = fleet.states, fleet.state
    free = states.surely_free(profile)
    lost = free.of(now) - free.of(states.with_vgpu(demand.profile).of(now))
    room = states.vgpu_surely(demand.profile).of(now).astype(np.bool_)
    first = fleet.first_row[:-1]
    least: Ints = np.minimum.reduceat(np.where(room, lost, _NOWHERE).min(axis=1), first)
    most: Ints = np.maximum.reduceat(np.where(room, lost, 0).max(axis=1), first)
    has_memory = fleet.unreserved_mib > (needs.vm.memory_mib or 0)
    return {fleet.hosts[number].ref: (int(least[number]), int(most[number])) for number in np.flatnonzero(has_memory)}
