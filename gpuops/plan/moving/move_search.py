"""Searches for moves: greedily in every cluster, and through all orders of moves in small ones.

`frontier.py` calls both. Greedy: the moves that free the most per move go first. A VM goes where it lands on the GPU
that is hardest to free, best one that cannot be freed at all: such a GPU is full before one is begun that will be
needed empty. If no host has room for it, one VM elsewhere may make room first.

Exact: all orders of moves, shortest first, except those that cannot free more than a known plan. Hosts that are alike,
GPUs that are alike and VMs that are alike are looked at once, so a state that some other order has led to is not looked
at again: a VM that goes and comes back costs nothing here. `budget` limits the number of states.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Final

from gpuops.plan.moving.moves import (
    ArrivalBasis,
    Frontier,
    MoveSequence,
    apply_move,
    arrivals,
    distinct_movable_vms,
    host_of,
    make_frontier,
    one_move_further,
    remove_vm,
)
from gpuops.plan.moving.searched_cluster import ClusterModel, ClusterState, GpuContent, HostContents, SearchVm, VmMove

_ROOM_FOR_OTHERS: Final = 2000
"""Budget: how often a VM is looked for that makes room for another."""
_OPENINGS: Final = 20_000
"""Budget: how often a free GPU is filled to empty more of them."""
_PAIRS: Final = 8
"""Up to so many VMs on a GPU each pair is considered; of more only single VMs, or all."""


@dataclass(slots=True)
class GreedySearch:
    """One search, with its budgets and a cache of which host takes which kind of VM."""

    model: ClusterModel
    limit: int
    binding: bool = False
    """Whether a move may bind a VM to GPUs."""
    _lowest_costs: dict[tuple[int, int, int], tuple[int, ...] | None] = field(default_factory=dict)
    """By (host number, key of its state, kind of VM); None = the host does not take the VM."""
    room_for_others: int = _ROOM_FOR_OTHERS
    openings: int = _OPENINGS

    def with_fresh_budget(self) -> GreedySearch:
        """Return the search with full budgets; the cache is shared."""
        return GreedySearch(self.model, self.limit, self.binding, self._lowest_costs)

    def sequences(self, sequence: MoveSequence) -> Frontier:
        """Return the frontier from this sequence on: departures, then filling hosts, until neither gains anything."""
        improvements = [sequence]
        has_improved = True
        while has_improved:
            before = improvements[-1].worth
            improvements += self._by_departures(improvements[-1])
            improvements += self._by_filling_hosts(improvements[-1])
            has_improved = improvements[-1].worth > before
        return make_frontier(improvements)

    def _by_filling_hosts(self, sequence: MoveSequence) -> list[MoveSequence]:
        """Fill one host after another, those with the least free first, and return the sequences that free more. The
        filled host may lose a free GPU while others gain more.

        Departures of one kind of VM go together, since GPUs in same-size mode hold one size only."""
        improvements: list[MoveSequence] = []
        for host in sorted(sequence.cluster_state, key=lambda host_now: (host_now.worth, host_now.number)):
            if not host.worth:
                continue
            other_hosts = [host_now for host_now in sequence.cluster_state if host_now.number != host.number]
            departures = sorted(
                departure for host_now in other_hosts for departure in self._departures_of_host(host_now)
            )
            by_kind: dict[tuple[str, ...], list[_Departure]] = {}
            for departure in departures:
                by_kind.setdefault(self.model.search_vms[departure.vms[0]].profiles, []).append(departure)
            filled = [self._host_filled(sequence, host.number, of_kind) for of_kind in by_kind.values()]
            better = [after for after in filled if after.worth > sequence.worth]
            if better:
                # The best one needs the fewest moves for each GPU or slot that it frees.
                start = sequence
                sequence = min(better, key=lambda after: (after.moves - start.moves) / (after.worth - start.worth))
                improvements.append(sequence)
        return improvements

    def _host_filled(self, sequence: MoveSequence, host: int, departures: Sequence[_Departure]) -> MoveSequence:
        """Return the best sequence on the way when one departure after the other goes to this host."""
        best = longest = sequence
        for departure in departures:
            if self.openings <= 0 or longest.moves + len(departure.vms) > self.limit:
                break
            self.openings -= 1
            after: MoveSequence | None = longest
            for vm in departure.vms:
                after = None if after is None else _with_move(self.model, after, VmMove(vm, host))
            if after is None:
                break
            longest = after
            if longest.worth > best.worth:
                best = longest
        return best

    def _by_departures(self, sequence: MoveSequence) -> list[MoveSequence]:
        """Return the better sequences that departures lead to, each built on the one before.

        A departure is tried once, the cheapest first; if its host has changed since it was queued, it is computed anew.
        """
        improvements: list[MoveSequence] = []
        heap = [candidate for host_now in sequence.cluster_state for candidate in self._departures_of_host(host_now)]
        heapq.heapify(heap)
        queued = set(heap)
        while heap:
            departure = heapq.heappop(heap)
            host_now = sequence.cluster_state[departure.host]
            if departure.key != host_now.key:
                for fresh in self._departures_of_host(host_now, departure.gpu):
                    if fresh not in queued:
                        queued.add(fresh)
                        heapq.heappush(heap, fresh)
            elif sequence.moves + len(departure.vms) <= self.limit:
                after = self._after_departure(sequence, departure)
                if after is not None and after.worth > sequence.worth and after.moves <= self.limit:
                    improvements.append(after)
                    sequence = after
        return improvements

    def _departures_of_host(self, host_now: HostContents, only: int | None = None) -> Iterator[_Departure]:
        """Yield the departures that free something on each GPU of the host, or on one of them only."""
        for gpu, content in enumerate(host_now.contents):
            if only in (None, gpu):
                worth = self.model.worth(host_now.number, gpu, content)
                yielded_kinds: set[tuple[int, ...]] = set()
                for vms in _departure_sets(self.model, content):
                    remaining = tuple(vgpu for vgpu in content if vgpu.vm not in vms)
                    gain = self.model.worth(host_now.number, gpu, remaining) - worth
                    kinds = tuple(sorted(self.model.search_vms[vm].kind for vm in vms))
                    if gain > 0 and kinds not in yielded_kinds:
                        yielded_kinds.add(kinds)
                        yield _Departure(len(vms) / gain, host_now.number, gpu, vms, host_now.key)

    def _after_departure(self, sequence: MoveSequence, departure: _Departure) -> MoveSequence | None:
        """Return the sequence with these VMs gone from the host, the largest first.

        None = one of them has no target.
        """
        longer: MoveSequence | None = sequence
        departing_vms = [self.model.search_vms[vm] for vm in departure.vms]
        for search_vm in sorted(departing_vms, key=lambda search_vm: -search_vm.memory_mib):
            longer = self._vm_placed(longer, search_vm) if longer is not None else None
        return longer

    def _vm_placed(self, sequence: MoveSequence, search_vm: SearchVm) -> MoveSequence | None:
        """Return the sequence with this VM gone to the best host, if need be after a move that makes room."""
        target = self._best_target(sequence.cluster_state, search_vm)
        if target is not None:
            return _with_move(self.model, sequence, self._move(sequence.cluster_state[target], search_vm))
        return self._after_another(sequence, search_vm) or self._there_and_back(sequence, search_vm)

    def _best_target(self, cluster_state: ClusterState, search_vm: SearchVm, without: int | None = None) -> int | None:
        """Return the number of the host where the VM arrives at the lowest cost, `without` excluded; None = no room."""
        ranked = []
        for number in search_vm.allowed:
            cost = None if number == without else self._lowest_cost(cluster_state[number], search_vm)
            if cost is not None:
                ranked.append((cost, number))
        return min(ranked)[1] if ranked else None

    def _lowest_cost(self, host_now: HostContents, search_vm: SearchVm) -> tuple[int, ...] | None:
        """Return the lowest cost of an arrival of the VM on this host; None = no room, or a free GPU would be lost."""
        if any(vgpu.vm == search_vm.number for content in host_now.contents for vgpu in content):
            return None
        key = (host_now.number, host_now.key, search_vm.kind)
        if key not in self._lowest_costs:
            costs = (cost for cost, _ in self._arrival_costs(host_now, search_vm))
            self._lowest_costs[key] = min(costs, default=None)
        return self._lowest_costs[key]

    def _move(self, host_now: HostContents, search_vm: SearchVm) -> VmMove:
        return VmMove(search_vm.number, host_now.number, min(self._arrival_costs(host_now, search_vm))[1])

    def _arrival_costs(
        self, host_now: HostContents, search_vm: SearchVm
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield (cost, GPUs that the VM is bound to) for each way in which the VM may arrive on this host."""
        for gpus, arrival in arrivals(self.model, host_now, search_vm, binding=self.binding):
            if arrival.host_after.worth >= host_now.worth:
                # Avoid, in this order: doubt, which fills several GPUs; a GPU that could be freed; many VMs on the GPU;
                # memory left over; binding the VM.
                contents = [arrival.host_after.contents[gpu] for gpu in arrival.gpus]
                never_free = all(
                    any(not self.model.search_vms[vgpu.vm].movable for vgpu in content) for content in contents
                )
                in_doubt, binds = arrival.basis is ArrivalBasis.ANY, arrival.basis is ArrivalBasis.BOUND
                yield (in_doubt, not never_free, -max(map(len, contents)), arrival.host_after.free_mib, binds), gpus

    def _after_another(self, sequence: MoveSequence, search_vm: SearchVm) -> MoveSequence | None:
        """Return the sequence in which another VM leaves a host and this VM takes its place; None = no such pair.

        Example: the VM may go to esx-02, which is full. A VM of esx-02 has room on esx-03: it moves there first.
        """
        for number in sorted(search_vm.allowed):
            if self.room_for_others <= 0:
                break
            for blocker in distinct_movable_vms(self.model, sequence.cluster_state[number]):
                self.room_for_others -= 1
                host_after = remove_vm(self.model, sequence.cluster_state[number], blocker)
                if blocker is search_vm or host_after is None or self._lowest_cost(host_after, search_vm) is None:
                    continue
                target = self._best_target(sequence.cluster_state, blocker, without=number)
                if target is None:
                    continue
                first = _with_move(self.model, sequence, self._move(sequence.cluster_state[target], blocker))
                both_moved = None if first is None else _with_move(self.model, first, self._move(host_after, search_vm))
                if both_moved is not None:
                    return both_moved
        return None

    def _there_and_back(self, sequence: MoveSequence, search_vm: SearchVm) -> MoveSequence | None:
        """Return the sequence in which the VM leaves its host and comes back to another GPU there; None = no such way.
        One vMotion cannot move a VM between GPUs of one host."""
        own_host = host_of(sequence.cluster_state, search_vm)
        if own_host is None or own_host.number not in search_vm.allowed:
            return None
        for number in sorted(search_vm.allowed):
            if self.room_for_others <= 0:
                return None
            self.room_for_others -= 1
            moved_away = _with_move(self.model, sequence, VmMove(search_vm.number, number))
            if moved_away is None:
                continue
            back = _with_move(self.model, moved_away, VmMove(search_vm.number, own_host.number))
            if back is None or back.worth < sequence.worth:
                continue
            if back.cluster_state[own_host.number].key != own_host.key:
                return back
        return None


