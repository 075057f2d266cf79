"""Table: who is where in a cluster while VMs move: one value per host, and two of them change with a move."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.plan.defrag.pieces import Content


@dataclass(frozen=True, slots=True)
class HostNow:
    """One host between two moves."""

    number: int
    contents: tuple[Content, ...]
    """By GPU, in the order of their addresses."""
    free_mib: int
    """Memory that a VM may still reserve, whatever could not be read."""
    blurred: frozenset[int]
    """GPUs that were alike when a VM came to one of them: which of them is which is not known since."""
    lost: frozenset[int]
    """Numbers of the VMs that were on such GPUs then: it is not known which of them has company since."""
    worth: int
    """What is free of what is wanted, on this host."""
    key: int
    """The same for hosts that are alike now, and in all that is to come."""


Table = tuple[HostNow, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """A VM goes to a host, both by number."""

    piece: int
    to: int


def with_host(table: Table, now: HostNow) -> Table:
    """The table with one host replaced."""
    return (*table[: now.number], now, *table[now.number + 1 :])
