"""Finds the GPU model for a name that people write, and the vGPU profiles that a host offers with its GPUs in their
modes.

Source: NVIDIA AI Enterprise, vGPU for Compute (a GPU in MIG mode runs MIG-backed profiles alone, any other time-sliced
ones; all of them may be suspended and migrated on vSphere 8 and 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.fleet_change import GpuServing
from gpuops.model.vcenter.host import Host, OfferedProfile

MODES: Final[Mapping[GpuServing, VgpuMode]] = {
    GpuServing.SAME_SIZE: VgpuMode.SAME_SIZE,
    GpuServing.MIXED_SIZE: VgpuMode.MIXED_SIZE,
    GpuServing.MIG: VgpuMode.MULTI_INSTANCE,
}


def find_board(text: str, catalog: Catalog) -> Board:
    """Return the GPU model of that key, short name or name (`l40s`, `NVIDIA L40S`).

    Raises UsageError, with similar keys, unless exactly one model matches.
    """
    folded_text = text.strip().lower()
    for field in ("key", "short_name", "name"):
        matching_boards = [board for board in catalog.boards if getattr(board, field).lower() == folded_text]
        if len(matching_boards) == 1:
            return matching_boards[0]
    keys = {board.key.lower(): board.key for board in catalog.boards}
    close_keys = get_close_matches(folded_text.removeprefix("nvidia ").replace(" ", "-"), keys, n=3)
    suggestion = f"; did you mean {', '.join(keys[close_key] for close_key in close_keys)}?" if close_keys else ""
    hint = "gpuops profiles lists the GPU models"
    raise UsageError(f"no GPU model {text!r} in the catalogue{suggestion}", hint=hint)


def board_of(gpu: PhysicalGpu, catalog: Catalog) -> Board | None:
    """Return the model of a GPU; None = not in the catalogue."""
    return catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)


def mode_obstacle(mode: GpuServing, board: Board) -> str:
    """Return why GPUs of this model cannot be in this mode; empty = they can, or it is not known."""
    if mode is GpuServing.MIG and board.mig is None:
        return f"{board.name} has no MIG mode (NVIDIA MIG User Guide)"
    if mode is GpuServing.MIXED_SIZE and board.mixed_size_mode is False:
        return f"{board.name} has no mixed-size mode (NVIDIA AI Enterprise docs)"
    return ""


def offer_profiles(host: Host, fleet: Iterable[Host], catalog: Catalog) -> Host:
    """Return the host with the profiles that its GPUs offer in their modes.

    Whether a profile can be suspended and migrated is taken from this host, else from another one that offers it; if
    none does, both are assumed. Profiles that the catalogue lacks are kept.
    """
    offers_by_name = {offer.name: offer for fleet_host in (*fleet, host) for offer in fleet_host.profiles or ()}
    uncatalogued_names = [offer.name for offer in host.profiles or () if catalog.profile(offer.name) is None]
    names = sorted({*uncatalogued_names, *_offered_profiles(host, catalog)})
    offers = tuple(offers_by_name.get(name) or OfferedProfile(name, suspend=True, migrate=True) for name in names)
    return replace(host, profiles=offers)


def _offered_profiles(host: Host, catalog: Catalog) -> Iterator[str]:
    """Yield the profiles of the catalogue that the host's GPUs offer in their modes."""
    for gpu in host.gpus:
        board = board_of(gpu, catalog)
        if board is not None and gpu.graphics_type is GraphicsType.SHARED_DIRECT and not gpu.passed_through:
            in_mig = gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE
            yield from (profile.name for profile in board.profiles if profile.mig_backed is in_mig)
