"""Fillings: every way in which the vGPUs of a queue fill one GPU, beside what runs on it already.

Found by asking the exact rules step by step, so that whatever mode the GPU is in, a filling is what `seat` admits when
its vGPUs are started in the order given here: largest first, which for GPU instances and placement ids is also the
order in which the fewest starts are in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.advise.occupancy import GpuState, Tenant, may_run
from gpuops.advise.room import room_for
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PhysicalGpu
from gpuops.plan.placement.gpus import serves_no_vgpus

Filling = tuple[tuple[str, int], ...]
"""(profile, how many more of it), in the order of starting."""

_MOST_LOOKED_AT: Final = 600
"""Ten sizes mixed on one GPU have thousands of fillings: the first hundreds will do."""


def in_order_of_filling(profiles: Sequence[str], catalog: Catalog) -> tuple[str, ...]:
    """The profiles, those that are hardest to place first."""

    def rank(name: str) -> tuple[int, int, str]:
        facts = catalog.profile(name)
        return (0, 0, name) if facts is None else (-facts.framebuffer_mib, -(facts.compute_slices or 0), name)

    return tuple(sorted(set(profiles), key=rank))


@dataclass(frozen=True, slots=True)
class Fillings:
    """Of GPUs, by profiles in their order of filling. `certain`: only what is sure to start; else all that might."""

    profiles: tuple[str, ...]
    catalog: Catalog
    certain: bool = True
    _known: dict[tuple[object, ...], tuple[Filling, ...]] = field(default_factory=dict)

    def of(self, state: GpuState) -> tuple[Filling, ...]:
        """The maximal ones, each once; none = it takes no vGPU of these profiles."""
        if serves_no_vgpus(state.gpu, "") is not None or (self.certain and state.unclear):
            return ()
        if state.unclear:
            state = GpuState(state.gpu)
        alike = (_kind(state.gpu), tuple(sorted(state.holders or ())), state.fewest)
        if alike not in self._known:
            self._known[alike] = self._worked_out(state)
        return self._known[alike]

    def _worked_out(self, state: GpuState) -> tuple[Filling, ...]:
        profiles = tuple(name for name in self.profiles if may_run(state.gpu, name, self.catalog) is True)
        found: dict[tuple[int, ...], None] = {}
        looked_at = [0]
        self._extend(state, profiles, (), found, looked_at)
        if looked_at[0] >= _MOST_LOOKED_AT:
            alone = [len(self._chain(state, profile)) - 1 for profile in profiles]
            if self.certain:
                found |= {tuple(n if at == own else 0 for at in range(len(alone))): None for own, n in enumerate(alone)}
            else:
                found = {tuple(alone): None}  # each as often as if it were alone: no filling has more of any
        return tuple(
            tuple((name, count) for name, count in zip(profiles, counts, strict=True) if count)
            for counts in _maximal(list(found))
            if any(counts)
        )

    def _extend(
        self,
        state: GpuState,
        profiles: Sequence[str],
        counts: tuple[int, ...],
        found: dict[tuple[int, ...], None],
        looked_at: list[int],
    ) -> None:
        """Add each number of the next profile that there is room for, most first, and go on with the others."""
        looked_at[0] += 1
        if len(counts) == len(profiles):
            found[counts] = None
            return
        states = self._chain(state, profiles[len(counts)])
        for number in range(len(states) - 1, -1, -1):
            if looked_at[0] < _MOST_LOOKED_AT or number == 0:
                self._extend(states[number], profiles, (*counts, number), found, looked_at)

    def _chain(self, state: GpuState, profile: str) -> list[GpuState]:
        """The GPU as it is, with one more of the profile, with two more, until there is no room."""
        states = [state]
        while self._room(states[-1], profile):
            states.append(states[-1].with_tenants(Tenant("", "", profile)))
        return states

    def _room(self, state: GpuState, profile: str) -> bool:
        slots = room_for(state, profile, self.catalog)
        if self.certain:
            return slots.at_least > 0
        facts = self.catalog.profile(profile)
        most = facts.max_per_gpu if facts is not None else 0
        return slots.possible and len(state.tenants) < max(most, slots.at_most or 0) + len(state.gpu.vms or ())


def _maximal(counts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that no other has all of."""
    kept: list[tuple[int, ...]] = []
    for one in sorted(counts, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(one, other, strict=True)) for other in kept):
            kept.append(one)
    return kept


def _kind(gpu: PhysicalGpu) -> tuple[object, ...]:
    return (gpu.vendor_id, gpu.device_id, gpu.subsystem_id, gpu.graphics_type, gpu.vgpu_mode)
