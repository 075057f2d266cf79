"""Which hosts of a fleet leave enough free wherever on them a VM goes, and on which that depends on the GPU.

`select.py` asks it where the best place of all would leave too few (`keep_free.py`). The first kind is searched by the
index, the second by the exact pass; hosts of neither kind leave too few whatever they give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.placement.keep_free import KeptRoom
from gpuops.plan.placement.reserved import is_reserved_in
from gpuops.plan.placement.wanted import WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.geometry import Ints

_NOWHERE: Final = 2**30


@dataclass(frozen=True, slots=True)
class KeptHosts:
    """Refs of the hosts, in the order in which they were asked for."""

    sure: tuple[str, ...]
    unsure: tuple[str, ...]


def kept_hosts(kept: KeptRoom, fleet: FleetIndex) -> KeptHosts:
    """The hosts of the question by what they leave when the VM is there."""
    wanted, keep = kept.wanted, kept.wanted.keep_free.profiles
    known = [_taken_by_one(each.profile, kept, fleet) for each in keep]
    sure: list[str] = []
    unsure: list[str] = []
    for ref in wanted.hosts:
        host = fleet.inventory.hosts[ref]
        spare = [kept.spare(host, each) for each in keep]
        free = [kept.free_on(host, each.profile) for each in keep]
        # At the least and at the most; what has nothing to lose loses nothing, and nothing has more than all.
        taken = [found.get(ref, (0, here)) if here else (0, 0) for found, here in zip(known, free, strict=True)]
        reserved = is_reserved_in(host, kept.inventory)
        if not reserved and all(most <= left for (_, most), left in zip(taken, spare, strict=True)):
            sure.append(ref)
        elif all(least <= left for (least, _), left in zip(taken, spare, strict=True)):
            unsure.append(ref)
    return KeptHosts(tuple(sure), tuple(unsure))


def _taken_by_one(profile: str, kept: KeptRoom, fleet: FleetIndex) -> dict[str, tuple[int, int]]:
    """How many vGPUs of the profile a new VM with one vGPU takes away on each host: at the least and at the most.

    None for other VMs, and for hosts whose last memory it would reserve.
    """
    wanted = kept.wanted
    if len(wanted.demands) != 1 or wanted.vm.host is not None or wanted.keep_free.claims:
        return {}
    (demand,) = wanted.demands
    if not isinstance(demand, WantsVgpu):
        return {}
    states, now = fleet.states, fleet.state
    free = states.surely_free(profile)
    lost = free.of(now) - free.of(states.with_vgpu(demand.profile).of(now))
    room = states.vgpu_surely(demand.profile).of(now).astype(np.bool_)
    first = fleet.first_row[:-1]
    least: Ints = np.minimum.reduceat(np.where(room, lost, _NOWHERE).min(axis=1), first)
    most: Ints = np.maximum.reduceat(np.where(room, lost, 0).max(axis=1), first)
    fed = fleet.unreserved_mib > (wanted.vm.memory_mib or 0)
    return {fleet.hosts[number].ref: (int(least[number]), int(most[number])) for number in np.flatnonzero(fed)}
