"""Sets of GPU instances that tests compare with the tables of NVIDIA's documents."""

from __future__ import annotations

from collections.abc import Iterable

from gpuops.model.devices.mig import InstancePlacement, InstanceProfile, MigGeometry, free_starts


def maximal_sets(geometry: MigGeometry, kinds: Iterable[InstanceProfile]) -> frozenset[tuple[str, ...]]:
    """Every set of instances of these kinds that some placement leaves no room to add to, as sorted names."""
    kinds = tuple(kinds)
    name_sets: set[tuple[str, ...]] = set()
    visited: set[frozenset[InstancePlacement]] = set()
    open_sets: list[tuple[InstancePlacement, ...]] = [()]
    while open_sets:
        placed = open_sets.pop()
        larger = [
            (*placed, InstancePlacement(kind, start)) for kind in kinds for start in free_starts(kind, placed, geometry)
        ]
        if not larger:
            name_sets.add(tuple(sorted(placement.profile.name for placement in placed)))
        for candidate in larger:
            if (key := frozenset(candidate)) not in visited:
                visited.add(key)
                open_sets.append(candidate)
    return frozenset(name_sets)
