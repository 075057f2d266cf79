"""How much can be free at the most, whatever is moved where; `frontier.py` asks it before it searches.

Two bounds, and the smaller counts: every GPU without its movable VMs; and all vGPUs of a model packed as densely as the
sharing modes allow. Example: three GPUs in same-size mode hold four VMs that each take a quarter of a GPU: they need
one GPU, so two can be free.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.plan.moving.cluster import CERTAIN, ClusterModel, ClusterState


def most_to_gain(model: ClusterModel, cluster_state: ClusterState) -> int:
    """How much more can be free at the most, whatever is moved where. It may be more than any moves reach."""
    free_now = sum(now.worth for now in cluster_state)
    free_when_emptied = sum(
        model.worth(now.number, gpu, tuple(vgpu for vgpu in content if not model.search_vms[vgpu[0]].movable))
        for now in cluster_state
        for gpu, content in enumerate(now.contents)
    )
    packed = _free_when_packed(model, cluster_state)
    return free_when_emptied - free_now if packed is None else min(free_when_emptied, packed) - free_now


@dataclass(frozen=True, slots=True)
class _PackedGpu:
    """One GPU: its sharing mode and the profiles on it."""

    mode: VgpuMode | None
    content: tuple[VgpuProfile, ...]
    fixed: bool
    """A VM on it may not move."""


@dataclass(frozen=True, slots=True)
class _BoardPacking:
    """All GPUs of one model in a cluster, and how few of them could hold what is on them."""

    board: Board
    gpus: list[_PackedGpu]

    @property
    def same_size(self) -> bool:
        return all(gpu.mode is VgpuMode.SAME_SIZE for gpu in self.gpus)

    def of_sizes(self) -> dict[int, int]:
        """The GPUs that each size needs at least, where a GPU takes one size only."""
        shares: dict[int, Fraction] = defaultdict(Fraction)
        bound: Counter[int] = Counter()
        for gpu in self.gpus:
            for profile in gpu.content:
                shares[profile.framebuffer_mib] += Fraction(1, profile.max_per_gpu)
            if gpu.fixed:
                bound[gpu.content[0].framebuffer_mib] += 1
        return {size: max(bound[size], ceil(share)) for size, share in shares.items()}

    @property
    def by_memory(self) -> int:
        """The GPUs that all vGPUs need at least by their memory, whatever lies beside what."""
        share = sum(
            min(Fraction(1, profile.max_per_gpu), Fraction(profile.framebuffer_mib, self.board.framebuffer_mib))
            for gpu in self.gpus
            for profile in gpu.content
        )
        return max(sum(gpu.fixed for gpu in self.gpus), ceil(share))


def _free_when_packed(model: ClusterModel, cluster_state: ClusterState) -> int | None:
    """What is free when all vGPUs are packed as densely as possible; None = no such bound is known."""
    packings = _packings_by_board(model, cluster_state)
    if packings is None:
        return None
    if model.goal.profile is not None:
        return _slots_when_packed(packings, model.catalog.profile(model.goal.profile))
    return sum(
        len(each.gpus) - (sum(each.of_sizes().values()) if each.same_size else each.by_memory) for each in packings
    )


def _slots_when_packed(packings: Sequence[_BoardPacking], profile: VgpuProfile | None) -> int | None:
    """Free slots of the profile where the other sizes take no more GPUs than they need; None = not known."""
    of_board = [each for each in packings if profile is not None and each.board.key == profile.board]
    if profile is None or not all(each.same_size for each in of_board):
        return None
    free_slots = 0
    for each in of_board:
        others = sum(gpus for size, gpus in each.of_sizes().items() if size != profile.framebuffer_mib)
        held = sum(
            profile_held.framebuffer_mib == profile.framebuffer_mib for gpu in each.gpus for profile_held in gpu.content
        )
        free_slots += (len(each.gpus) - others) * profile.max_per_gpu - held
    return free_slots


def _packings_by_board(model: ClusterModel, cluster_state: ClusterState) -> list[_BoardPacking] | None:
    """The GPUs by model; None = GPUs take part that do not count, or what is on them is not known."""
    packing_of: dict[str, _BoardPacking] = {}
    for now in cluster_state:
        cluster_host = model.cluster_hosts[now.number]
        for gpu, content in enumerate(now.contents):
            if cluster_host.unclear[gpu] or not cluster_host.gpus[gpu].serves_vgpus:
                continue  # no vGPU can go there
            board = model.board(now.number, gpu)
            profiles = [profile for vgpu in content if (profile := model.catalog.profile(vgpu[1])) is not None]
            unknown = len(profiles) < len(content) or any(vgpu[2] != CERTAIN for vgpu in content)
            if board is None or unknown or not (cluster_host.counted[gpu] or _of_no_use(model, board)):
                return None
            fixed = any(not model.search_vms[vgpu[0]].movable for vgpu in content)
            of_board = packing_of.setdefault(board.key, _BoardPacking(board, []))
            of_board.gpus.append(_PackedGpu(cluster_host.gpus[gpu].vgpu_mode, tuple(profiles), fixed))
    return list(packing_of.values())


def _of_no_use(model: ClusterModel, board: Board) -> bool:
    """Whether GPUs of this model cannot run the profile that is wanted."""
    wanted = model.catalog.profile(model.goal.profile) if model.goal.profile is not None else None
    return wanted is not None and wanted.board != board.key
