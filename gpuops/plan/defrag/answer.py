"""Answer: the moves with the names of this vCenter, what is free before and after each, and who stays, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.defrag.audit import holding
from gpuops.plan.defrag.frontier import Area
from gpuops.plan.defrag.ground import serves_vgpus
from gpuops.plan.defrag.landing import Basis, arrive
from gpuops.plan.defrag.line import Line, frontier_of, host_of, moved, replayed
from gpuops.plan.defrag.pieces import CERTAIN, Content
from gpuops.plan.defrag.standing import Way
from gpuops.plan.defrag.table import Table
from gpuops.plan.steps import RelocateVm


@dataclass(frozen=True, slots=True)
class Stay:
    """A VM that does not move, and why it may not."""

    vm: Vm
    way: Way
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One VM goes to another host, once those before it are there."""

    vm: Vm
    source: Host
    target: Host
    way: Way
    gpus: tuple[PciAddress, ...]
    """Where it arrives: on one of these, for each of its vGPUs."""
    basis: Basis
    free: int
    """What is free of what is wanted, everywhere, once it is there."""

    @property
    def step(self) -> RelocateVm:
        return RelocateVm(self.vm.ref, self.target.ref)


@dataclass(frozen=True, slots=True)
class Held:
    """What is on a GPU: so many vGPUs surely, and so many at the most; `free` = what is free of what is wanted."""

    at_least: int
    at_most: int
    free: int


@dataclass(frozen=True, slots=True)
class GpuChange:
    """A GPU that something leaves or comes to, or may come to."""

    address: PciAddress
    before: Held
    after: Held
    certain: bool
    """False: it may be another GPU of the host that was like it."""


@dataclass(frozen=True, slots=True)
class HostChange:
    """A host before and after."""

    host: Host
    before: int
    after: int
    gpus: tuple[GpuChange, ...]


@dataclass(frozen=True, slots=True)
class Unclear:
    """A GPU that is not counted on, and why."""

    host: Host
    address: PciAddress
    because: str


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """The plan, and how good it is."""

    inventory: Inventory
    profile: str | None
    """None = whole GPUs."""
    gpus: int
    moves: tuple[Move, ...]
    hosts: tuple[HostChange, ...]
    before: int
    after: int
    bound: int
    """More than this are not free after any moves."""
    proven: bool
    """No other moves free more, and no fewer as much; under the limit, where one was given."""
    settled: int
    """No plan of up to so many moves is better than the first moves of this one, or than no move at all."""
    stays: tuple[Stay, ...]
    unclear: tuple[Unclear, ...]
    steps_of_gain: tuple[tuple[int, int], ...]
    """(number of moves, what is free then) for each move from which on more is free than ever before."""

    @property
    def gained(self) -> int:
        return self.after - self.before


def answer(
    inventory: Inventory,
    catalog: Catalog,
    profile: str | None,
    areas: Sequence[Area],
    lines: Sequence[Line],
    stays: tuple[Stay, ...],
    powered_off: frozenset[str],
    limit: int,
) -> Defragmentation:
    """The chosen lines in words, as far as the rules of placement confirm each of their moves."""
    before = sum(area.start.worth for area in areas)
    chosen = [_confirmed(area, line, inventory, catalog) for area, line in zip(areas, lines, strict=True)]
    moves: list[Move] = []
    free = before
    for area, line in zip(areas, chosen, strict=True):
        moves += [replace(move, free=free + move.free) for move in _moves(area, line, powered_off)]
        free += area.gain(line)
    return Defragmentation(
        inventory=inventory,
        profile=profile,
        gpus=sum(len(stand.gpus) for area in areas for stand in area.ground.stands),
        moves=tuple(moves),
        hosts=tuple(each for area, line in zip(areas, chosen, strict=True) for each in _changes(area, line.table)),
        before=before,
        after=free,
        bound=before + sum(area.most for area in areas),
        proven=all(line is asked for line, asked in zip(chosen, lines, strict=True)) and _proven(areas, lines, limit),
        settled=min((area.settled for area in areas), default=limit),
        stays=stays,
        unclear=tuple(each for area in areas for each in _unclear(area)),
        steps_of_gain=tuple(_gains(before, moves)),
    )


def _unclear(area: Area) -> Iterator[Unclear]:
    for stand in area.ground.stands:
        for gpu, why in zip(stand.gpus, stand.unclear, strict=True):
            if why and serves_vgpus(gpu):
                yield Unclear(stand.host, gpu.address, why)


def _confirmed(area: Area, line: Line, inventory: Inventory, catalog: Catalog) -> Line:
    """The line, or the best part of it that the audit lets stand."""
    stands = area.ground.stands
    steps = [RelocateVm(area.ground.pieces[hop.piece].vm.ref, stands[hop.to].host.ref) for hop in line.hops]
    held = holding(steps, inventory, catalog)
    if held == line.moves:
        return line
    parts = [replayed(area.ground, area.start.table, line.hops[:moves]) for moves in range(held + 1)]
    return frontier_of([part for part in parts if part is not None])[-1]


def _proven(areas: Sequence[Area], lines: Sequence[Line], limit: int) -> bool:
    """Whether every cluster was searched so far that nothing better can be hidden in it."""
    if all(area.gain(line) == area.most for area, line in zip(areas, lines, strict=True)):
        return all(area.settled >= line.moves - 1 for area, line in zip(areas, lines, strict=True))
    return all(area.settled >= limit for area in areas)


def _gains(before: int, moves: Sequence[Move]) -> Iterator[tuple[int, int]]:
    best = before
    for number, move in enumerate(moves, 1):
        if move.free > best:
            best = move.free
            yield number, best


def _moves(area: Area, line: Line, powered_off: frozenset[str]) -> Iterator[Move]:
    """The moves of one cluster; `free` = more than there was in it at first."""
    ground, table = area.ground, area.start.table
    for hop in line.hops:
        piece = ground.pieces[hop.piece]
        source, there = host_of(table, piece), arrive(ground, table[hop.to], piece)
        after = moved(ground, table, hop)
        assert source is not None, f"{piece.vm.name} is somewhere"
        assert there is not None, f"{piece.vm.name} was found a place by the same rule"
        assert after is not None, f"{piece.vm.name} may leave"
        target, table = ground.stands[hop.to], after
        yield Move(
            vm=piece.vm,
            source=ground.stands[source.number].host,
            target=target.host,
            way=Way.POWERED_OFF if piece.vm.ref in powered_off else Way.VMOTION,
            gpus=tuple(target.gpus[gpu].address for gpu in there.gpus),
            basis=there.basis,
            free=area.gain(Line(after)),
        )


def _changes(area: Area, after: Table) -> Iterator[HostChange]:
    ground = area.ground
    for was, now in zip(area.start.table, after, strict=True):
        stand = ground.stands[was.number]
        gpus = [
            GpuChange(
                address=gpu.address,
                before=_held(area, was.number, at, was.contents[at]),
                after=_held(area, now.number, at, there),
                certain=at not in now.blurred,
            )
            for at, (gpu, there) in enumerate(zip(stand.gpus, now.contents, strict=True))
            if was.contents[at] != there or at in now.blurred
        ]
        if gpus:
            yield HostChange(stand.host, was.worth, now.worth, tuple(gpus))


def _held(area: Area, host: int, gpu: int, content: Content) -> Held:
    certain = sum(seat[2] == CERTAIN for seat in content)
    return Held(certain, len(content), area.ground.worth(host, gpu, content))
