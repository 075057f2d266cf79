"""Which vGPU profiles a GPU model has, and which of them may run on one GPU together. `gpuops profiles` shows it.

In same-size mode those of one size run together. In mixed-size mode the places decide, in MIG mode the GPU instances:
both follow from the catalogue by the rules of `capacity.py` and `model/devices/mig.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from gpuops.advise.capacity import Slots, slots_in_mode
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.mig import InstanceProfile, MigGeometry, fullest_sets
from gpuops.model.devices.vgpu import Verified, VgpuProfile


@dataclass(frozen=True, slots=True)
class MixedSize:
    """One size of vGPUs in mixed-size mode."""

    memory_mib: int
    most: int
    """vGPUs of this size alone on the GPU."""
    starts_gib: tuple[int, ...]
    """Where one may start; () = not published."""
    next_to_one: tuple[Slots, ...]
    """Next to one vGPU of this size: how many of each size of the GPU model, in the order of the sizes."""


@dataclass(frozen=True, slots=True)
class MigSets:
    """Which GPU instances exist together on one GPU in MIG mode, of those that vGPUs run in."""

    kinds: tuple[InstanceProfile, ...]
    """The largest first, without those that stand in `media_twins`."""
    fullest: tuple[tuple[int, ...], ...]
    """Every set that no instance can be added to: how many of each kind."""
    media_twins: tuple[tuple[InstanceProfile, InstanceProfile], ...]
    """A kind, and the one of the same size that owns the media engines: one instance of a set may be of the latter."""
    verified: Verified
    """How well slices and starts are known."""


@dataclass(frozen=True, slots=True)
class GpuProfiles:
    """The vGPU profiles of a GPU model."""

    board: Board
    time_sliced: tuple[VgpuProfile, ...]
    mig_backed: tuple[VgpuProfile, ...]
    mixed_sizes: tuple[MixedSize, ...]
    """The largest first; () = the GPU has no mixed-size mode, or nothing is published about it."""
    mig: MigSets | None
    """None = the GPU has no MIG mode."""


def profiles_of(board: Board) -> GpuProfiles:
    """Return the profiles of a GPU model, the largest first, and which of them may run together."""
    profiles = sorted(
        (*board.profiles, *board.nameless),
        key=lambda profile: (-(profile.compute_slices or 0), -profile.framebuffer_mib),
    )
    time_sliced = tuple(profile for profile in profiles if not profile.mig_backed)
    mig_backed = tuple(profile for profile in profiles if profile.mig_backed)
    mig = mig_sets(board.mig) if board.mig is not None else None
    return GpuProfiles(board, time_sliced, mig_backed, _mixed_sizes(board, time_sliced), mig)


def _mixed_sizes(board: Board, time_sliced: tuple[VgpuProfile, ...]) -> tuple[MixedSize, ...]:
    """Return each size that vGPUs have in mixed-size mode, and how many of each size fit next to one of it."""
    able = [profile for profile in time_sliced if profile.max_per_gpu_mixed is not None]
    # One profile stands for its size: what NVIDIA publishes about a size applies to every series.
    sizes = [next(alike) for _, alike in groupby(able, key=lambda profile: profile.framebuffer_mib)]
    mixed_sizes = []
    for size in sizes:
        next_to_one = [slots_in_mode(VgpuMode.MIXED_SIZE, board, (size,), other, (None,)) for other in sizes]
        mixed_sizes.append(
            MixedSize(size.framebuffer_mib, size.max_per_gpu_mixed or 0, size.placement_ids_mixed, tuple(next_to_one))
        )
    return tuple(mixed_sizes)


def mig_sets(geometry: MigGeometry) -> MigSets:
    """Return which GPU instances for vGPUs can exist together on one GPU."""
    usable = sorted(
        (kind for kind in geometry.profiles if kind.usable_for_vgpu),
        key=lambda kind: (-kind.compute_slices, -kind.memory_slices, kind.name),
    )
    twins = [(plain, kind) for kind in usable if kind.variant.owns_media and (plain := _plain_twin(kind, usable))]
    kinds = tuple(kind for kind in usable if all(kind is not media for _, media in twins))
    return MigSets(kinds, tuple(fullest_sets(kinds, geometry)), tuple(twins), geometry.verified)


def _plain_twin(media: InstanceProfile, kinds: list[InstanceProfile]) -> InstanceProfile | None:
    """Return the kind of the same slices and starts that does not own the media engines."""
    shape = (media.compute_slices, media.memory_slices, media.starts)
    plain = (kind for kind in kinds if not kind.variant.owns_media)
    return next((kind for kind in plain if (kind.compute_slices, kind.memory_slices, kind.starts) == shape), None)
