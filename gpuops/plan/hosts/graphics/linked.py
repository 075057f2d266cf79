"""Linked: GPUs that NVLink joins, of which some alone are given away: what is left is no device group any more.

Source: NVIDIA AI Enterprise docs, device groups: all GPUs of a group serve vGPUs of one VM, none is passed through; the
host tells which groups it offers, and not which GPUs they are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuops.model.catalog import Board, Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.host_settings import HostSettings


def torn(host: Host, named: Collection[PciAddress], *, on: bool, catalog: Catalog) -> Iterator[str]:
    """A warning for each model of which some GPUs are switched and others stay behind, where NVLink may join them."""
    groups = (host.settings or HostSettings()).device_groups
    boards = {gpu.address: catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) for gpu in host.gpus}
    for board in dict.fromkeys(board for address in named if (board := boards.get(address)) is not None):
        behind = [
            str(address)
            for address, other in boards.items()
            if other is board and address not in named and _given(host, address) is not on
        ]
        if not behind or not _may_be_linked(board):
            continue
        offered = [group.name for group in groups or () if _of(board, {each.profile for each in group.members})]
        if offered:
            yield (
                f"{host.name} offers {', '.join(offered)}: a GPU without its NVLink peers makes no such group, and "
                f"{', '.join(behind)} would stay behind; name all GPUs of a group, or none"
            )
        elif groups is None or not on:
            yield (
                f"{host.name}: whether NVLink joins {', '.join(behind)}, which would stay behind, to these GPUs is "
                "not told; name all GPUs of a group, or none"
            )


def _may_be_linked(board: Board) -> bool:
    return bool(board.nvlink_profiles or board.nvswitch_profiles)


def _of(board: Board, profiles: Collection[str | None]) -> bool:
    return any(profile.name in profiles for profile in board.profiles)


def _given(host: Host, address: PciAddress) -> bool | None:
    """Whether the GPU is for DirectPath I/O, now or from the next boot on."""
    states = {state.address: state.enabled for state in (host.settings or HostSettings()).passthrough or ()}
    return states.get(address)
