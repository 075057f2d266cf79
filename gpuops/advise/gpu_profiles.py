"""Which vGPU profiles a GPU model has, which of them may run on one GPU together, and which named layouts it can have.

`gpuops profiles` shows the profiles. In same-size mode, profiles of one size run together. In mixed-size mode their
start positions decide, in MIG mode their GPU instances: both follow from the catalogue by the rules of `capacity.py`
and `model/devices/mig.py`.

A layout has GPU instances or vGPUs. Instances are judged by the placements of the catalogue, vGPUs by the rules of
`capacity.py`: one after another is added to an empty GPU in the mode that the layout needs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from math import ceil
from typing import Final

from gpuops.advise.capacity import Slots, slots_in_mode, spread, starts_gb
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import (
    GpuLayout,
    InstancePlacement,
    InstanceProfile,
    LayoutForm,
    LayoutPart,
    MigGeometry,
    arrangements,
    free_starts,
    fullest_sets,
)
from gpuops.model.devices.vgpu import Verified, VgpuProfile, near
from gpuops.model.vcenter.host import Host


@dataclass(frozen=True, slots=True)
class MixedSize:
    """One size of vGPUs in mixed-size mode."""

    memory_mib: int
    most: int
    """How many vGPUs of this size fit on an empty GPU."""
    starts_gib: tuple[int, ...]
    """Where one may start; () = not published."""
    next_to_one: tuple[Slots, ...]
    """Next to one vGPU of this size: how many of each size of the GPU model, in the order of the sizes."""


@dataclass(frozen=True, slots=True)
class MigSets:
    """Which GPU instances for vGPUs can exist together on one GPU in MIG mode."""

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
    mixed_profiles = [profile for profile in time_sliced if profile.max_per_gpu_mixed is not None]
    # One profile stands for its size: what NVIDIA publishes about a size applies to every series.
    sizes = [next(profiles) for _, profiles in groupby(mixed_profiles, key=lambda profile: profile.framebuffer_mib)]
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
    # pairs of a kind without the media engines (1g.5gb) and the one with them (1g.5gb+me)
    twins = [(plain, kind) for kind in usable if kind.variant.owns_media and (plain := _plain_twin(kind, usable))]
    kinds = tuple(kind for kind in usable if all(kind is not media for _, media in twins))
    return MigSets(kinds, tuple(fullest_sets(kinds, geometry)), tuple(twins), geometry.verified)


def _plain_twin(media: InstanceProfile, kinds: list[InstanceProfile]) -> InstanceProfile | None:
    """Return the kind of the same slices and starts that does not own the media engines."""
    shape = (media.compute_slices, media.memory_slices, media.starts)
    plain = (kind for kind in kinds if not kind.variant.owns_media)
    return next((kind for kind in plain if (kind.compute_slices, kind.memory_slices, kind.starts) == shape), None)


_PART_OF_AN_INSTANCE: Final = re.compile(r"\d+c\.")


class LayoutVerdict(StrEnum):
    """Whether a GPU of the model can have the layout."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"
    """NVIDIA has not published where the vGPUs start, or whether they share a GPU instance."""
    OTHER_MODEL = "other model"
    """The part names other GPU models."""


@dataclass(frozen=True, slots=True)
class JudgedPart:
    """One part of a layout, on a GPU of the model that has nothing else on it."""

    part: LayoutPart
    verdict: LayoutVerdict
    because: str = ""
    """Why it does not fit, or why that is not known."""
    mode: VgpuMode | None = None
    """The mode that the GPU needs; None = it does not fit, or the part only switches MIG mode off."""
    free: Mapping[str, Slots] | None = None
    """How many more of each GPU instance, or of each vGPU profile, would fit; None = the part does not fit, or not
    known."""


@dataclass(frozen=True, slots=True)
class JudgedLayout:
    """A layout on GPUs of a model."""

    layout: GpuLayout
    parts: tuple[JudgedPart, ...]

    @property
    def verdict(self) -> LayoutVerdict:
        """Return the worst verdict of its parts; `OTHER_MODEL` only if all parts are for other models."""
        verdicts = [part.verdict for part in self.parts]
        worst = (LayoutVerdict.DOES_NOT_FIT, LayoutVerdict.UNKNOWN, LayoutVerdict.FITS)
        return next((verdict for verdict in worst if verdict in verdicts), LayoutVerdict.OTHER_MODEL)


def judge_layout(layout: GpuLayout, board: Board) -> JudgedLayout:
    """Return whether a GPU of the model can have the instances or vGPUs of each part of the layout."""
    return JudgedLayout(layout, tuple(judge_part(part, layout.form, board) for part in layout.parts))


