"""Problem: hosts and requests as counts. What is equal is there once, with how often it is there.

A row is anything a host has so much of: memory of a node, vGPU slots of a profile beside a node. What a VM uses and
what the filling of a GPU provides are both written in rows, so that no code below knows what a row means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

REMOTE: Final = 0.001
"""Of its worth: what a VM is worth less that is not beside its GPUs. Locality decides between equals, and no more."""
Amounts = tuple[tuple[int, int], ...]
"""(row, how much of it), each row once."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a VM of some kind is on a host of some shape."""

    uses: Amounts
    remote: bool = False
    """Not surely beside its GPUs. Uses no more of anything than the kind's other ways do, and no row of a node."""


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """Equal GPUs, each of which is filled in one of these ways. Fillings are maximal: they need not be used up."""

    count: int
    fillings: tuple[Amounts, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """Equal hosts. `ways`: by the number of the kind of VM, remote ones last; a kind without one does not go there."""

    count: int
    capacity: tuple[int, ...]
    """Of each row, before any GPU is filled."""
    groups: tuple[GpuGroup, ...]
    ways: Mapping[int, tuple[Way, ...]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one host of a shape holds, and how its GPUs are filled for it."""

    shape: int
    vms: tuple[tuple[int, int, int], ...]
    """(kind, number of its way, VMs)."""
    gpus: tuple[tuple[int, int, int], ...]
    """(group, number of the filling, GPUs)."""

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """(kind, VMs of it), each kind once."""
        found: dict[int, int] = {}
        for kind, _, count in self.vms:
            found[kind] = found.get(kind, 0) + count
        return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Problem:
    """So many VMs of each kind, what each is worth (its GPU memory), and the hosts."""

    demand: tuple[int, ...]
    worth: tuple[int, ...]
    shapes: tuple[Shape, ...]
    touching: float = 0.0
    """What it costs to use a host that could stay empty."""

    def value(self, pattern: Pattern) -> float:
        """What the pattern is worth: its GPU memory, less a little for what is remote and for the host."""
        placed = sum(count * self.worth_of(pattern.shape, kind, way) for kind, way, count in pattern.vms)
        return placed - self.touching

    def memory(self, pattern: Pattern) -> int:
        """The GPU memory that the pattern places."""
        return sum(count * self.worth[kind] for kind, _, count in pattern.vms)

    @property
    def asked(self) -> int:
        """The GPU memory of all the VMs."""
        return sum(count * worth for count, worth in zip(self.demand, self.worth, strict=True))

    def worth_of(self, shape: int, kind: int, way: int) -> float:
        """What one VM of the kind is worth there."""
        return self.worth[kind] * (1 - REMOTE * self.shapes[shape].ways[kind][way].remote)


@dataclass(frozen=True, slots=True)
class Solution:
    """Patterns with the number of hosts each is on."""

    patterns: tuple[tuple[Pattern, int], ...]