@dataclass(frozen=True, slots=True, order=True)
class _Departure:
    """A set of VMs whose departure from a GPU frees something. The cheapest sorts first, then the GPU that comes
    first."""

    cost: float
    """Moves for each GPU or slot freed."""
    host: int
    gpu: int
    vms: tuple[int, ...]
    key: int
    """The key of the host when this was computed."""


def _departure_sets(model: ClusterModel, content: GpuContent) -> Iterator[tuple[int, ...]]:
    """Yield sets of VMs to move off a GPU: single ones, pairs, and all movable ones. If the goal is whole GPUs, yield
    only the set of all VMs, and only if all are movable."""
    vms = [vm for vm in dict.fromkeys(vgpu.vm for vgpu in content) if model.search_vms[vm].movable]
    if not model.goal.whole_gpus:
        yield from ((vm,) for vm in vms)
        yield from combinations(vms, 2) if len(vms) <= _PAIRS else ()
    if vms and (not model.goal.whole_gpus or len(vms) == len({vgpu.vm for vgpu in content})):
        yield tuple(vms)


def _with_move(model: ClusterModel, sequence: MoveSequence, vm_move: VmMove) -> MoveSequence | None:
    cluster_state = apply_move(model, sequence.cluster_state, vm_move)
    return None if cluster_state is None else MoveSequence(cluster_state, (*sequence.vm_moves, vm_move))


