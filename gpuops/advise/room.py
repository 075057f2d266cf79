"""How many more vGPUs of each profile fit on a GPU if it is not certain which vGPUs run on it.

A vGPU that may be on another GPU of the host takes a slot here in the worst case and none in the best; the room for
more is the range between. A place is promised only by the worst case. If all vGPUs that may be here are more than the
GPU can hold, some of them are elsewhere, and the vGPUs that are certainly here bound the room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuops.advise.capacity import Slots, free_slots
from gpuops.advise.occupancy import GpuState, may_run
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu

_Alike = tuple[object, ...]
_Sets = tuple[tuple[str, ...], ...]


def room_for(state: GpuState, profile: str, catalog: Catalog) -> Slots:
    """Return the room for more vGPUs of the profile if all vGPUs that may be on the GPU are on it.

    If these are more than it can hold, the range of room between the certain ones and all of them.
    """
    fullest = free_slots(state.gpu, state.holders, profile, catalog, state.starts)
    if not fullest.contradictory:
        return fullest
    return _between(state.gpu, state.holders, state.starts, state.fewest, profile, catalog)


def range_of_room(state: GpuState, profile: str, catalog: Catalog) -> Slots:
    """Return the room for more vGPUs of the profile: the least and the most over all ways in which vGPUs may lie
    there."""
    return _between(state.gpu, state.holders, state.starts, state.fewest, profile, catalog)


class Rooms:
    """The room on many GPUs. Most GPUs of a fleet are alike, so it is computed once for each kind of GPU."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rooms_by_kind: dict[_Alike, Mapping[str, Slots]] = {}

    def on(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """Return the range of room for each of these profiles that the GPU's model can run, or may be able to run."""
        # The order of the vGPUs does not matter: sorted, more GPUs are alike.
        vgpus = sorted(((tenant.profile, tenant.start) for tenant in state.tenants), key=str)
        holders = None if state.holders is None else tuple(holder for holder, _ in vgpus)
        starts, fewest = tuple(start for _, start in vgpus), state.fewest
        kind = (*state.gpu.admission_traits, holders, starts, fewest, profiles)
        return self._of_kind(
            kind,
            state.gpu,
            profiles,
            lambda profile: _between(state.gpu, holders, starts, fewest, profile, self._catalog),
        )

    def thought_full(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """Return `room_for` each of these profiles that the GPU's model can run, or may be able to run."""
        kind = ("thought full", *state.gpu.admission_traits, state.holders, state.starts, state.fewest, profiles)
        return self._of_kind(kind, state.gpu, profiles, lambda profile: room_for(state, profile, self._catalog))

    def _of_kind(
        self, kind: _Alike, gpu: PhysicalGpu, profiles: tuple[str, ...], room: Callable[[str], Slots]
    ) -> Mapping[str, Slots]:
        if kind not in self._rooms_by_kind:
            able = [profile for profile in profiles if may_run(gpu, profile, self._catalog) is not False]
            self._rooms_by_kind[kind] = {profile: room(profile) for profile in able}
        return self._rooms_by_kind[kind]


def _between(
    gpu: PhysicalGpu,
    holders: tuple[str, ...] | None,
    starts: tuple[int | None, ...],
    fewest: _Sets,
    profile: str,
    catalog: Catalog,
) -> Slots:
    """Return the range of room between the fullest GPU (all `holders` run on it) and the emptiest (`fewest`)."""
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
        # For an empty GPU whose mode is not reported, less room may be known than for one whose vGPUs show its mode.
        at_most = max(at_most, fullest.at_most)
    return Slots(at_least, at_most, _because(fullest, emptiest[0], at_most))


def _because(fullest: Slots, emptiest: Slots, at_most: int | None) -> str:
    if fullest.possible and not fullest.contradictory:
        return fullest.because or emptiest.because
    if at_most == 0:
        return emptiest.because if fullest.contradictory else fullest.because
    return "depends on which vGPUs run on it, which vCenter does not tell"
