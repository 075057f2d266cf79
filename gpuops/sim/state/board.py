"""The GPU boards of the catalogue as a simulated host knows them: vGPU types, GPU modes and GPU instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property

from gpuops.catalog import load
from gpuops.errors import PolicyError
from gpuops.model.devices import catalog
from gpuops.model.devices.catalog import Generation
from gpuops.model.devices.mig import InstanceProfile, MigGeometry
from gpuops.model.devices.vgpu import VgpuProfile

Shape = tuple[int, tuple[int, ...]]
"""(size, possible starts) of a vGPU on a GPU, in GiB or in memory slices."""


class Sharing(StrEnum):
    """How vGPUs of a type share a GPU."""

    TIME_SLICED = "timeSliced"
    MIG = "mig"


class GpuMode(StrEnum):
    """What a GPU takes now (vSphere API 8.0.3, HostGraphicsInfo.vgpuMode)."""

    NONE = "none"
    SAME_SIZE = "sameSize"
    MIXED_SIZE = "mixedSize"
    MULTI_INSTANCE = "multiInstanceGpu"


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A MIG GPU instance profile and its starts, in memory slices (NVIDIA MIG User Guide, `nvidia-smi mig -lgipp`).

    `media`: it owns the media engines; a GPU takes at most one such instance.
    """

    name: str
    size: int
    starts: tuple[int, ...]
    media: bool = False


@dataclass(frozen=True, slots=True)
class VgpuType:
    """One vGPU type of a board, by the name ESXi shows (`grid_a100-3-20c`)."""

    name: str
    framebuffer_mib: int
    series: str
    """A, B, Q or C."""
    max_per_gpu: int
    max_per_vm: int | None = None
    """The driver's limit; None = unknown."""
    starts_gib: tuple[int, ...] = ()
    """Placement ids in mixed-size mode, in GiB; empty = not allowed there."""
    instance: GpuInstance | None = None
    """The GPU instance a MIG-backed type runs in; None = time-sliced."""
    max_per_instance: int = 1

    @property
    def sharing(self) -> Sharing:
        return Sharing.TIME_SLICED if self.instance is None else Sharing.MIG

    @property
    def size_gib(self) -> int:
        """The frame buffer in whole GiB, at least 1, as mixed-size placement counts it."""
        return max(1, self.framebuffer_mib // 1024)


@dataclass(frozen=True)
class GpuBoard:
    """One GPU model. Not slotted: the index of types is built once."""

    name: str
    device_id: int
    subsystem_id: int
    framebuffer_mib: int
    types: tuple[VgpuType, ...]
    mixed_size: bool = False
    """Whether the GPU has the mixed-size mode (Ampere and later: NVIDIA AI Enterprise 6)."""
    careful_instances: bool = False
    """Whether ESXi keeps large GPU instances possible when it places small ones (Hopper and later)."""
    nvlink_types: tuple[str, ...] = field(default=())
    """Types that can be peers over NVLink in one VM: members of a device group."""

    @cached_property
    def by_name(self) -> Mapping[str, VgpuType]:
        return {type_.name: type_ for type_ in self.types}

    def types_in(self, mode: GpuMode) -> tuple[VgpuType, ...]:
        """The types a GPU of this model supports in that mode."""
        return self._by_mode[mode]

    def runs(self, type_: VgpuType, mode: GpuMode) -> bool:
        """Return whether a GPU of this model runs the type in that mode."""
        return type_.name in self._names_by_mode[mode]

    @cached_property
    def mixed_shapes(self) -> frozenset[Shape]:
        """The sizes and possible starts of its types in mixed-size mode."""
        return frozenset((type_.size_gib, type_.starts_gib) for type_ in self.types_in(GpuMode.MIXED_SIZE))

    @cached_property
    def _names_by_mode(self) -> Mapping[GpuMode, frozenset[str]]:
        return {mode: frozenset(type_.name for type_ in types) for mode, types in self._by_mode.items()}

    @cached_property
    def _by_mode(self) -> Mapping[GpuMode, tuple[VgpuType, ...]]:
        return {mode: self._types_in(mode) for mode in GpuMode}

    def _types_in(self, mode: GpuMode) -> tuple[VgpuType, ...]:
        if mode is GpuMode.MULTI_INSTANCE:
            return tuple(type_ for type_ in self.types if type_.sharing is Sharing.MIG)
        time_sliced_types = tuple(type_ for type_ in self.types if type_.sharing is Sharing.TIME_SLICED)
        if mode is GpuMode.MIXED_SIZE:
            return tuple(type_ for type_ in time_sliced_types if type_.starts_gib)
        return time_sliced_types if mode is GpuMode.SAME_SIZE else ()


CAREFUL = (Generation.HOPPER, Generation.BLACKWELL)
"""Generations on which ESXi keeps large GPU instances possible (Denneman on MIG: Hopper; Blackwell from memory)."""


@cache
def board(key: str) -> GpuBoard:
    """Return the GPU board of a catalogue key such as `a100`. Raises PolicyError for an unknown key."""
    catalog_board = load(boards=[key]).board(key)
    if catalog_board is None:
        raise PolicyError(
            f"no GPU {key!r} in the catalogue",
            hint="use the name of a file in gpuops/catalog/gpus without .yaml, such as a100",
        )
    identity = catalog_board.pci_ids[0]
    return GpuBoard(
        name=catalog_board.name,
        device_id=identity.device_id,
        subsystem_id=identity.subsystem_ids[0] if identity.subsystem_ids else identity.device_id,
        framebuffer_mib=catalog_board.framebuffer_mib,
        types=tuple(_type(catalog_board, profile) for profile in catalog_board.profiles),
        mixed_size=catalog_board.mixed_size_mode is True,
        careful_instances=catalog_board.generation in CAREFUL,
        nvlink_types=tuple(profile.name for profile in catalog_board.profiles if _is_linked(catalog_board, profile)),
    )


def _type(catalog_board: catalog.Board, profile: VgpuProfile) -> VgpuType:
    return VgpuType(
        name=profile.name,
        framebuffer_mib=profile.framebuffer_mib,
        series=profile.series.value,
        max_per_gpu=profile.max_per_gpu,
        max_per_vm=profile.max_per_vm,
        starts_gib=profile.placement_ids_mixed,
        instance=_instance(catalog_board.mig, profile.mig_profile),
        max_per_instance=profile.max_per_gpu_instance or 1,
    )


def _instance(geometry: MigGeometry | None, name: str | None) -> GpuInstance | None:
    if geometry is None or name is None:
        return None
    profile = geometry.profile(name)
    assert profile is not None, f"{geometry.family} has no GPU instance {name}"
    return _gpu_instance(profile)


@cache
def _gpu_instance(profile: InstanceProfile) -> GpuInstance:
    return GpuInstance(profile.name, profile.memory_slices, profile.starts, profile.variant.owns_media)


def _is_linked(catalog_board: catalog.Board, profile: VgpuProfile) -> bool:
    linked = {*catalog_board.nvlink_profiles, *catalog_board.nvswitch_profiles}
    return profile.name in linked or profile.short_name in linked
