"""Ensures that one run at a time uses a cluster, on all machines, by a lease on the VM of rank 0.

A run holds the lease until it ends. A call that removes VMs of a cluster which a run could use takes the lease first.

It is the lease of rotations (`gpuops.execute.lease`), written to extraConfig of that VM by compare and set. A second
run is refused before it starts anything. The machine of a killed run recognizes its own lease as dead. Other machines
wait until it has expired by vCenter's clock, at most three minutes, and take it over: the preparation of a run ends
the processes of the run before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from gpuops.errors import GpuopsError, Locked, Refused, Trouble
from gpuops.execute.lease.lease import HeldLease, NotWritten, take
from gpuops.execute.lease.nonces import Nonces
from gpuops.extras.clusters.run import IN_USE, alone_with
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import TrainingCluster

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.extras.clusters.members import MarkedVm
    from gpuops.model.vcenter.inventory import Inventory


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
    """Prevent runs of other machines. If the cluster does not run completely, no run can begin anyway.

    `members`: its VMs in `inventory`, which was read last. Call this only inside `alone_with`. Raises like
    `used_alone`.
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


def require_ours(lease: HeldLease, cluster: str) -> None:
    """Raise Locked if another machine has taken the lease, or if that cannot be excluded."""
    objection = lease.objection()
    if objection is not None:
        raise lease_lost_error(cluster, objection)


def lease_lost_error(cluster: str, objection: str) -> Locked:
    """Return the error of a run that has lost its lease."""
    reason = objection.replace("the lock VM", "its VM of rank 0")
    return Locked(f"cluster {cluster}: {reason}", hint="another run may use it; gpuops cluster show shows its VMs")


@contextmanager
def _hold_lease(
    site: Site, cluster: str, first: str, ref: str, inventory: Inventory | None = None
) -> Iterator[HeldLease]:
    """Hold a lease on the first VM of the cluster, which is given by name and managed object id."""
    try:
        lease = take(site, first, Nonces(site.state_dir, site.vcenter.uuid), ref=ref, before=inventory)
    except NotWritten as unwritten:
        busy = unwritten.failed is None or unwritten.failed.trouble is Trouble.BUSY
        vcenter_hint = f"{unwritten.failed.hint}; " if unwritten.failed is not None and unwritten.failed.hint else ""
        hint = f"{vcenter_hint}look at the tasks of {first} in vCenter, then say the same again"
        kind = Locked if busy else Refused
        raise kind(f"cluster {cluster}: its use cannot be marked: {unwritten.message}", hint=hint) from unwritten
    except Locked as other:
        raise Locked(f"cluster {cluster} is in use: {other.message}", hint=IN_USE) from other
    except Refused as unusable:
        reason = unusable.message.removeprefix("lock_vm: ")
        hint = unusable.hint or f"look at {first}"
        raise Refused(f"cluster {cluster}: its use cannot be marked: {reason}", hint=hint) from unusable
    try:
        yield lease
    finally:
        with suppress(GpuopsError):  # the lease expires by itself or is gone with its VM; the outcome of the call stays
            lease.give_back()
