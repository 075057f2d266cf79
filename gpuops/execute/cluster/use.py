"""One run at a time uses a cluster, on whatever machine: it holds a lease on the VM of rank 0 while it goes on.
Whoever removes VMs of a cluster that a run could use takes the same lease first.

It is the lease of rotations (`gpuops.execute.lease`), in extraConfig of that VM, compared and set: the second run is
refused before it starts anything, and the machine of a run that was killed knows its lease for dead. Other machines
wait until it has run out by vCenter's clock, three minutes at the most, and then take it over: the preparation of a run
ends what is left of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from gpuops.errors import GpuopsError, Locked, Refused, Trouble
from gpuops.execute.cluster.run import IN_USE, alone_with
from gpuops.execute.lease.lease import HeldLease, NotWritten, take
from gpuops.execute.lease.nonces import Nonces
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import TrainingCluster

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.cluster.members import MarkedVm


@contextmanager
def used_alone(site: Site, cluster: TrainingCluster, doing: str) -> Iterator[HeldLease]:
    """While this lasts no other run uses the cluster. Raises Locked, naming who does, and Refused where the lease
    cannot be written."""
    first = cluster.members[0]
    with alone_with(site, cluster.name, doing), _leased(site, cluster.name, first.name, first.vm) as held:
        yield held


@contextmanager
def kept_from_runs(site: Site, name: str, there: Sequence[MarkedVm], seen: Inventory) -> Iterator[None]:
    """While this lasts no run of another machine begins; where the cluster does not run whole, none can.

    `there`: its VMs in the latest look, `seen`. Only under the lock of `alone_with`. Raises as `used_alone` does.
    """
    with ExitStack() as stack:
        if there and len(there) == there[0].marker.nodes and all(each.vm.power is PowerState.ON for each in there):
            first = min(there, key=lambda each: each.marker.rank).vm
            stack.enter_context(_leased(site, name, first.name, first.ref, seen))
        yield


def require_ours(held: HeldLease, cluster: str) -> None:
    """Raises Locked where another machine has taken the lease, or nobody can tell that it has not."""
    why = held.objection()
    if why is not None:
        raise lost(cluster, why)


def lost(cluster: str, why: str) -> Locked:
    """The error of a run whose lease is gone."""
    reason = why.replace("the lock VM", "its VM of rank 0")
    return Locked(f"cluster {cluster}: {reason}", hint="another run may use it; gpuops cluster show shows its VMs")


@contextmanager
def _leased(site: Site, cluster: str, first: str, ref: str, seen: Inventory | None = None) -> Iterator[HeldLease]:
    """The lease on the first VM of the cluster, by name and managed object id."""
    try:
        held = take(site, first, Nonces(site.state_dir, site.vcenter.uuid), ref=ref, before=seen)
    except NotWritten as unwritten:
        busy = unwritten.failed is None or unwritten.failed.trouble is Trouble.BUSY
        told = f"{unwritten.failed.hint}; " if unwritten.failed is not None and unwritten.failed.hint else ""
        hint = f"{told}look at the tasks of {first} in vCenter, then say the same again"
        kind = Locked if busy else Refused
        raise kind(f"cluster {cluster}: its use cannot be marked: {unwritten.message}", hint=hint) from unwritten
    except Locked as other:
        raise Locked(f"cluster {cluster} is in use: {other.message}", hint=IN_USE) from other
    except Refused as unusable:
        reason = unusable.message.removeprefix("lock_vm: ")
        hint = unusable.hint or f"look at {first}"
        raise Refused(f"cluster {cluster}: its use cannot be marked: {reason}", hint=hint) from unusable
    try:
        yield held
    finally:
        with suppress(GpuopsError):  # it runs out by itself, or is gone with its VM; how the call ended stays so
            held.give_back()
