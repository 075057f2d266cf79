"""Greedy: what frees most per move first, GPU by GPU, where every VM that leaves finds a place that costs nothing.

A VM goes where it lands on the GPU that is dearest to free, best one that cannot be freed at all: such a GPU is full
before one is begun that will be wanted empty. Where nobody has room for it, one VM elsewhere may make room first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from gpuops.plan.defrag.ground import Ground
from gpuops.plan.defrag.landing import Arrival, Basis, arrive, leave
from gpuops.plan.defrag.line import Frontier, Line, frontier_of, host_of, movable_on, moved
from gpuops.plan.defrag.pieces import Content, Piece
from gpuops.plan.defrag.table import Hop, HostNow, Table

_ROOM_FOR_OTHERS: Final = 2000
_OPENINGS: Final = 20_000
_PAIRS: Final = 8
"""Of so many VMs on a GPU each two are thought of together; of more only one, or all."""


@dataclass(slots=True)
class Greedy:
    """One search. `room_for_others` bounds how often a VM is looked for that makes room for another, `openings` how
    often a free GPU is given up to empty more of them."""

    ground: Ground
    limit: int
    _fits: dict[tuple[int, int, int], tuple[int, ...] | None] = field(default_factory=dict)
    room_for_others: int = _ROOM_FOR_OTHERS
    openings: int = _OPENINGS

    def anew(self) -> Greedy:
        """The same search with all of its budget, and what it has learnt."""
        return Greedy(self.ground, self.limit, self._fits)

    def lines(self, line: Line) -> Frontier:
        """A line for each gain that was found, from this one on."""
        found = [line]
        again = True
        while again:
            before = found[-1].worth
            found += self._once(found[-1])
            found += self._opened(found[-1])
            again = found[-1].worth > before
        return frontier_of(found)

    def _opened(self, line: Line) -> list[Line]:
        """Each host filled in turn, those with least to lose first: it loses a free GPU, and others win more."""
        found: list[Line] = []
        for host in sorted(line.table, key=lambda now: (now.worth, now.number)):
            wishes = sorted(wish for now in line.table for wish in self._wishes(now) if now.number != host.number)
            by_kind: dict[tuple[str, ...], list[_Wish]] = {}
            for wish in wishes:
                by_kind.setdefault(self.ground.pieces[wish.vms[0]].profiles, []).append(wish)
            tried = [self._filled(line, host.number, alike) for alike in by_kind.values()] if host.worth else []
            better = [after for after in tried if after.worth > line.worth]
            if better:
                line = min(better, key=lambda after: (after.moves - line.moves) / (after.worth - line.worth))
                found.append(line)
        return found

    def _filled(self, line: Line, host: int, wishes: Sequence[_Wish]) -> Line:
        """The best line on the way, when one wish after the other is granted by this host alone."""
        best = now = line
        for wish in wishes:
            if self.openings <= 0 or now.moves + len(wish.vms) > self.limit:
                break
            self.openings -= 1
            after: Line | None = now
            for vm in wish.vms:
                after = None if after is None else _with(self.ground, after, Hop(vm, host))
            if after is None:
                break
            now = after
            if now.worth > best.worth:
                best = now
        return best

    def _once(self, line: Line) -> list[Line]:
        """Each set of VMs tried once, the cheapest first; where the host has changed meanwhile it is judged anew."""
        found: list[Line] = []
        heap = [each for now in line.table for each in self._wishes(now)]
        heapq.heapify(heap)
        queued = set(heap)
        while heap:
            wish = heapq.heappop(heap)
            now = line.table[wish.host]
            if wish.key != now.key:
                for fresh in self._wishes(now, wish.gpu):
                    if fresh not in queued:
                        queued.add(fresh)
                        heapq.heappush(heap, fresh)
            elif line.moves + len(wish.vms) <= self.limit:
                after = self._granted(line, wish)
                if after is not None and after.worth > line.worth and after.moves <= self.limit:
                    found.append(after)
                    line = after
        return found

    def _wishes(self, now: HostNow, only: int | None = None) -> Iterator[_Wish]:
        """For each GPU the sets of VMs whose leaving frees something there, those that free most per move."""
        for gpu, content in enumerate(now.contents):
            if only in (None, gpu):
                yield from _wishes(self.ground, now, gpu, content)

    def _granted(self, line: Line, wish: _Wish) -> Line | None:
        """The line with these VMs gone from the host, the largest first; None = one of them has nowhere to go."""
        now: Line | None = line
        for piece in sorted((self.ground.pieces[vm] for vm in wish.vms), key=lambda piece: -piece.memory_mib):
            now = self._gone(now, piece) if now is not None else None
        return now

    def _gone(self, line: Line, piece: Piece) -> Line | None:
        target = self._best_target(line.table, piece)
        if target is not None:
            return _with(self.ground, line, Hop(piece.number, target))
        return self._after_another(line, piece) or self._there_and_back(line, piece)

    def _best_target(self, table: Table, piece: Piece, without: int | None = None) -> int | None:
        ranked = [
            (rank, number)
            for number in piece.allowed
            if number != without and (rank := self._rank(table[number], piece)) is not None
        ]
        return min(ranked)[1] if ranked else None

    def _rank(self, now: HostNow, piece: Piece) -> tuple[int, ...] | None:
        """How little it costs that the VM arrives on this host, less is better; None = it may not, or frees less."""
        if any(seat[0] == piece.number for content in now.contents for seat in content):
            return None
        key = (now.number, now.key, piece.kind)
        if key not in self._fits:
            there = arrive(self.ground, now, piece)
            costs = there is None or there.now.worth < now.worth
            self._fits[key] = None if there is None or costs else self._price(there)
        return self._fits[key]

    def _price(self, there: Arrival) -> tuple[int, ...]:
        """Doubt first: it fills several GPUs. Then how dear the GPU is to free: immovable VMs, then how many."""
        contents = [there.now.contents[gpu] for gpu in there.gpus]
        bound = all(any(not self.ground.pieces[seat[0]].movable for seat in content) for content in contents)
        return (there.basis is Basis.ANY, not bound, -max(map(len, contents)), there.now.free_mib)

    def _after_another(self, line: Line, piece: Piece) -> Line | None:
        """The line with the VM gone to a host that another one has left for it."""
        for number in sorted(piece.allowed):
            for other in movable_on(self.ground, line.table[number]) if self.room_for_others > 0 else ():
                self.room_for_others -= 1
                left = leave(self.ground, line.table[number], other)
                if other is piece or left is None or self._rank(left, piece) is None:
                    continue
                target = self._best_target(line.table, other, without=number)
                if target is None:
                    continue
                first = _with(self.ground, line, Hop(other.number, target))
                both = None if first is None else _with(self.ground, first, Hop(piece.number, number))
                if both is not None:
                    return both
        return None

    def _there_and_back(self, line: Line, piece: Piece) -> Line | None:
        """The line with the VM back on its own host, on another GPU: what vMotion cannot do in one move."""
        own = host_of(line.table, piece)
        for number in sorted(piece.allowed) if own is not None and own.number in piece.allowed else ():
            if self.room_for_others <= 0:
                return None
            self.room_for_others -= 1
            gone = None if own is None else _with(self.ground, line, Hop(piece.number, number))
            back = None if own is None or gone is None else _with(self.ground, gone, Hop(piece.number, own.number))
            if (
                back is not None
                and own is not None
                and back.worth >= line.worth
                and back.table[own.number].key != own.key
            ):
                return back
        return None


@dataclass(frozen=True, slots=True, order=True)
class _Wish:
    """VMs whose leaving frees something. The cheapest sorts first; of equals the GPU that comes first."""

    cost: float
    """Moves for each one freed."""
    host: int
    gpu: int
    vms: tuple[int, ...]
    key: int
    """Of the host when this was worked out."""


def _wishes(ground: Ground, now: HostNow, gpu: int, content: Content) -> Iterator[_Wish]:
    worth = ground.worth(now.number, gpu, content)
    known: set[tuple[int, ...]] = set()
    for vms in _sets(ground, content):
        left = tuple(seat for seat in content if seat[0] not in vms)
        gain = ground.worth(now.number, gpu, left) - worth
        kinds = tuple(sorted(ground.pieces[vm].kind for vm in vms))
        if gain > 0 and kinds not in known:
            known.add(kinds)
            yield _Wish(len(vms) / gain, now.number, gpu, vms, now.key)


def _sets(ground: Ground, content: Content) -> Iterator[tuple[int, ...]]:
    """One VM, two, and all that may go."""
    vms = [vm for vm in dict.fromkeys(seat[0] for seat in content) if ground.pieces[vm].movable]
    if ground.goal.profile is not None:
        yield from ((vm,) for vm in vms)
        yield from combinations(vms, 2) if len(vms) <= _PAIRS else ()
    if vms and (ground.goal.profile is not None or len(vms) == len({seat[0] for seat in content})):
        yield tuple(vms)


def _with(ground: Ground, line: Line, hop: Hop) -> Line | None:
    table = moved(ground, line.table, hop)
    return None if table is None else Line(table, (*line.hops, hop))
