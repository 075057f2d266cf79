"""Removes the VMs of a cluster, and no other: by name, marker and notes, read anew before each request.

Overrides of DRS go with their VMs, and are taken back of those that are left (`overrides`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from gpuops.execute.cluster.overrides import overridden, take_back
from gpuops.execute.cluster.port import cluster_port
from gpuops.execute.cluster.run import alone_with, begin, changing, open_runs, require_unused, wait_for_tasks
from gpuops.execute.cluster.use import kept_from_runs
from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site
from gpuops.execute.vm_removal import execute_removals, next_removal_step, removal_failure, settle_removals
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.cluster.answers import ClusterRemoved
from gpuops.plan.cluster.members import MarkedVm, marked_vms
from gpuops.plan.cluster.removal import REMOVE_PRIVILEGES, removal_refused
from gpuops.plan.core.plan import Rejection

ROUNDS: Final = 4
"""Off, then gone; and twice more for a start that was still on its way."""
A_COPY: Final = "claims the rank of another VM: rename the one that is a copy, a VM of another name is never removed"


def delete(name: str, site: Site, *, apply: bool) -> ClusterRemoved:
    """What there is of the cluster; with `apply` it is removed, and its run in the journal ended.

    Raises Locked, NotConnected; then the same again goes on.
    """
    cluster_port(site)  # refuses a saved inventory
    inventory = site.vcenter.inventory()
    found = marked_vms(inventory, name)
    against = removal_refused(found) + _lacking(found, site)
    if against or not apply:
        with site.journal_to_read(inventory.vcenter) as journal:
            stays = [vm for vm in overridden(name, inventory, journal) if vm not in [each.vm for each in found]]
        return ClusterRemoved(name, found, rejections=against, overrides=tuple(vm.name for vm in stays))
    with alone_with(site, name, "cluster-delete"):
        require_unused(name, inventory, site)
        with changing(site) as journal:
            if not found and not open_runs(journal, name) and not overridden(name, inventory, journal):
                return ClusterRemoved(name, (), applied=True)
            run = begin(journal, name, found[0].marker.id if found else "", [each.vm.ref for each in found])
        wait_for_tasks(site, name)  # without the lock: no return of desktops waits for a clone
        with changing(site, waits=True) as journal:
            settle_removals(inventory, journal, run, site)
            inventory = site.vcenter.inventory()
            found = marked_vms(inventory, name)
            against = removal_refused(found)  # a copy may have been made while clones were waited for
            if against:
                return ClusterRemoved(name, found, rejections=against)
            with kept_from_runs(site, name, found, inventory):
                left, inventory = removed(found, inventory, journal, run, site)
            overrides = list(take_back(overridden(name, inventory, journal), inventory, journal, run, site))
            left += tuple(f"{vm}: {why}" for vm, why in overrides if why)
            if not left:
                for each in open_runs(journal, name):
                    journal.end(each, cut_off=each.id != run.id)
    return ClusterRemoved(name, found, left, applied=True, overrides=tuple(vm for vm, why in overrides if not why))


def _lacking(found: tuple[MarkedVm, ...], site: Site) -> tuple[Rejection, ...]:
    lacking = site.vcenter.lacking({each.vm.ref: REMOVE_PRIVILEGES for each in found}) if found else {}
    names = {each.vm.ref: each.vm.name for each in found}
    return tuple(
        Rejection(names[ref], f"this login lacks {', '.join(sorted(missing))}", hint="ask for a role with it")
        for ref, missing in lacking.items()
        if missing
    )


def removed(
    wanted: tuple[MarkedVm, ...],
    inventory: Inventory,
    journal: Journal,
    run: Run,
    site: Site,
    *,
    but: Collection[str] = (),
) -> tuple[tuple[str, ...], Inventory]:
    """Powers these VMs off and removes them; those that are left, each with its reason, and the latest look. Raises
    NotConnected.

    One of the same cluster that comes meanwhile is removed too; none whose managed object id is among `but`, and none
    of a rank that another VM has or had: one of the two is a copy that somebody made.
    """
    why: dict[str, str] = {}
    ref_of: dict[tuple[str, int], str] = {}
    clusters = sorted({(each.marker.cluster, each.marker.id) for each in wanted})

    def still_there() -> list[MarkedVm]:
        found = [each for cluster in clusters for each in marked_vms(inventory, *cluster)]
        why.update((each.vm.ref, A_COPY) for each in _of_two(found, ref_of))
        return [each for each in found if each.vm.ref not in but]

    for _ in range(ROUNDS):
        there = [each for each in still_there() if why.get(each.vm.ref) != A_COPY]
        if not there:
            break
        steps = [next_removal_step(each.vm, each.marker.notes) for each in there]
        outcomes = execute_removals(steps, inventory, journal, run, site)
        why.update((ref, failure) for ref, outcome in outcomes.items() if (failure := removal_failure(outcome)))
        inventory = site.vcenter.inventory()
    return tuple(f"{each.vm.name}: {why.get(each.vm.ref) or 'it is still there'}" for each in still_there()), inventory


def _of_two(found: Sequence[MarkedVm], ref_of: dict[tuple[str, int], str]) -> Iterator[MarkedVm]:
    """Those whose rank is, or was, that of another VM. `ref_of`: whose each rank was at its first look, which is added
    to; empty = it was of two at once."""
    ranks = [(each.marker.id, each.marker.rank) for each in found]
    for rank, each in zip(ranks, found, strict=True):
        if ref_of.setdefault(rank, each.vm.ref if ranks.count(rank) == 1 else "") != each.vm.ref:
            yield each
