"""Line: moves one after another, and the table they lead to; and what one more move can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuops.plan.defrag.ground import Ground
from gpuops.plan.defrag.landing import arrive, leave
from gpuops.plan.defrag.pieces import Piece
from gpuops.plan.defrag.table import Hop, HostNow, Table, with_host


@dataclass(frozen=True, slots=True)
class Line:
    """Moves from the first table on, each of which finds its room, and where they lead."""

    table: Table
    hops: tuple[Hop, ...] = ()

    @property
    def worth(self) -> int:
        return sum(now.worth for now in self.table)

    @property
    def moves(self) -> int:
        return len(self.hops)


Frontier = tuple[Line, ...]
"""The lines that matter: each moves more, and frees more, than the one before. The first moves nothing."""


def frontier_of(lines: Sequence[Line]) -> Frontier:
    """Of these lines the best for each number of moves."""
    found: list[Line] = []
    for line in sorted(lines, key=lambda line: (line.moves, -line.worth)):
        if not found or line.worth > found[-1].worth:
            found.append(line)
    return tuple(found)


def moved(ground: Ground, table: Table, hop: Hop) -> Table | None:
    """The table after the move; None = it cannot be made, or not for certain."""
    piece = ground.pieces[hop.piece]
    source = host_of(table, piece)
    if source is None or source.number == hop.to or hop.to not in piece.allowed:
        return None
    there = arrive(ground, table[hop.to], piece)
    if there is None:
        return None
    here = leave(ground, source, piece)
    return None if here is None else with_host(with_host(table, here), there.now)


def replayed(ground: Ground, table: Table, hops: Sequence[Hop]) -> Line | None:
    """The line of these moves; None = one of them cannot be made."""
    now: Table | None = table
    for hop in hops:
        now = moved(ground, now, hop) if now is not None else None
    return None if now is None else Line(now, tuple(hops))


def host_of(table: Table, piece: Piece) -> HostNow | None:
    """The host that the VM is on now."""
    number = piece.number
    return next((now for now in table if any(seat[0] == number for content in now.contents for seat in content)), None)


def movable_on(ground: Ground, now: HostNow) -> Iterator[Piece]:
    """VMs on the host that may go, one of each kind that lies alike."""
    known = set()
    for gpu, content in enumerate(now.contents):
        for number in dict.fromkeys(seat[0] for seat in content):
            piece = ground.pieces[number]
            alike = (piece.kind, ground.kind_of_gpu(now.number, gpu, content))
            if piece.movable and number not in now.lost and alike not in known:
                known.add(alike)
                yield piece


def one_of_each(table: Table, without: HostNow | None = None) -> Iterator[HostNow]:
    """The hosts, one of those that are alike."""
    known = set()
    for now in table:
        if now is not without and now.key not in known:
            known.add(now.key)
            yield now
