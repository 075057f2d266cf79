"""How many more vGPUs of each profile fit on a GPU, with what may as well be elsewhere counted both ways.

A vGPU that may be on another GPU of the host takes a slot here in the worst case and none in the best; the room for
more is the range between. A place is promised on the worst case alone. But all that may be here can be more than the
GPU holds: then some of it is elsewhere, and what must be here bounds the room.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.advise.capacity import Slots, free_slots
from gpuops.advise.occupancy import GpuState, may_run
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu

_Alike = tuple[object, ...]
_Sets = tuple[tuple[str, ...], ...]


def room_for(state: GpuState, profile: str, catalog: Catalog) -> Slots:
    """Return room for more vGPUs of the profile on a GPU that is thought as full as it may be.

    Where all that may be on it is more than it holds, at most the room beside what must be on it.
    """
    fullest = free_slots(state.gpu, state.holders, profile, catalog, state.starts)
    if not fullest.contradictory:
        return fullest
    return _between(state.gpu, state.holders, state.starts, state.fewest, profile, catalog)


def range_of_room(state: GpuState, profile: str, catalog: Catalog) -> Slots:
    """Room for more vGPUs of the profile, from the worst to the best way in which what may be on the GPU lies."""
    return _between(state.gpu, state.holders, state.starts, state.fewest, profile, catalog)


class Rooms:
    """Answers for many GPUs. Most GPUs of a fleet look like another one, so each kind is worked out once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rooms_by_kind: dict[_Alike, Mapping[str, Slots]] = {}

    def on(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """Return room for each of these profiles that the GPU's model may run, or may if its model is not known."""
        vgpus = sorted(((tenant.profile, tenant.start) for tenant in state.tenants), key=str)
        holders = None if state.holders is None else tuple(holder for holder, _ in vgpus)
        starts = tuple(start for _, start in vgpus)
        fewest = state.fewest
        alike = (*state.gpu.admission_traits, holders, starts, fewest, profiles)
        rooms = self._rooms_by_kind.get(alike)
        if rooms is None:
            rooms = {
                profile: _between(state.gpu, holders, starts, fewest, profile, self._catalog)
                for profile in profiles
                if may_run(state.gpu, profile, self._catalog) is not False
            }
            self._rooms_by_kind[alike] = rooms
        return rooms

    def thought_full(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """`room_for` each of these profiles that the GPU's model may run, or may if its model is not known."""
        alike = ("thought full", *state.gpu.admission_traits, state.holders, state.starts, state.fewest, profiles)
        rooms = self._rooms_by_kind.get(alike)
        if rooms is None:
            rooms = self._rooms_by_kind[alike] = {
                profile: room_for(state, profile, self._catalog)
                for profile in profiles
                if may_run(state.gpu, profile, self._catalog) is not False
            }
        return rooms


def _between(
    gpu: PhysicalGpu,
    holders: tuple[str, ...] | None,
    starts: tuple[int | None, ...],
    fewest: _Sets,
    profile: str,
    catalog: Catalog,
) -> Slots:
    fullest = free_slots(gpu, holders, profile, catalog, starts)
    if holders is None or fewest == (tuple(sorted(holders)),):
        return fullest
    every = (free_slots(gpu, holder_set, profile, catalog) for holder_set in fewest)
    emptiest = [slots for slots in every if not slots.contradictory]
    if not emptiest:
        return fullest
    most = [slots.at_most for slots in emptiest if slots.at_most is not None]
    at_least = min(fullest.at_least, *(slots.at_least for slots in emptiest))
    at_most = max(most) if len(most) == len(emptiest) else None
    if at_most is not None and fullest.at_most is not None:
        # An empty GPU whose mode is not told may be said to have less room than one that shows its mode.
        at_most = max(at_most, fullest.at_most)
    return Slots(at_least, at_most, _because(fullest, emptiest[0], at_most))


def _because(fullest: Slots, emptiest: Slots, at_most: int | None) -> str:
    if fullest.possible and not fullest.contradictory:
        return fullest.because or emptiest.because
    if at_most == 0:
        return emptiest.because if fullest.contradictory else fullest.because
    return "depends on which vGPUs run on it, which vCenter does not tell"
