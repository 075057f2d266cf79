"""Every way in which the vGPUs of a queue can be laid out on one GPU, beside what runs on it already.

`model.py` calls it. The layouts come from the exact rules, asked step by step, so whatever mode the GPU is in, a layout
is what a power-on admits when its vGPUs are started in the order given here: largest first. For GPU instances and
placement ids that is also the order in which the fewest starts are in doubt. Where the starts are expected
(`expected_starts.py`), layouts for smallest first are found too.

Example: an empty A40 in same-size mode and the profiles 8q and 24q give two layouts: six of 8q, or two of 24q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import GpuState, Tenant, may_run
from gpuops.advise.room import room_for
from gpuops.model.devices.catalog import Catalog
from gpuops.plan.placement.gpu_filters import refuse_vgpus

VgpuLayout = tuple[tuple[str, int], ...]
"""(profile, number of further vGPUs of it), in the order of starting."""

_MOST_STATES: Final = 600
"""Limit of the search: ten sizes mixed on one GPU have thousands of layouts, and the first hundreds are enough."""


def hardest_first(profiles: Sequence[str], catalog: Catalog) -> tuple[str, ...]:
    """The profiles, each once, the hardest to place first: by memory, then by slices of a GPU instance."""

    def rank(name: str) -> tuple[int, int, str]:
        facts = catalog.profile(name)
        return (0, 0, name) if facts is None else (-facts.framebuffer_mib, -(facts.compute_slices or 0), name)

    return tuple(sorted(set(profiles), key=rank))


@dataclass(frozen=True, slots=True)
class VgpuLayouts:
    """The layouts of GPUs for these profiles, hardest first. `certain`: only what surely starts; else all that
    might."""

    profiles: tuple[str, ...]
    catalog: Catalog
    certain: bool = True
    _cached_layouts: dict[tuple[object, ...], tuple[VgpuLayout, ...]] = field(default_factory=dict)

    def of(self, state: GpuState) -> tuple[VgpuLayout, ...]:
        """The maximal layouts of the GPU, each once; none = it takes no vGPU of these profiles."""
        if refuse_vgpus(state.gpu, "") is not None or (self.certain and state.unclear):
            return ()
        if state.unclear:
            state = GpuState(state.gpu)
        tenant_starts = tuple(sorted((tenant.profile, str(tenant.start)) for tenant in state.tenants))
        alike = (state.gpu.admission_traits, state.gpu.vgpus is None, tenant_starts, state.fewest)
        if alike not in self._cached_layouts:
            self._cached_layouts[alike] = self._worked_out(state)
        return self._cached_layouts[alike]

    def _worked_out(self, state: GpuState) -> tuple[VgpuLayout, ...]:
        # 1. All numbers of each profile that fit together, found depth first.
        profiles = tuple(name for name in self.profiles if may_run(state.gpu, name, self.catalog) is True)
        counts_found: dict[tuple[int, ...], None] = {}
        states_tried = [0]
        self._extend(state, profiles, (), counts_found, states_tried)
        if self.certain and state.gpu.vgpus is not None:
            # Where the starts are expected, the other order reaches others: on Ampere 1g, 1g, 2g and then 3g.
            smallest_first: dict[tuple[int, ...], None] = {}
            self._extend(state, profiles[::-1], (), smallest_first, states_tried)
            counts_found |= {counts[::-1]: None for counts in smallest_first}
        if states_tried[0] >= _MOST_STATES:
            # 2. The limit was reached: layouts of one profile alone are added; for a bound one that exceeds them all.
            alone = [len(self._chain(state, profile)) - 1 for profile in profiles]
            if self.certain:
                counts_found |= {
                    tuple(n if index == position else 0 for index in range(len(alone))): None
                    for position, n in enumerate(alone)
                }
            else:
                counts_found = {tuple(alone): None}
        # 3. Only maximal layouts: a smaller one needs no variable of its own, since slots need not be used.
        return tuple(
            tuple((name, count) for name, count in zip(profiles, counts, strict=True) if count)
            for counts in _maximal(list(counts_found))
            if any(counts)
        )

    def _extend(
        self,
        state: GpuState,
        profiles: Sequence[str],
        counts: tuple[int, ...],
        counts_found: dict[tuple[int, ...], None],
        states_tried: list[int],
    ) -> None:
        """Try each number of the next profile that there is room for, most first, and go on with the other profiles."""
        states_tried[0] += 1
        if len(counts) == len(profiles):
            counts_found[counts] = None
            return
        states = self._chain(state, profiles[len(counts)])
        for number in range(len(states) - 1, -1, -1):
            if states_tried[0] < _MOST_STATES or number == 0:
                self._extend(states[number], profiles, (*counts, number), counts_found, states_tried)

    def _chain(self, state: GpuState, profile: str) -> list[GpuState]:
        """The GPU with no, one, two and more further vGPUs of the profile, until there is no room."""
        states = [state]
        while self._room(states[-1], profile):
            tenant = Tenant("", "", profile)
            next_state = (
                with_expected(states[-1], tenant, self.catalog) if self.certain else states[-1].with_tenants(tenant)
            )
            states.append(next_state)
        return states

    def _room(self, state: GpuState, profile: str) -> bool:
        slots = room_for(state, profile, self.catalog)
        if self.certain:
            return slots.at_least > 0
        facts = self.catalog.profile(profile)
        most = facts.max_per_gpu if facts is not None else 0
        return slots.possible and len(state.tenants) < max(most, slots.at_most or 0) + len(state.gpu.vms or ())


def _maximal(counts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The counts that no other contains. (2, 0), (1, 0) and (0, 1) leave (2, 0) and (0, 1)."""
    maximal: list[tuple[int, ...]] = []
    for candidate in sorted(counts, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(candidate, larger, strict=True)) for larger in maximal):
            maximal.append(candidate)
    return maximal
