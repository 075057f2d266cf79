"""Where on a GPU a host is expected to start one more vGPU, if it is known where the running ones lie.

Placement uses it for the vGPUs that a plan starts; where running vGPUs lie is read. The rules, by mode of the GPU:

* mixed size: the free start that leaves the most starts of all sizes free (NVIDIA AI Enterprise, vGPU for Compute);
* MIG, Hopper and later: the same, so that large GPU instances stay possible (F. Denneman, "Architecting AI
  Infrastructure": a 3g goes to slice 4 first); Ampere: the lowest free start;
* ties go to the lowest start (from memory, not documented).

A host that chooses otherwise may refuse a later power-on of the same plan, which then ends with the host's reason; the
next read of its nvidia-smi shows the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from gpuops.advise.capacity import free_slots, instance_of, share_an_instance, slices, starts_gb
from gpuops.advise.occupancy import GpuState, Tenant
from gpuops.advise.spread import Shape
from gpuops.model.devices.catalog import Board, Catalog, Generation
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.vgpu import VgpuProfile

_KEEP_LARGE_POSSIBLE = (Generation.HOPPER, Generation.BLACKWELL)


def with_expected(state: GpuState, tenant: Tenant, catalog: Catalog) -> GpuState:
    """Return the GPU with this vGPU too, where the host is expected to let it start."""
    return state.with_tenants(replace(tenant, start=expected_start(state, tenant.profile, catalog)))


def expected_start(state: GpuState, profile: str, catalog: Catalog) -> int | None:
    """Return the memory slice at which the host is expected to start one more vGPU of this profile.

    None = there is no room, it is not known where the running ones lie, or the GPU's mode has no starts.
    """
    if state.gpu.vgpus is None or state.unclear or any(tenant.start is None for tenant in state.tenants):
        return None
    gpu, vgpu_profile = state.gpu, catalog.profile(profile)
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    holder_profiles = [catalog.profile(tenant.profile) for tenant in state.tenants]
    if vgpu_profile is None or board is None or any(facts is None for facts in holder_profiles):
        return None
    if not free_slots(gpu, state.holders, profile, catalog, state.starts).possible:
        return None
    # each start is known here; `or 0` is for the type checker only
    running = [
        (facts, tenant.start or 0) for facts, tenant in zip(holder_profiles, state.tenants, strict=True) if facts
    ]
    match gpu.vgpu_mode:
        case VgpuMode.MIXED_SIZE:
            shapes = _shapes_of(board, gpu.vgpu_mode)
        case VgpuMode.MULTI_INSTANCE:
            shared = _instance_with_room(running, vgpu_profile)
            if shared is not None:
                return shared
            # the others take the lowest free start: there are no shapes to keep room for
            keeps_large_possible = board.generation in _KEEP_LARGE_POSSIBLE
            shapes = _shapes_of(board, gpu.vgpu_mode) if keeps_large_possible else frozenset()
        case _:
            return None
    held_shapes = [(_shape(board, facts, gpu.vgpu_mode), start) for facts, start in running]
    if any(shape is not None and start not in shape.starts for shape, start in held_shapes):
        return None  # the host counts in other units than the catalogue
    new_shape = _shape(board, vgpu_profile, gpu.vgpu_mode)
    occupied = {(start, start + shape.size) for shape, start in held_shapes if shape is not None}
    return None if new_shape is None else _least_fragmenting(new_shape, tuple(sorted(occupied)), shapes)


def _instance_with_room(running: Sequence[tuple[VgpuProfile, int]], vgpu_profile: VgpuProfile) -> int | None:
    """Return the start of the first GPU instance that vGPUs share (RTX PRO Blackwell) and that has room for one
    more."""
    starts = sorted(start for facts, start in running if share_an_instance(facts, vgpu_profile))
    limit = vgpu_profile.max_per_gpu_instance or 1
    return next((start for start in starts if starts.count(start) < limit), None)


def _shape(board: Board, facts: VgpuProfile, mode: VgpuMode) -> Shape | None:
    if mode is VgpuMode.MIXED_SIZE:
        return starts_gb(facts) if facts.placement_ids_mixed else None
    kind = instance_of(board, facts)
    return None if kind is None else slices(kind)


def _shapes_of(board: Board, mode: VgpuMode) -> frozenset[Shape]:
    """Return the shapes of all vGPUs that GPUs of the model can run in this mode."""
    is_mig = mode is VgpuMode.MULTI_INSTANCE
    shapes = (_shape(board, profile, mode) for profile in board.profiles if profile.mig_backed is is_mig)
    return frozenset(shape for shape in shapes if shape is not None)


@lru_cache(maxsize=4096)
def _least_fragmenting(new_shape: Shape, occupied: tuple[tuple[int, int], ...], shapes: frozenset[Shape]) -> int | None:
    """Return the free start after which the most starts of all shapes are free; the lowest of several."""

    def free_after(start: int) -> int:
        after = (*occupied, (start, start + new_shape.size))
        return sum(_is_free(other_start, shape.size, after) for shape in shapes for other_start in shape.starts)

    free = [start for start in new_shape.starts if _is_free(start, new_shape.size, occupied)]
    return max(free, key=lambda start: (free_after(start), -start), default=None)


def _is_free(start: int, size: int, occupied: Iterable[tuple[int, int]]) -> bool:
    return all(start + size <= begin or end <= start for begin, end in occupied)