GainSteps = dict[tuple[object, ...], tuple[tuple[Fraction, int], ...]]
"""For GPUs that are alike: (moves for each one freed, how many), the cheapest first."""
_MANY_VMS: Final = 8
"""Up to so many VMs on one GPU every subset is considered; of more only all of them, as if that were one move."""


@dataclass(frozen=True, slots=True)
class ExactResult:
    """The best plans, and how far they are proven."""

    best: Frontier
    settled: int
    """No plan of up to so many moves is better than these."""


def search_all_orders(
    model: ClusterModel, known_plans: Frontier, most: int, limit: int, budget: int, *, binding: bool = False
) -> ExactResult:
    """Return the best plans of up to `limit` moves, and up to how many moves they are proven to be the best.

    `known_plans`: the plans of the greedy search. `most`: the most GPUs or slots that can be freed. `budget`: how many
    states of the cluster may be visited. `binding`: VMs may be bound to GPUs.
    """
    start = known_plans[0]
    best, layer, moves, proven_moves = known_plans, [start], 0, limit
    visited = {_key(start.cluster_state)}
    gain_steps: GainSteps = {}
    # Breadth first: a layer holds the sequences of `moves` moves that may still lead to something better.
    while layer and moves < limit:
        new_sequences: list[MoveSequence] = []
        for after in one_move_further(model, layer, binding=binding):
            key = _key(after.cluster_state)
            if key in visited:
                continue
            # The budget is spent inside this layer, so only the layers before it are proven.
            if len(visited) >= budget:
                return ExactResult(make_frontier([*best, *new_sequences]), min(proven_moves, moves))
            visited.add(key)
            new_sequences.append(after)
            # Counted on several GPUs: more may be free than is found here, so only the layers before it are proven.
            if after.overcounted:
                proven_moves = min(proven_moves, moves)
        # Prune: a sequence is extended only if an optimistic estimate beats the frontier.
        moves += 1
        best = make_frontier([*best, *new_sequences])
        layer = [
            sequence
            for sequence in new_sequences
            # An arrival can make memory less fragmented too, so that departures alone give no bound.
            if model.goal.measure is not None or _may_win(model, sequence, best, start.worth + most, limit, gain_steps)
        ]
    return ExactResult(best, proven_moves)


