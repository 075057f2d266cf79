"""Every order and every host, tried on a world of its own: what is true of emptying a host, by no code of gpuops.

A world is written as in `tests/plan/moving/worlds.py`: by host, by GPU (an A40) the sizes in GiB of the vGPUs on it.
Rules (NVIDIA AI Enterprise docs, vGPU types and assignment policies): in same-size mode a GPU holds vGPUs of one size,
48 // size of them; the host gives what arrives to the GPU with the most vGPUs (consolidation) or the fewest
(performance) of those that can take it, the first of equals. A VM needs its memory on the host besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

Gpu = tuple[int, ...]
"""The sizes on it, sorted."""


@dataclass(frozen=True)
class Small:
    """A world of some hosts. `free_gib`: what is left to reserve on each host before anybody leaves or arrives."""

    hosts: tuple[tuple[Gpu, ...], ...]
    free_gib: tuple[int, ...]
    memory_gib: int
    consolidates: bool


Targets = tuple[tuple[tuple[Gpu, ...], int], ...]
"""By host (its GPUs, what is free of its memory in GiB)."""


def can_be_emptied(world: Small, host: int) -> bool:
    """Whether all VMs of this host find a place on the others, one after another, in any order."""
    leaving = tuple(sorted(size for gpu in world.hosts[host] for size in gpu))
    targets = tuple((gpus, world.free_gib[at]) for at, gpus in enumerate(world.hosts) if at != host)
    return _ends_well(leaving, targets, world.memory_gib, world.consolidates)


@cache
def _ends_well(leaving: tuple[int, ...], targets: Targets, memory_gib: int, consolidates: bool) -> bool:
    if not leaving:
        return True
    for number, size in enumerate(leaving):
        remaining_vms = leaving[:number] + leaving[number + 1 :]
        for after in _arrivals(size, targets, memory_gib, consolidates):
            if _ends_well(remaining_vms, after, memory_gib, consolidates):
                return True
    return False


def _arrivals(size: int, targets: Targets, memory_gib: int, consolidates: bool) -> Iterator[Targets]:
    for at, (gpus, free_gib) in enumerate(targets):
        takers = [number for number, gpu in enumerate(gpus) if _takes(gpu, size)]
        if not takers or free_gib < memory_gib:
            continue
        chosen = (max if consolidates else min)(takers, key=lambda number: len(gpus[number]))
        then = tuple((*gpu, size) if number == chosen else gpu for number, gpu in enumerate(gpus))
        yield (*targets[:at], (then, free_gib - memory_gib), *targets[at + 1 :])


def _takes(gpu: Gpu, size: int) -> bool:
    return not gpu or (gpu[0] == size and len(gpu) < 48 // size)
