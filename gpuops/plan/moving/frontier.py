"""The best plan for each number of moves, of one cluster and of all clusters together; and what no plan can exceed.

`defrag.py` calls it. The greedy search goes first, so that the exact search need only look where something better could
be.

How much can be free at most has two bounds, and the smaller counts: every GPU without its movable VMs; and all vGPUs of
a model packed as densely as the sharing modes allow. Example: three GPUs in same-size mode hold four VMs that each take
a quarter of a GPU: they need one GPU, so two can be free.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from math import ceil
from typing import Final

from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.plan.moving.move_search import GreedySearch, search_all_orders
from gpuops.plan.moving.moves import Frontier, MoveSequence, make_frontier, one_move_further, replay
from gpuops.plan.moving.searched_cluster import CERTAIN, ClusterModel, ClusterState


def most_to_gain(model: ClusterModel, cluster_state: ClusterState) -> int:
    """Return an upper bound on how much more can be freed. It may be more than any moves reach."""
    free_now = sum(host_now.worth for host_now in cluster_state)
    if model.goal.measure is not None:
        return -free_now  # at best nothing is fragmented
    free_when_emptied = sum(
        model.worth(host_now.number, gpu, tuple(vgpu for vgpu in content if not model.search_vms[vgpu.vm].movable))
        for host_now in cluster_state
        for gpu, content in enumerate(host_now.contents)
    )
    packed = _free_when_packed(model, cluster_state)
    return free_when_emptied - free_now if packed is None else min(free_when_emptied, packed) - free_now


@dataclass(frozen=True, slots=True)
class _PackedGpu:
    """One GPU: its sharing mode and the profiles on it."""

    mode: VgpuMode | None
    content: tuple[VgpuProfile, ...]
    has_fixed_vm: bool
    """Whether a VM on it may not move."""


@dataclass(frozen=True, slots=True)
class _BoardPacking:
    """All GPUs of one model in a cluster, and how few of them could hold what is on them."""

    board: Board
    gpus: list[_PackedGpu]

    @property
    def same_size(self) -> bool:
        return all(gpu.mode is VgpuMode.SAME_SIZE for gpu in self.gpus)

    def fewest_by_size(self) -> dict[int, int]:
        """Return the fewest GPUs that the vGPUs of each size (MiB) need if a GPU takes one size only."""
        gpus_filled: dict[int, Fraction] = defaultdict(Fraction)
        gpus_with_fixed_vm: Counter[int] = Counter()
        for gpu in self.gpus:
            for profile in gpu.content:
                gpus_filled[profile.framebuffer_mib] += Fraction(1, profile.max_per_gpu)
            if gpu.has_fixed_vm:
                # all vGPUs of a same-size GPU have the size of the first
                gpus_with_fixed_vm[gpu.content[0].framebuffer_mib] += 1
        return {size: max(gpus_with_fixed_vm[size], ceil(gpus)) for size, gpus in gpus_filled.items()}

    @property
    def fewest_by_memory(self) -> int:
        """Return the fewest GPUs that the memory of all vGPUs needs, if any sizes could share a GPU."""
        gpus_filled = sum(
            min(Fraction(1, profile.max_per_gpu), Fraction(profile.framebuffer_mib, self.board.framebuffer_mib))
            for gpu in self.gpus
            for profile in gpu.content
        )
        return max(sum(gpu.has_fixed_vm for gpu in self.gpus), ceil(gpus_filled))


def _free_when_packed(model: ClusterModel, cluster_state: ClusterState) -> int | None:
    """Return how much of the goal is free if all vGPUs are packed as densely as possible; None = unknown."""
    packings = _packings_by_board(model, cluster_state)
    if packings is None:
        return None
    if model.goal.profile is not None:
        return _slots_when_packed(packings, model.catalog.profile(model.goal.profile))
    return sum(
        len(packing.gpus) - (sum(packing.fewest_by_size().values()) if packing.same_size else packing.fewest_by_memory)
        for packing in packings
    )


def _slots_when_packed(packings: Sequence[_BoardPacking], profile: VgpuProfile | None) -> int | None:
    """Return the free slots of the profile if the other sizes take as few GPUs as possible; None = unknown."""
    of_board = [packing for packing in packings if profile is not None and packing.board.key == profile.board]
    if profile is None or not all(packing.same_size for packing in of_board):
        return None
    free_slots = 0
    for packing in of_board:
        gpus_by_size = packing.fewest_by_size()
        other_gpus = sum(gpus for size, gpus in gpus_by_size.items() if size != profile.framebuffer_mib)
        all_vgpus = (vgpu for gpu in packing.gpus for vgpu in gpu.content)
        used_slots = sum(vgpu.framebuffer_mib == profile.framebuffer_mib for vgpu in all_vgpus)
        free_slots += (len(packing.gpus) - other_gpus) * profile.max_per_gpu - used_slots
    return free_slots


def _packings_by_board(model: ClusterModel, cluster_state: ClusterState) -> list[_BoardPacking] | None:
    """Return the GPUs by model; None if one has unknown content, or could serve the goal but does not count."""
    packing_of: dict[str, _BoardPacking] = {}
    goal = model.catalog.profile(model.goal.profile) if model.goal.profile is not None else None
    for host_now in cluster_state:
        cluster_host = model.cluster_hosts[host_now.number]
        for gpu, content in enumerate(host_now.contents):
            if cluster_host.unclear[gpu] or not cluster_host.gpus[gpu].serves_vgpus:
                continue  # no vGPU can go there
            board = model.board(host_now.number, gpu)
            profiles = [profile for vgpu in content if (profile := model.catalog.profile(vgpu.profile)) is not None]
            unknown = len(profiles) < len(content) or any(vgpu.certainty != CERTAIN for vgpu in content)
            if board is None or unknown:
                return None
            cannot_run_goal = goal is not None and goal.board != board.key
            if not cluster_host.counted[gpu] and not cannot_run_goal:
                return None
            has_fixed_vm = any(not model.search_vms[vgpu.vm].movable for vgpu in content)
            packing = packing_of.setdefault(board.key, _BoardPacking(board, []))
            packing.gpus.append(_PackedGpu(cluster_host.gpus[gpu].vgpu_mode, tuple(profiles), has_fixed_vm))
    return list(packing_of.values())


TABLES: Final = 4000
"""Limit of the exact search in states: about two seconds, and all there are with a dozen GPUs."""
_FIRST_MOVES: Final = 8000
"""Budget: so many first moves, divided by the square of the GPUs, are tried before the greedy search."""
_MOST_REPLAYS: Final = 50
"""How many moves, at most, are left out one by one to shorten a plan."""


@dataclass(frozen=True, slots=True)
class ClusterPlans:
    """The plans that were found for one cluster, and how far it is proven that no plan is better."""

    model: ClusterModel
    frontier: Frontier
    most_to_gain: int
    """No more than this can be freed."""
    settled: int
    """No plan of up to so many moves is better than these."""
    settled_unpinned: int
    """No plan of up to so many moves is better in which the hosts choose all GPUs."""

    @property
    def start(self) -> MoveSequence:
        return self.frontier[0]

    def gain(self, sequence: MoveSequence) -> int:
        return sequence.worth - self.start.worth


def explore_cluster(model: ClusterModel, cluster_state: ClusterState, limit: int, tables: int = TABLES) -> ClusterPlans:
    """Return the best plans of up to `limit` moves that were found in this cluster; in small clusters they are optimal.
    A plan binds a VM to a GPU only if it frees more than any known plan without binding, or as much in fewer moves."""
    # 1. Nothing to gain, or no move allowed.
    start, bound = MoveSequence(cluster_state), most_to_gain(model, cluster_state)
    if not bound or not limit:
        return ClusterPlans(model, (start,), bound, limit, limit)
    # 2. Plans in which the hosts choose the GPUs; then, from those on, plans that also bind VMs that may be bound.
    plans = _improve(ClusterPlans(model, (start,), bound, 0, 0), limit, tables, binding=False)
    plans = replace(plans, settled_unpinned=plans.settled)
    if not any(search_vm.bindable for search_vm in model.search_vms):
        return plans
    return _improve(plans, limit, tables, binding=True)


def _improve(plans: ClusterPlans, limit: int, tables: int, *, binding: bool) -> ClusterPlans:
    """Return the best of these plans and of those that a greedy and an exact search find. `settled` of the result is
    what this search proves; earlier proofs do not count."""
    model, start = plans.model, plans.start
    # 1. The greedy search, and its longest plan without the moves that it does not need.
    frontier = make_frontier([*plans.frontier, *_greedy_frontier(model, start, limit, binding=binding)])
    frontier = make_frontier([*frontier, *_shorten(model, frontier[-1], start)])
    # 2. All orders of moves, unless the budget does not even cover every first move: each movable VM to each other
    # host, where the host chooses the GPU or, with `binding`, to each of its GPUs.
    gpus = max(len(cluster_host.gpus) for cluster_host in model.cluster_hosts) if binding else 0
    branches = sum(search_vm.movable * (1 + gpus * search_vm.bindable) for search_vm in model.search_vms)
    if branches * (len(start.cluster_state) - 1) > tables:
        return replace(plans, frontier=frontier, settled=0)
    exact = search_all_orders(model, frontier, plans.most_to_gain, limit, tables, binding=binding)
    return replace(plans, frontier=exact.best, settled=exact.settled)


def _greedy_frontier(model: ClusterModel, start: MoveSequence, limit: int, *, binding: bool) -> Frontier:
    """Return the greedy plans; in a small cluster also those after every possible first move.

    A host that chooses its emptiest GPU takes a VM well only before that GPU is free: the greedy order, which frees the
    cheapest first, can then be wrong.
    """
    greedy = GreedySearch(model, limit, binding)
    frontier = greedy.sequences(start)
    gpus = sum(len(cluster_host.gpus) for cluster_host in model.cluster_hosts)
    for sequence in islice(one_move_further(model, [start], binding=binding), _FIRST_MOVES // gpus**2):
        frontier = make_frontier([*frontier, *greedy.with_fresh_budget().sequences(sequence)])
    return frontier


def _shorten(model: ClusterModel, sequence: MoveSequence, start: MoveSequence) -> Sequence[MoveSequence]:
    """Return the sequence without moves that it does not need, and each beginning of it; empty if it needs all.

    A VM that moves twice may be able to go to its last host at once.
    """
    vm_moves = sequence.vm_moves
    moves_per_vm = Counter(vm_move.search_vm for vm_move in vm_moves)
    repeated_moves = [vm_move for vm_move in vm_moves if moves_per_vm[vm_move.search_vm] > 1]
    for vm_move in repeated_moves[:_MOST_REPLAYS]:
        shorter_moves = tuple(kept_move for kept_move in vm_moves if kept_move is not vm_move)
        shorter_sequence = replay(model, start.cluster_state, shorter_moves)
        if shorter_sequence is not None and shorter_sequence.worth >= sequence.worth:
            vm_moves = shorter_moves
    if len(vm_moves) == sequence.moves:
        return ()
    parts = (replay(model, start.cluster_state, vm_moves[:moves]) for moves in range(len(vm_moves) + 1))
    return [part for part in parts if part is not None]


def combine_clusters(all_plans: Sequence[ClusterPlans], limit: int) -> tuple[MoveSequence, ...]:
    """Return one sequence for each cluster. Together they free the most in `limit` moves, with the fewest moves.

    Dynamic programming over clusters: for each total number of moves the largest gain. With one cluster that frees 2 in
    3 moves and one that frees 1 in 1 move, a limit of 3 takes the first and a limit of 4 both.
    """
    # total moves -> (gain, the sequence of each cluster so far)
    best: dict[int, tuple[int, tuple[MoveSequence, ...]]] = {0: (0, ())}
    for plans in all_plans:
        after: dict[int, tuple[int, tuple[MoveSequence, ...]]] = {}
        for moves, (gain, sequences) in best.items():
            for sequence in plans.frontier:
                total = moves + sequence.moves
                freed = gain + plans.gain(sequence)
                if total <= limit and (total not in after or freed > after[total][0]):
                    after[total] = (freed, (*sequences, sequence))
        best = after
    return min(best.items(), key=lambda moves_and_gain: (-moves_and_gain[1][0], moves_and_gain[0]))[1][1]
