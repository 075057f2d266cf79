"""Audit: a plan once more, move by move, by the rules that `place`, `attach` and the rotation follow.

The search knows only counts and kinds, for speed. What it found is held against the snapshot itself: every move must be
admitted there for certain, no suspended VM may lose its place, and what is free at the end must be free.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.plan.claims import claims
from gpuops.plan.headroom import Headroom
from gpuops.plan.placement.filters import refusals
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import Wanted, demands_of
from gpuops.plan.project import project
from gpuops.plan.steps import RelocateVm


def holding(steps: Sequence[RelocateVm], inventory: Inventory, catalog: Catalog) -> int:
    """How many of the moves, from the first on, are admitted for certain, each after those before it."""
    for number, step in enumerate(steps):
        if not _admitted(step, inventory, catalog):
            return number
        lost = _lost(step.host, inventory, catalog)
        inventory = project(step, inventory, catalog)
        if not _lost(step.host, inventory, catalog) <= lost:
            return number
    return len(steps)


def _admitted(step: RelocateVm, inventory: Inventory, catalog: Catalog) -> bool:
    vm, host = inventory.vm(step.vm), inventory.hosts.get(step.host)
    if host is None:
        return False
    wanted = Wanted(vm, demands_of(vm.devices or (), {}), (host.ref,))
    if refusals(wanted, host, inventory) or Headroom(vm, inventory).refusal(host) is not None:
        return False
    seating = seat(vm, wanted.demands, host, inventory, catalog)
    return seating.complete and not seating.doubts


def _lost(host: str, inventory: Inventory, catalog: Catalog) -> frozenset[str]:
    """Suspended VMs of the host that would find no place there."""
    return frozenset(claim.vm.ref for claim in claims(inventory, catalog, [host]) if claim.lost)
