"""Starts and stops the VMs of a cluster together: either all of them start in a night, or none. If one stops for
desktops or fails to start, the others have nothing to do and stop too.

The queue is decided without regard to clusters first. If some VMs of a cluster start and others do not, the cluster is
left out and the queue is decided again, until no cluster is incomplete. Of several incomplete clusters, the last in the
queue is left out first: an earlier one may lack the GPUs that it would have taken.

Example: clusters A and B need two GPUs each, three are free. At first A has two starts and B one; B is left out, and
the next VM in the queue gets the third GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, parse_cluster_marker
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.ml_queue.ml_vms import WaitingVm
from gpuops.plan.rotation.ml_queue.queue import QueueDecision
from gpuops.plan.rotation.taken_vms import TakenVm

Decide = Callable[[tuple[WaitingVm, ...]], QueueDecision]
"""A function that decides which VMs of this queue start."""


@dataclass(frozen=True, slots=True)
class QueuedCluster:
    """A cluster with at least one VM in the queue."""

    name: str
    nodes: int
    vms: tuple[Vm, ...]
    """Its existing VMs: those that wait, that run, and that are in no queue."""

    def reason_incomplete(self, starting: Collection[str], reasons: Mapping[str, str]) -> str:
        """Return why it is incomplete if these VMs (refs) start; empty = it is complete, or none of its VMs starts.

        `reasons`: VM ref -> why a VM of the queue does not start.
        """
        if not any(vm.ref in starting for vm in self.vms):
            return ""
        if len(self.vms) != self.nodes:
            return f"{len(self.vms)} of its {self.nodes} VMs exist"
        not_starting = [vm for vm in self.vms if vm.power is not PowerState.ON and vm.ref not in starting]
        return "; ".join(f"{vm.name}: {reasons.get(vm.ref) or 'it is in no queue'}" for vm in not_starting)


def decide_with_clusters(decide: Decide, queue: Sequence[WaitingVm], inventory: Inventory) -> QueueDecision:
    """Return the decision in which every cluster starts completely or not at all, with a reason for each VM left
    out.

    Decides, leaves out the last incomplete cluster of the queue, and decides again until none is incomplete. Only one
    cluster at a time is left out, because its room may complete an earlier one.
    """
    clusters = _clusters(queue, inventory)
    left_out: dict[str, str] = {}  # VM ref -> why it is left out
    while True:
        considered: list[WaitingVm] = []
        for waits in queue:
            reason = left_out.get(waits.vm.ref, "") if waits.vm is not None else ""
            considered.append(replace(waits, reason=waits.reason or reason))
        decision = decide(tuple(considered))
        starting = {start.vm.ref for start in decision.starts}
        decided = zip(queue, decision.choices, strict=True)
        reasons = {waits.vm.ref: choice.reason for waits, choice in decided if waits.vm is not None}
        for cluster in reversed(clusters):
            incomplete = cluster.reason_incomplete(starting, reasons)
            if incomplete:
                reason = f"its cluster {cluster.name} starts completely or not at all: {incomplete}"
                left_out |= dict.fromkeys((vm.ref for vm in cluster.vms), reason)
                break  # decide again without this cluster
        else:
            return decision  # no cluster is incomplete


def _clusters(queue: Sequence[WaitingVm], inventory: Inventory) -> tuple[QueuedCluster, ...]:
    """Return the clusters with VMs in the queue, in its order."""
    queued = {marker.id: marker for _, marker in _cluster_members(waits.vm for waits in queue if waits.vm is not None)}
    if not queued:
        return ()
    vms: dict[str, list[Vm]] = {}
    for vm, marker in _cluster_members(inventory.vms.values()):
        vms.setdefault(marker.id, []).append(vm)
    return tuple(
        QueuedCluster(marker.cluster, marker.nodes, tuple(vms.get(marker.id, ()))) for marker in queued.values()
    )


def _cluster_members(vms: Iterable[Vm]) -> Iterator[tuple[Vm, ClusterMarker]]:
    for vm in vms:
        text = (vm.extra_config or {}).get(MARKER_KEY)
        marker = parse_cluster_marker(text) if text else None
        # a copy of such a VM has its marker but another name
        if marker is not None and not vm.template and vm.name == f"{marker.cluster}-{marker.rank:02}":
            yield vm, marker


def with_their_clusters(stops: Sequence[TakenVm], running: Iterable[TakenVm]) -> tuple[TakenVm, ...]:
    """Return these ML VMs and the other running VMs of their clusters."""
    stop_vms = [stop.vm for stop in stops if stop.vm is not None]
    cluster_ids = {marker.id for _, marker in _cluster_members(stop_vms)}
    same_clusters = []
    for ml_vm in running if cluster_ids else ():
        ids = {marker.id for _, marker in _cluster_members([ml_vm.vm] if ml_vm.vm is not None else [])}
        if ids & cluster_ids and ml_vm not in stops:
            same_clusters.append(ml_vm)
    return (*stops, *same_clusters)


@dataclass(frozen=True, slots=True)
class HalfStarted:
    """A cluster of which some VMs were started, and the others did not start."""

    name: str
    started: tuple[Vm, ...]
    failed: tuple[Vm, ...]

    def __str__(self) -> str:
        failed, started = (", ".join(vm.name for vm in vms) for vms in (self.failed, self.started))
        return f"cluster {self.name}: {failed} did not start, so {started} cannot work"


def half_started(
    outcomes: Iterable[Outcome], inventory: Inventory, earlier: Mapping[str, bool]
) -> tuple[HalfStarted, ...]:
    """Return the clusters of which only some VMs started.

    `earlier`: VM ref -> whether its start succeeded in the interrupted run that this one completes.
    """
    started = dict(earlier)
    for outcome in outcomes:
        if isinstance(outcome.step, PowerOnVm):
            started[outcome.step.vm] = outcome.verdict in (Verdict.DONE, Verdict.ALREADY)
    # Id of the cluster -> its VMs.
    started_by_cluster: dict[str, list[Vm]] = {}
    unstarted_by_cluster: dict[str, list[Vm]] = {}
    names: dict[str, str] = {}
    for member, marker in _cluster_members(inventory.vms[ref] for ref in started if ref in inventory.vms):
        names[marker.id] = marker.cluster
        vms_by_cluster = started_by_cluster if started[member.ref] else unstarted_by_cluster
        vms_by_cluster.setdefault(marker.id, []).append(member)
    return tuple(
        HalfStarted(names[id], tuple(started_by_cluster[id]), tuple(unstarted_by_cluster[id]))
        for id in started_by_cluster
        if id in unstarted_by_cluster
    )
