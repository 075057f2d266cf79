"""Which MIG GPU instances a GPU can hold at the same time, and where they may start.

Starts and sizes are counted in memory slices: an eighth of the memory on the A100/H100 class, a quarter on A30, 8 GB on
RTX PRO 6000. A set of instances is legal when its placements do not overlap, at most one of them owns the media engines
(`+me`), and the compute slices suffice (NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles").
Where an instance starts matters: 3g at 0 leaves room for three single slices, 3g at 4 leaves four.

A named layout says which GPU instances or vGPUs GPUs are to have, by name and number, in the form of NVIDIA's tools for
Linux hosts: mig-parted (`mig-configs`) for GPU instances, vgpu-device-manager (`vgpu-configs`) for vGPU types. It has
one or more parts, each for some GPUs of a host and perhaps for some GPU models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from gpuops.model.devices.vgpu import Verified


class Variant(StrEnum):
    """What an instance owns beside its slices: the suffix of its name."""

    PLAIN = ""
    MEDIA = "+me"
    ALL_MEDIA = "+me.all"
    NO_MEDIA = "-me"
    GRAPHICS = "+gfx"

    @property
    def owns_media(self) -> bool:
        """Return whether it includes media engines that only one instance of a GPU can have."""
        return self in (Variant.MEDIA, Variant.ALL_MEDIA)


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """One kind of GPU instance: its slices and the places it may start at."""

    name: str
    """`3g.20gb`, `1g.5gb+me`."""
    id: int | None
    """GPU instance profile id of `nvidia-smi mig -lgip`."""
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    max_count: int
    """Of this kind alone on one GPU, as documented."""
    variant: Variant = Variant.PLAIN
    usable_for_vgpu: bool = True


@dataclass(frozen=True, slots=True)
class MigGeometry:
    """How a family of GPUs can be cut into GPU instances."""

    family: str
    max_instances: int
    compute_slices: int
    memory_slices: int
    profiles: tuple[InstanceProfile, ...]
    verified: Verified
    min_driver: str | None = None

    def profile(self, name: str) -> InstanceProfile | None:
        """Return the kind of GPU instance of that name."""
        return next((profile for profile in self.profiles if profile.name == name), None)


@dataclass(frozen=True, slots=True)
class InstancePlacement:
    """A GPU instance at its place."""

    profile: InstanceProfile
    start: int

    @property
    def end(self) -> int:
        """Return the first memory slice behind the instance."""
        return self.start + self.profile.memory_slices


def overlap(first: InstancePlacement, second: InstancePlacement) -> bool:
    """Return whether two instances would claim the same memory slice."""
    return first.start < second.end and second.start < first.end


def fits(placements: Sequence[InstancePlacement], geometry: MigGeometry) -> bool:
    """Return whether these instances can exist on one GPU at once, at these places."""
    return (
        len(placements) <= geometry.max_instances
        and sum(placement.profile.compute_slices for placement in placements) <= geometry.compute_slices
        and sum(placement.profile.variant.owns_media for placement in placements) <= 1
        and all(placement.start in placement.profile.starts for placement in placements)
        and not any(overlap(first, second) for first, second in combinations(placements, 2))
    )


def free_starts(
    profile: InstanceProfile, placed: Sequence[InstancePlacement], geometry: MigGeometry
) -> tuple[int, ...]:
    """Return every start at which one more instance of `profile` fits next to the placed ones.

    It is not assumed which of them the host takes (assumption: gpu-instance-start).
    """
    return tuple(start for start in profile.starts if fits((*placed, InstancePlacement(profile, start)), geometry))


def arrangements(profiles: Sequence[InstanceProfile], geometry: MigGeometry) -> Iterator[tuple[InstancePlacement, ...]]:
    """Yield every legal way to place exactly these instances, each once; nothing if they do not fit together."""
    # Equal profiles side by side, so that swapping two of them is not counted as another arrangement.
    ordered = sorted(profiles, key=lambda profile: (-profile.memory_slices, profile.name))
    yield from _arrange(ordered, (), geometry)


def fullest_sets(kinds: Sequence[InstanceProfile], geometry: MigGeometry) -> list[tuple[int, ...]]:
    """Return every set of GPU instances of these kinds to which no further one fits, as counts in their order.

    Each smaller set fits too. Example: on A30, of 4g, 2g and 1g: (1, 0, 0), (0, 2, 0), (0, 1, 2) and (0, 0, 4).
    """
    # each element: the number of instances of each kind; the search starts with the empty GPU
    fullest, to_extend = [], [(0,) * len(kinds)]
    known_counts = set(to_extend)
    while to_extend:
        counts = to_extend.pop()
        # one more instance of one of the kinds
        candidates = [(*counts[:at], count + 1, *counts[at + 1 :]) for at, count in enumerate(counts)]
        fitting = [larger for larger in candidates if larger in known_counts or _can_exist(kinds, larger, geometry)]
        if not fitting:
            fullest.append(counts)
        to_extend += [larger for larger in fitting if larger not in known_counts]
        known_counts.update(fitting)
    return sorted(fullest, reverse=True)


def _can_exist(kinds: Sequence[InstanceProfile], counts: Sequence[int], geometry: MigGeometry) -> bool:
    """Return whether a GPU can have so many instances of each kind at the same time."""
    instances = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    return next(arrangements(instances, geometry), None) is not None


def _arrange(
    remaining: Sequence[InstanceProfile], placed: tuple[InstancePlacement, ...], geometry: MigGeometry
) -> Iterator[tuple[InstancePlacement, ...]]:
    """Yield every way to add the remaining instances, sorted by profile, to the placed ones."""
    if not remaining:
        yield placed
        return
    profile = remaining[0]
    previous = placed[-1] if placed and placed[-1].profile == profile else None
    for start in free_starts(profile, placed, geometry):
        # equal profiles only in ascending order of their starts, so that each arrangement is found once
        if previous is None or start > previous.start:
            yield from _arrange(remaining[1:], (*placed, InstancePlacement(profile, start)), geometry)


class LayoutForm(StrEnum):
    """What a layout counts."""

    GPU_INSTANCES = "mig-configs"
    VGPUS = "vgpu-configs"


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """What some GPUs of a host are to have."""

    gpus: tuple[int, ...] | None
    """By their number on the host; None = all."""
    models: tuple[tuple[int, int], ...]
    """(vendor id, device id) of the GPU models that it is for; () = any."""
    counts: tuple[tuple[str, int], ...]
    """GPU instances or vGPU types by name, and how many of each."""
    is_mig_on: bool = True
    """False: MIG mode is off, and there are no GPU instances."""

    def is_for(self, model_ids: frozenset[tuple[int, int]]) -> bool:
        """Return whether the part applies to a GPU model with these (vendor id, device id) pairs."""
        return not self.models or not model_ids.isdisjoint(self.models)


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """A named layout of the GPUs of a host."""

    name: str
    form: LayoutForm
    parts: tuple[LayoutPart, ...]
    """A later part takes the place of an earlier one on the GPUs of both."""
