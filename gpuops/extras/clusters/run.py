"""What keeps calls that make, use or remove a cluster apart: its run in the journal, a local lock, and a lease.

The run in the journal is open from before the first clone until the cluster is complete or removed. A program has a run
of its own, which is open until nothing of the program is left in the guests.

A lease on the VM of rank 0 ensures that only one program at a time runs over a cluster, on all machines. The program's
call holds it until it ends; a call that removes VMs which a program could use takes it first. It is the lease of
rotations (`gpuops.execute.lease`), written to extraConfig of that VM by compare and set. A second program is refused
before it starts anything. The machine of a killed call recognizes its own lease as dead. Other machines wait until it
has expired by vCenter's clock, at most three minutes, and take it over: the preparation of a program ends the processes
of the one before.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from gpuops.clock import rounds
from gpuops.errors import GpuopsError, Locked, Refused, Trouble
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.journal.orders import ClusterOrder, dump_order, load_cluster_order
from gpuops.execute.lease.lease import HeldLease, Nonces, NotWritten, take
from gpuops.execute.site import Site
from gpuops.execute.state.lock import LockedBy, locked
from gpuops.execute.steps.vm_runs import CREATION_S
from gpuops.extras.clusters.cluster_members import marked_vms, marker_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import TrainingCluster
from gpuops.plan.rotation.lease_rules import KEY, holder_of, lease_holder_text, parse_lease

if TYPE_CHECKING:
    from gpuops.extras.clusters.cluster_members import MarkedVm
    from gpuops.extras.clusters.launch import Launch

CLUSTER: Final = "cluster"
"""The kind of these runs in the journal."""
PROGRAM: Final = "cluster run"
"""The kind of the runs of programs, those of `cluster bench` too."""
_ID_BYTES: Final = 4
"""Bytes."""
ROTATION_S: Final = 4 * 3600.0
"""How long a call waits for a rotation that began while the call waited for something else."""
PAUSE_S: Final = 5.0
LONGEST_NAME: Final = 50
"""The longest name of a cluster, in characters."""
IN_USE: Final = "wait until that call ends, then run the same command again"
"""The hint if a run uses the cluster."""
_MAY_BE_TAKEN: Final = (
    "another run may have taken over the cluster: wait until no run uses it, then run the same command again"
)


def begin(journal: Journal, name: str, id: str, stands: Sequence[str]) -> Run:
    """Return the open run of this cluster, or a new one. `stands`: the VMs of the cluster that exist already."""
    earlier_runs = open_runs(journal, name)
    if earlier_runs:
        return earlier_runs[-1]
    return journal.begin(CLUSTER, order=dump_order(ClusterOrder(name, id, tuple(stands))))


def end(site: Site, run: Run) -> None:
    """End the run in the journal. This needs no lock: rotations ignore runs of this kind."""
    with site.unlocked_journal() as journal:
        journal.end(run)


@contextmanager
def changing(site: Site, *, waits: bool = False) -> Iterator[Journal]:
    """Yield the journal, locked so that no rotation runs meanwhile.

    While a rotation runs: raise Locked, or with `waits` wait for it, for up to `ROTATION_S`.
    """
    with ExitStack() as stack:
        is_announced = False
        for left_s in rounds((PAUSE_S,), ROTATION_S, wait=site.pause, read_clock_s=site.passed_s):
            try:
                journal = stack.enter_context(site.locked_journal(site.vcenter.uuid, alone=False))
                break
            except LockedBy as lock_error:
                if not (waits and left_s):
                    raise
                if not is_announced:
                    site.say(f"waiting: {lock_error.message}")
                is_announced = True
        yield journal


def open_runs(journal: Journal | None, name: str, kind: str = CLUSTER) -> tuple[Run, ...]:
    """Return the open runs of this cluster, oldest first."""
    runs = journal.open_runs((kind,)) if journal is not None else ()
    return tuple(run for run in runs if load_cluster_order(run.order).cluster == name)


def begin_program(journal: Journal, launch: Launch) -> Run:
    """Begin the run of a program over a cluster."""
    return journal.begin(PROGRAM, order=dump_order(ClusterOrder(launch.cluster, launch.run, ())))


def end_cut_off_programs(journal: Journal, name: str, run: Run | None = None) -> None:
    """Settle and end the runs of programs that killed calls left open, except for `run`.

    Call this when no process of them is left in a guest, and while no other call can use the cluster.
    """
    for cut_off in open_runs(journal, name, PROGRAM):
        if run is None or cut_off.id != run.id:
            for op_id, _ in journal.open_programs(cut_off):
                journal.record_outcome(op_id, IntentState.FAILED, "the run was cut off before it was seen to end")
            journal.end(cut_off, cut_off=True)


def known_id(name: str, inventory: Inventory, site: Site) -> tuple[str, bool]:
    """Return the id of this cluster, and whether a run of it is open. Raises StateDamaged.

    The id is that of its VMs, or of its open run, or a new one.
    """
    with site.journal_to_read(inventory.vcenter) as journal:
        runs = open_runs(journal, name)
    of_vms = [member.marker.id for member in marked_vms(inventory, name)]
    of_runs = [load_cluster_order(run.order).id for run in runs]
    return next(filter(None, (*of_vms[:1], *of_runs[-1:])), None) or secrets.token_hex(_ID_BYTES), bool(runs)


@contextmanager
def alone_with(site: Site, name: str, doing: str) -> Iterator[None]:
    """Prevent other calls on this machine from making, using or removing this cluster.

    `doing`: what this call does, for the error of another one. Raises Locked if another call has the lock.
    """
    with ExitStack() as stack:
        lock_name = f"{site.vcenter.uuid}-cluster-{name[:LONGEST_NAME]}"  # the name of a file has a limit
        try:
            stack.enter_context(locked(site.state_dir, lock_name, site.clock(), alone=True, doing=doing))
        except LockedBy as lock_error:
            activity = f", {lock_error.holder.doing}," if lock_error.holder.doing else ""
            raise Locked(
                f"cluster {name} is in use: {lock_error.holder}{activity} holds it", hint=IN_USE
            ) from lock_error
        yield


def require_unused(name: str, inventory: Inventory, site: Site) -> None:
    """Raise Locked if a run of another machine uses the cluster, by the lease on its VM of rank 0.

    Call this only inside `alone_with`: a lease that a run of this machine left is then known to be dead.
    """
    for member in marked_vms(inventory, name):
        lease = parse_lease((member.vm.extra_config or {}).get(KEY, "")) if member.marker.rank == 0 else None
        dead = Nonces(site.state_dir, site.vcenter.uuid).on(member.vm.name).read()
        holder = holder_of(lease, inventory.taken_at, dead)
        if holder is not None:
            raise Locked(f"cluster {name} is in use: {lease_holder_text(holder)}", hint=IN_USE)


def wait_for_tasks(site: Site, name: str, inventory: Inventory) -> None:
    """Wait for the tasks of this cluster's VMs, and for all clones of templates, that `inventory` shows.

    After that, each VM that an interrupted call requested either exists or will never exist.
    """
    vms = inventory.vms.values()
    of_cluster = [task for vm in vms if (marker := marker_of(vm)) and marker.cluster == name for task in vm.tasks]
    # the task of a clone belongs to its template and does not name the new VM, so clones of other calls count too
    clones = [task for vm in vms if vm.template for task in vm.tasks if "clone" in task.name.lower()]
    tasks = [TaskRef(task.ref) for task in (*of_cluster, *clones)]
    if tasks:
        site.say(f"cluster {name}: waiting for {len(tasks)} tasks in vCenter")
        for _ in site.vcenter.wait(tasks, CREATION_S):
            pass


@contextmanager
def used_alone(site: Site, cluster: TrainingCluster, doing: str) -> Iterator[HeldLease]:
    """Hold the lease of the cluster, so that no other run uses it.

    Raises Locked with the holder of the lease, and Refused if the lease cannot be written.
    """
    first = cluster.members[0]
    with alone_with(site, cluster.name, doing), _hold_lease(site, cluster.name, first.name, first.vm) as lease:
        yield lease


@contextmanager
def keep_runs_away(site: Site, name: str, members: Sequence[MarkedVm], inventory: Inventory) -> Iterator[None]:
    """Prevent other machines from starting a program on the cluster, by a lease on its VM of rank 0.

    If not all VMs of the cluster run, no lease is needed: a program cannot start then. `members`: the cluster's VMs in
    `inventory`, which was read last. Call this only inside `alone_with`. Raises the errors of `used_alone`.
    """
    with ExitStack() as stack:
        if (
            members
            and len(members) == members[0].marker.nodes
            and all(member.vm.power is PowerState.ON for member in members)
        ):
            first = min(members, key=lambda member: member.marker.rank).vm
            stack.enter_context(_hold_lease(site, name, first.name, first.ref, inventory))
        yield


def lease_lost_error(cluster: str, objection: str) -> Locked:
    """Return the error of a run that has lost its lease."""
    reason = objection.replace("the lock VM", "its VM of rank 0")
    return Locked(f"cluster {cluster}: {reason}", hint=_MAY_BE_TAKEN)


@contextmanager
def _hold_lease(
    site: Site, cluster: str, first: str, ref: str, inventory: Inventory | None = None
) -> Iterator[HeldLease]:
    """Hold a lease on the cluster's VM of rank 0: `first` is its name, `ref` its managed object id.

    Raises Locked if another machine holds it, Refused if it cannot be written.
    """
    try:
        lease = take(site, first, Nonces(site.state_dir, site.vcenter.uuid), ref=ref, before=inventory)
    except NotWritten as unwritten:
        # no error of vCenter: another machine changed the VM between our read and our write
        busy = unwritten.failed is None or unwritten.failed.trouble is Trouble.BUSY
        vcenter_hint = f"{unwritten.failed.hint}; " if unwritten.failed is not None and unwritten.failed.hint else ""
        hint = f"{vcenter_hint}look at the tasks of {first} in vCenter, then run the same command again"
        kind = Locked if busy else Refused
        raise kind(f"cluster {cluster}: it cannot be marked as in use: {unwritten.message}", hint=hint) from unwritten
    except Locked as other:
        raise Locked(f"cluster {cluster} is in use: {other.message}", hint=IN_USE) from other
    except Refused as unusable:
        reason = unusable.message.removeprefix("lock_vm: ")
        hint = unusable.hint or f"look at {first}"
        raise Refused(f"cluster {cluster}: it cannot be marked as in use: {reason}", hint=hint) from unusable
    try:
        yield lease
    finally:
        with suppress(GpuopsError):  # the lease expires by itself or is gone with its VM; the outcome of the call stays
            lease.give_back()