def _key(cluster_state: ClusterState) -> tuple[int, ...]:
    return tuple(sorted(host_now.key for host_now in cluster_state))


def _may_win(
    model: ClusterModel, sequence: MoveSequence, best: Frontier, most: int, limit: int, gain_steps: GainSteps
) -> bool:
    """Return whether further moves can free as much as a known plan with fewer moves, or more than any known plan.

    Example: the best plan frees 4 in 5 moves. A sequence that frees 2 in 3 moves, and needs at least 2 more moves for
    2 more, cannot win: it would need 5 moves too.
    """
    worths = [plan.worth for plan in best]
    for gain, moves in enumerate(_fewest_moves(model, sequence.cluster_state, gain_steps), 1):
        worth, all_moves = sequence.worth + gain, sequence.moves + moves
        if all_moves > limit or worth > most:
            return False
        # The known plan with the fewest moves that frees at least as much. Plans are sorted by both.
        rival = bisect_right(worths, worth - 1)
        if rival == len(best) or best[rival].moves > all_moves:
            return True
    return False


def _fewest_moves(model: ClusterModel, cluster_state: ClusterState, gain_steps: GainSteps) -> Iterator[int]:
    """Yield lower bounds on the moves that free one more, two more and so on, regardless of room elsewhere.

    The cheapest gains of all GPUs, added up. A VM on several GPUs frees on each of them, so the sum is divided by the
    largest number of GPUs that one VM is on.
    """
    steps: list[tuple[Fraction, int]] = []
    shared = 1
    for host_now in cluster_state:
        spread = Counter(vm for content in host_now.contents for vm in {vgpu.vm for vgpu in content})
        shared = max(shared, *spread.values(), 1)
        for gpu, content in enumerate(host_now.contents):
            gpu_kind = model.kind_of_gpu(host_now.number, gpu, content)
            if gpu_kind not in gain_steps:
                gain_steps[gpu_kind] = tuple(_gain_steps(model, host_now.number, gpu, content))
            steps += gain_steps[gpu_kind]
    total = Fraction()
    for moves, gain in sorted(steps):
        for _ in range(gain):
            total += moves
            yield ceil(total / shared)


def _gain_steps(model: ClusterModel, host: int, gpu: int, content: GpuContent) -> Iterator[tuple[Fraction, int]]:
    """Yield what departures free on one GPU, as (moves for each one freed, how many), the cheapest first."""
    start = model.worth(host, gpu, content)
    movable = list(dict.fromkeys(vgpu.vm for vgpu in content if model.search_vms[vgpu.vm].movable))
    gains = [0]
    for moves in range(1, len(movable) + 1):
        best_worth = start
        for departing in _sets_of_departing_vms(movable, moves, whole=model.goal.whole_gpus):
            remaining = tuple(vgpu for vgpu in content if vgpu.vm not in departing)
            best_worth = max(best_worth, model.worth(host, gpu, remaining))
        gains.append(best_worth - start)
    yield from _hull_steps(gains)


def _hull_steps(gains: Sequence[int]) -> Iterator[tuple[Fraction, int]]:
    """Yield the steps of the upper convex hull of the gains of 0, 1, 2... moves, as (moves for each one freed, how
    many). No plan frees its first ones cheaper than the first step, so the steps are lower bounds.

    Example: one move frees 0, two free 3 and three free 4: three are freed at 2/3 move each, then one at a whole move.

    >>> [(str(moves), freed) for moves, freed in _hull_steps([0, 0, 3, 4])]
    [('2/3', 3), ('1', 1)]
    """
    at = 0
    while at < len(gains) - 1:
        slope, to = max((Fraction(gains[to] - gains[at], to - at), to) for to in range(at + 1, len(gains)))
        if slope <= 0:
            return
        yield 1 / slope, gains[to] - gains[at]
        at = to


def _sets_of_departing_vms(movable: Sequence[int], moves: int, *, whole: bool) -> Iterable[tuple[int, ...]]:
    """Return the sets of VMs that so many moves may take away; a GPU is whole only when all are gone."""
    if whole:
        return [tuple(movable)] if moves == len(movable) else []
    return combinations(movable, moves) if len(movable) <= _MANY_VMS else [tuple(movable)]