def part_for(layout: GpuLayout, gpu: PhysicalGpu, host: Host) -> LayoutPart | None:
    """Return the part of the layout for this GPU: the last one that names it.

    GPUs are numbered as by nvidia-smi on the host: by PCI address, without those in passthrough. `gpu` is none of them.
    """
    number = sorted(host_gpu.address for host_gpu in host.gpus if not host_gpu.passed_through).index(gpu.address)
    model = frozenset({(gpu.vendor_id, gpu.device_id)})
    parts = [part for part in layout.parts if part.is_for(model) and (part.gpus is None or number in part.gpus)]
    return parts[-1] if parts else None


def judge_part(part: LayoutPart, form: LayoutForm, board: Board) -> JudgedPart:
    """Return whether a GPU of the model can have the instances or vGPUs of this part."""
    if not part.is_for(frozenset((pci.vendor_id, pci.device_id) for pci in board.pci_ids)):
        return JudgedPart(part, LayoutVerdict.OTHER_MODEL)
    if not part.is_mig_on:
        return JudgedPart(part, LayoutVerdict.FITS)
    if form is LayoutForm.VGPUS:
        return _judge_vgpus(part, board)
    if board.mig is None:
        return _misfit(part, f"{board.name} has no MIG mode")
    return _judge_instances(part, board.mig, board)


def _misfit(part: LayoutPart, because: str) -> JudgedPart:
    return JudgedPart(part, LayoutVerdict.DOES_NOT_FIT, because)


def _judge_instances(part: LayoutPart, geometry: MigGeometry, board: Board) -> JudgedPart:
    """Return whether the part's GPU instances fit on one GPU of this model, and which others still fit then."""
    instances: list[InstanceProfile] = []
    for name, number in part.counts:
        kind = geometry.profile(name)
        if kind is None or not kind.usable_for_vgpu:
            return _misfit(part, _why_not_an_instance(name, kind, geometry, board))
        instances += [kind] * number
    for count, kind in enumerate(instances):  # one more each time, to name the first that does not fit
        if next(arrangements(instances[: count + 1], geometry), None) is None:
            return _misfit(part, _no_place(kind.name, [instance.name for instance in instances[:count]]))
    usable = [kind for kind in geometry.profiles if kind.usable_for_vgpu]
    free = {kind.name: slots for kind in usable if (slots := _room_for(kind, instances, geometry)).possible}
    return JudgedPart(part, LayoutVerdict.FITS, mode=VgpuMode.MULTI_INSTANCE, free=free)


def _why_not_an_instance(name: str, kind: InstanceProfile | None, geometry: MigGeometry, board: Board) -> str:
    usable = ", ".join(usable_kind.name for usable_kind in geometry.profiles if usable_kind.usable_for_vgpu)
    if kind is not None:
        return f"no vGPU runs in a GPU instance {name}; vGPUs of {board.name} run in: {usable}"
    if _PART_OF_AN_INSTANCE.match(name):
        return f"{name} is a compute instance, a part of a GPU instance; a vGPU has all of a GPU instance: {usable}"
    return f"{board.name} has no GPU instance {name}; it has: {usable}"


def _no_place(name: str, neighbours: Sequence[str]) -> str:
    counts = {neighbour: neighbours.count(neighbour) for neighbour in dict.fromkeys(neighbours)}
    listed = " and ".join(f"{number} x {neighbour}" for neighbour, number in counts.items())
    return f"no place for a {name} next to {listed}"


def _room_for(kind: InstanceProfile, instances: Sequence[InstanceProfile], geometry: MigGeometry) -> Slots:
    """Return how many more GPU instances of a kind fit next to these, over every way in which these may lie."""
    rooms = [_count_further(kind, placed, geometry) for placed in arrangements(instances, geometry)]
    return Slots(min(rooms), max(rooms))


def _count_further(kind: InstanceProfile, placed: tuple[InstancePlacement, ...], geometry: MigGeometry) -> int:
    """Return how many more of the kind fit. Starts of one kind never overlap, so each takes the first that is free."""
    starts = free_starts(kind, placed, geometry)
    return 1 + _count_further(kind, (*placed, InstancePlacement(kind, starts[0])), geometry) if starts else 0


def _judge_vgpus(part: LayoutPart, board: Board) -> JudgedPart:
    """Return whether the part's vGPUs fit on one GPU of this model, in which mode, and which others still fit then."""
    by_name = dict(_profile_names(board))
    unknown = next((name for name, _ in part.counts if _spell_name(name) not in by_name), None)
    if unknown is not None:
        similar = near(_spell_name(unknown), [profile.name for profile in board.profiles])
        suggestion = f"; near: {', '.join(similar)}" if similar else ""
        return _misfit(part, f"{board.name} has no vGPU type {unknown}{suggestion}")
    vgpus = _vgpus_of(part, board)
    mode = _mode_for(vgpus)
    if mode is None:
        return _misfit(part, "time-sliced and MIG-backed vGPUs never run on one GPU")
    if mode is VgpuMode.MIXED_SIZE and board.mixed_size_mode is False:
        return _misfit(part, f"{board.name} has no mixed-size mode, and these vGPUs are of several sizes")
    for count, vgpu in enumerate(vgpus):  # one more each time, to name the first that does not fit
        verdict, because = _next_fits(vgpu, vgpus[:count], mode, board)
        if verdict is not LayoutVerdict.FITS:
            return JudgedPart(part, verdict, because)
    if mode is VgpuMode.MULTI_INSTANCE and not _fit_unshared(vgpus, board):
        because = "whether vGPUs of several series share a GPU instance is not documented"
        return JudgedPart(part, LayoutVerdict.UNKNOWN, because)
    # the further profiles that a GPU in this mode can run
    is_mig = mode is VgpuMode.MULTI_INSTANCE
    profiles_in_mode = [profile for profile in board.profiles if profile.mig_backed is is_mig]
    starts = (None,) * len(vgpus)  # not known
    rooms = {profile.name: slots_in_mode(mode, board, vgpus, profile, starts) for profile in profiles_in_mode}
    free = {name: room for name, room in rooms.items() if room.possible}
    return JudgedPart(part, LayoutVerdict.FITS, mode=mode, free=free)


