"""Workloads that are to share GPUs, and what was seen of two that did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObservedPair:
    """Two workloads that shared a GPU, and how fast each was beside the other; 1 = as fast as alone."""

    names: tuple[str, str]
    speeds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SharingWorkload:
    """So many VMs that each keep a GPU busy for this share of the time, alone."""

    name: str
    busy: float
    count: int


@dataclass(frozen=True, slots=True)
class SharingWorkloads:
    """What a file says of them."""

    workloads: tuple[SharingWorkload, ...]
    pairs: tuple[ObservedPair, ...]
