"""Boards of the catalogue, as the simulated ESXi knows them."""

from __future__ import annotations

from functools import cache

from gpuops.catalog import load
from gpuops.errors import PolicyError
from gpuops.model import catalog
from gpuops.model.catalog import Generation
from gpuops.model.mig import InstanceProfile, MigGeometry
from gpuops.model.vgpu import VgpuProfile
from gpuops.sim.board import Board, GpuInstance, VgpuType

CAREFUL = (Generation.HOPPER, Generation.BLACKWELL)
"""Where ESXi keeps large GPU instances possible (Denneman on MIG placement names Hopper; Blackwell is from memory)."""


@cache
def board(key: str) -> Board:
    """The board of a catalogue key such as `a100`. Raises PolicyError when there is none."""
    found = load(boards=[key]).board(key)
    if found is None:
        raise PolicyError(f"no GPU {key!r} in the catalogue", hint="the keys are the file names in gpuops/catalog/gpus")
    identity = found.pci_ids[0]
    return Board(
        name=found.name,
        device_id=identity.device_id,
        subsystem_id=identity.subsystem_ids[0] if identity.subsystem_ids else identity.device_id,
        framebuffer_mib=found.framebuffer_mib,
        types=tuple(_type(found, profile) for profile in found.profiles),
        mixed_size=found.mixed_size_mode is True,
        careful_instances=found.generation in CAREFUL,
        nvlink_types=tuple(profile.name for profile in found.profiles if _is_linked(found, profile)),
    )


def _type(found: catalog.Board, profile: VgpuProfile) -> VgpuType:
    return VgpuType(
        name=profile.name,
        framebuffer_mib=profile.framebuffer_mib,
        series=profile.series.value,
        max_per_gpu=profile.max_per_gpu,
        max_per_vm=profile.max_per_vm,
        starts_gib=profile.placement_ids_mixed,
        instance=_instance(found.mig, profile.mig_profile),
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


def _is_linked(found: catalog.Board, profile: VgpuProfile) -> bool:
    linked = {*found.nvlink_profiles, *found.nvswitch_profiles}
    return profile.name in linked or profile.short_name in linked