def instances_of(part: LayoutPart, form: LayoutForm, board: Board) -> tuple[str, ...]:
    """Return the names of the GPU instances of a part that fits the model; of vGPUs those that they run in."""
    if form is LayoutForm.GPU_INSTANCES:
        return tuple(name for name, number in part.counts for _ in range(number))
    return _instances_for(_vgpus_of(part, board), shared_by_series=True)


def _instances_for(vgpus: Iterable[VgpuProfile], *, shared_by_series: bool) -> tuple[str, ...]:
    """Return the fewest GPU instances that these MIG-backed vGPUs run in.

    `shared_by_series`: vGPUs of one size share an instance; otherwise only vGPUs of one profile do. Which of the two is
    true is not documented (`capacity.py`).
    """
    # key: GPU instance, vGPU size, vGPUs that share one instance, and the vGPU profile if only equal ones share
    counts = Counter(
        (vgpu.mig_profile or "", vgpu.framebuffer_mib, vgpu.max_per_gpu_instance or 1, shared_by_series or vgpu.name)
        for vgpu in vgpus
    )
    instances: list[str] = []
    for (instance, _, per_instance, _), number in counts.items():
        instances += [instance] * ceil(number / per_instance)
    return tuple(instances)


def _vgpus_of(part: LayoutPart, board: Board) -> list[VgpuProfile]:
    by_name = dict(_profile_names(board))
    return [by_name[_spell_name(name)] for name, number in part.counts for _ in range(number)]


def _fit_unshared(vgpus: Iterable[VgpuProfile], board: Board) -> bool:
    """Return whether they fit if only vGPUs of one profile share a GPU instance."""
    if board.mig is None:
        return False
    kinds = [board.mig.profile(name) for name in _instances_for(vgpus, shared_by_series=False)]
    instances = [kind for kind in kinds if kind is not None]
    return len(instances) == len(kinds) and next(arrangements(instances, board.mig), None) is not None


def _profile_names(board: Board) -> Iterator[tuple[str, VgpuProfile]]:
    """Yield each name of each profile of a GPU model: those of NVIDIA's driver and the one that hosts use."""
    for profile in (*board.profiles, *board.nameless):
        for name in filter(None, (profile.short_name, profile.full_name, profile.name)):
            yield _spell_name(name), profile


def _spell_name(name: str) -> str:
    return "_".join(name.lower().split())


def _mode_for(vgpus: Sequence[VgpuProfile]) -> VgpuMode | None:
    """Return the mode in which a GPU may run all of these; None = no mode can."""
    if len({vgpu.mig_backed for vgpu in vgpus}) > 1:
        return None
    if any(vgpu.mig_backed for vgpu in vgpus):
        return VgpuMode.MULTI_INSTANCE
    return VgpuMode.MIXED_SIZE if len({vgpu.framebuffer_mib for vgpu in vgpus}) > 1 else VgpuMode.SAME_SIZE


def _next_fits(
    vgpu: VgpuProfile, neighbours: Sequence[VgpuProfile], mode: VgpuMode, board: Board
) -> tuple[LayoutVerdict, str]:
    """Return whether one more vGPU fits next to these neighbours in at least one arrangement, and why not."""
    room = slots_in_mode(mode, board, neighbours, vgpu, (None,) * len(neighbours))
    if room.at_most == 0:
        return LayoutVerdict.DOES_NOT_FIT, _no_place(vgpu.name, [neighbour.name for neighbour in neighbours])
    if mode is VgpuMode.MIXED_SIZE:
        shapes = tuple(map(starts_gb, neighbours))
        is_known = vgpu.placement_ids_mixed and all(shape.starts for shape in shapes)
        if not is_known or spread(starts_gb(vgpu), shapes) is None:
            return LayoutVerdict.UNKNOWN, f"where {vgpu.name} and the vGPUs next to it start is not known"
    if room.at_most is None:
        return LayoutVerdict.UNKNOWN, room.because
    return LayoutVerdict.FITS, ""
