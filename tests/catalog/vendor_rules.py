"""Boards and profiles of the catalogue, and rules of NVIDIA's documents that compute what its files list.

The rules stand here and in the tests a second time on purpose: the files hold the facts as lists, the tests recompute
them.
"""

from __future__ import annotations

from gpuops.catalog import load
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.vgpu import VgpuProfile

CATALOG = load(everything=True)
BOARDS = CATALOG.boards
PROFILES = [(board, profile) for board in BOARDS for profile in (*board.profiles, *board.nameless)]
TIME_SLICED = [(board, profile) for board, profile in PROFILES if not profile.mig_backed]
MIG_BACKED = [(board, profile) for board, profile in PROFILES if profile.mig_backed]
GEOMETRIES = {board.mig.family: board.mig for board in BOARDS if board.mig}

# Printed counts that the arithmetic does not give (NVIDIA/vgpu-device-manager).
FEWER_THAN_FIT = {"RTX8000-4C": 8, "RTX8000P-4C": 8, "H200-8C": 16, "H200X-8C": 16, "H20X-8C": 16}


def by_key(*keys: str) -> list[Board]:
    boards = [CATALOG.board(key) for key in keys]
    return [board for board in boards if board is not None]


def power_of_two(board: Board, profile: VgpuProfile) -> int:
    count = 1
    while count * 2 * profile.framebuffer_mib <= board.framebuffer_mib:
        count *= 2
    return min(count, 32)
