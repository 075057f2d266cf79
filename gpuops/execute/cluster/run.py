"""The run of a cluster in the journal: it is open from before the first clone until the cluster is whole, or gone."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from gpuops.clock import rounds
from gpuops.errors import Locked
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.nonces import Nonces
from gpuops.execute.site import Site
from gpuops.execute.state.lock import LockedBy, locked
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.cluster.members import marked_vms, marker_of
from gpuops.plan.rotation.lease import KEY, holder_of, lease_holder_text, parse_lease

CLUSTER: Final = "cluster"
"""The kind of these runs."""
_ID: Final = 4
"""Bytes."""
CLONES_S: Final = 4 * 3600.0
"""Disks are copied: of a large template that takes its time."""
ROTATION_S: Final = 4 * 3600.0
"""So long a cluster waits for a rotation that has begun while it waited for something else."""
PAUSE_S: Final = 5.0
LONGEST_NAME: Final = 50
"""Characters of a cluster's name; what is longer is the name of none."""
IN_USE: Final = "wait for it to end; one that was killed is over at that moment"
"""What to do about a cluster that a run uses."""


def begin(journal: Journal, name: str, id: str, stands: Sequence[str]) -> Run:
    """The run of this cluster that did not end, or a new one. `stands`: the VMs of it that are there before it."""
    there = open_runs(journal, name)
    order = {"cluster": name, "id": id, "stood": list(stands)}
    return there[-1] if there else journal.begin(CLUSTER, order=json.dumps(order))


def end(site: Site, run: Run) -> None:
    """The run is over. It needs no lock: a rotation that has begun meanwhile knows no run of this kind."""
    with closing(Journal.open(site.state_dir, site.vcenter.uuid, site.clock, url=site.journal_url)) as journal:
        journal.end(run)


def stood(run: Run) -> frozenset[str]:
    """The VMs of the cluster that were there before the run: nothing that fails removes them."""
    return frozenset(_order(run).get("stood", ()))


@contextmanager
def changing(site: Site, *, waits: bool = False) -> Iterator[Journal]:
    """The journal, while something is changed beside no rotation. `waits`: for one that runs, some hours at the most.

    Raises Locked.
    """
    with ExitStack() as stack:
        is_announced = False
        for is_last in rounds((PAUSE_S,), ROTATION_S, rest=site.pause, seconds=site.passed_s):
            try:
                journal = stack.enter_context(site.locked_journal(site.vcenter.uuid, alone=False))
                break
            except LockedBy as held:
                if not waits or is_last:
                    raise
                if not is_announced:
                    site.say(f"{held.message}: waited for")
                is_announced = True
        yield journal


def open_runs(journal: Journal | None, name: str) -> tuple[Run, ...]:
    """The runs of the cluster of this name that did not end, oldest first."""
    runs = journal.open_runs((CLUSTER,)) if journal is not None else ()
    return tuple(run for run in runs if _order(run).get("cluster") == name)


def _order(run: Run) -> dict[str, Any]:
    found = json.loads(run.order or "{}")
    return found if isinstance(found, dict) else {}


def known_id(name: str, inventory: Inventory, site: Site) -> tuple[str, bool]:
    """The id of this cluster, of its VMs or of the run that was to make them, else a new one; and whether such a run
    is open. Raises StateDamaged."""
    with site.journal_to_read(inventory.vcenter) as journal:
        runs = open_runs(journal, name)
    of_vms = [each.marker.id for each in marked_vms(inventory, name)]
    of_runs = [_order(run).get("id", "") for run in runs]
    return next(filter(None, (*of_vms[:1], *of_runs[-1:])), None) or secrets.token_hex(_ID), bool(runs)


@contextmanager
def alone_with(site: Site, name: str, doing: str) -> Iterator[None]:
    """While this lasts no other call of this machine makes, uses or removes the cluster of this name. Raises Locked."""
    with ExitStack() as stack:
        called = f"{site.vcenter.uuid}-cluster-{name[:LONGEST_NAME]}"  # the name of a file has a limit
        try:
            stack.enter_context(locked(site.state_dir, called, site.clock(), alone=True, doing=doing))
        except LockedBy as held:
            does = f", {held.holder.doing}," if held.holder.doing else ""
            raise Locked(f"cluster {name} is in use: {held.holder}{does} holds it", hint=IN_USE) from held
        yield


def require_unused(name: str, inventory: Inventory, site: Site) -> None:
    """Raises Locked while a run of another machine uses the cluster, by the lease on its VM of rank 0.

    Only under the lock of `alone_with`: a lease that a run of this machine left behind is then known dead.
    """
    for each in marked_vms(inventory, name):
        lease = parse_lease((each.vm.extra_config or {}).get(KEY, "")) if each.marker.rank == 0 else None
        dead = Nonces(site.state_dir, site.vcenter.uuid).on(each.vm.name).read()
        holder = holder_of(lease, inventory.taken_at, dead)
        if holder is not None:
            raise Locked(f"cluster {name} is in use: {lease_holder_text(holder)}", hint=IN_USE)


def wait_for_tasks(site: Site, name: str) -> None:
    """Waits for what vCenter does with the VMs of this cluster, and for what is being cloned of any template: what a
    call that was cut off has asked for is there then, or is not made."""
    vms = site.vcenter.inventory().vms.values()
    of_cluster = [task for vm in vms if (marker := marker_of(vm)) and marker.cluster == name for task in vm.tasks]
    clones = [task for vm in vms if vm.template for task in vm.tasks if "clone" in task.name.lower()]
    tasks = [TaskRef(task.ref) for task in (*of_cluster, *clones)]
    if tasks:
        site.say(f"cluster {name}: {len(tasks)} tasks are under way in vCenter: waited for")
        for _ in site.vcenter.wait(tasks, CLONES_S):
            pass
