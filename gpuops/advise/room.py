"""How many more vGPUs of each profile fit on a GPU, with what may as well be elsewhere counted both ways.

A vGPU that may be on another GPU of the host takes a slot here in the worst case and none in the best; the room for
more is the range between.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.advise.capacity import Slots, free_slots
from gpuops.advise.occupancy import GpuState, may_run
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PhysicalGpu

_Alike = tuple[object, ...]


class Rooms:
    """Answers for many GPUs. Most GPUs of a fleet look like another one, so each kind is worked out once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[_Alike, Mapping[str, Slots]] = {}

    def on(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """Room for each of these profiles that the GPU's model may run, or may if its model is not known."""
        holders = None if state.holders is None else tuple(sorted(state.holders))
        certain = tuple(sorted(tenant.profile for tenant in state.tenants if tenant.certain))
        alike = (*_kind(state.gpu), holders, certain, profiles)
        found = self._known.get(alike)
        if found is None:
            found = {
                profile: self._room(state.gpu, holders, certain, profile)
                for profile in profiles
                if may_run(state.gpu, profile, self._catalog) is not False
            }
            self._known[alike] = found
        return found

    def _room(self, gpu: PhysicalGpu, holders: tuple[str, ...] | None, certain: tuple[str, ...], profile: str) -> Slots:
        fullest = free_slots(gpu, holders, profile, self._catalog)
        if holders is None or certain == holders:
            return fullest
        emptiest = free_slots(gpu, certain, profile, self._catalog)
        at_most = emptiest.at_most
        if at_most is not None and fullest.at_most is not None:
            # An empty GPU whose mode is not told may be said to have less room than one that shows its mode.
            at_most = max(at_most, fullest.at_most)
        return Slots(min(fullest.at_least, emptiest.at_least), at_most, fullest.because or emptiest.because)


def _kind(gpu: PhysicalGpu) -> _Alike:
    given = gpu.passthrough is not None and gpu.passthrough.active
    return (gpu.vendor_id, gpu.device_id, gpu.subsystem_id, gpu.name, gpu.graphics_type, gpu.vgpu_mode, given)
