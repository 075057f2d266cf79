"""VMs of a cluster count as one: in the queue of a night all of them start before morning, or none does; where one of
them gives way to desktops, or does not start after all, the others have nothing to do and stop too.

The queue is decided as ever. Where that starts some VMs of a cluster and not the others, the whole cluster is left out,
and the queue is decided anew, until no cluster is in part. Of several in part the last in the queue is left out first:
what it would have taken may be what an earlier one lacks.

Example: clusters A and B want two GPUs each, three are free. At first A has two starts and B one; B is left out, and
the third GPU goes to whoever comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, parse_cluster_marker
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.rotation.ml_queue.ml_vms import WaitingVm
from gpuops.plan.rotation.ml_queue.queue import QueueDecision
from gpuops.plan.rotation.taken_vms import TakenVm

Decide = Callable[[tuple[WaitingVm, ...]], QueueDecision]
"""Which VMs of this queue start."""


@dataclass(frozen=True, slots=True)
class QueuedCluster:
    """A cluster some of whose VMs wait in the queue."""

    name: str
    nodes: int
    vms: tuple[Vm, ...]
    """Those that are there, whether they wait, run, or are in no queue."""

    def missing(self, starting: Mapping[str, str], reasons: Mapping[str, str]) -> str:
        """Why it is not whole with these starts (by ref); empty = it is, or none of its VMs starts."""
        if not any(vm.ref in starting for vm in self.vms):
            return ""
        if len(self.vms) != self.nodes:
            return f"{len(self.vms)} of its {self.nodes} VMs are there"
        still = [vm for vm in self.vms if vm.power is not PowerState.ON and vm.ref not in starting]
        return "; ".join(f"{vm.name}: {reasons.get(vm.ref) or 'it is in no queue'}" for vm in still)


def decide_with_clusters(decide: Decide, queue: Sequence[WaitingVm], inventory: Inventory) -> QueueDecision:
    """The decision in which every cluster starts whole or not at all; a VM that is left out says why."""
    clusters = _clusters(queue, inventory)
    left_out: dict[str, str] = {}
    while True:
        decision = decide(tuple(_with_reason(waits, left_out) for waits in queue))
        starting = {start.vm.ref: start.vm.name for start in decision.starts}
        reasons = {
            waits.vm.ref: choice.reason
            for waits, choice in zip(queue, decision.choices, strict=True)
            if waits.vm is not None
        }
        in_part = ((cluster, why) for cluster in reversed(clusters) if (why := cluster.missing(starting, reasons)))
        cluster, why = next(in_part, (None, ""))
        if cluster is None:
            return decision
        left_out |= {vm.ref: f"its cluster {cluster.name} starts whole or not at all: {why}" for vm in cluster.vms}


def _with_reason(waits: WaitingVm, left_out: Mapping[str, str]) -> WaitingVm:
    reason = left_out.get(waits.vm.ref, "") if waits.vm is not None else ""
    return replace(waits, reason=reason) if reason and not waits.reason else waits


def _clusters(queue: Sequence[WaitingVm], inventory: Inventory) -> tuple[QueuedCluster, ...]:
    """The clusters with VMs in the queue, in its order."""
    queued = {marker.id: marker for _, marker in _marked(waits.vm for waits in queue if waits.vm is not None)}
    if not queued:
        return ()
    vms: dict[str, list[Vm]] = {}
    for vm, marker in _marked(inventory.vms.values()):
        vms.setdefault(marker.id, []).append(vm)
    return tuple(QueuedCluster(each.cluster, each.nodes, tuple(vms.get(each.id, ()))) for each in queued.values())


def _marked(vms: Iterable[Vm]) -> Iterator[tuple[Vm, ClusterMarker]]:
    for vm in vms:
        text = (vm.extra_config or {}).get(MARKER_KEY)
        marker = parse_cluster_marker(text) if text else None
        # a copy of such a VM has its marker, and another name
        if marker is not None and not vm.template and vm.name == f"{marker.cluster}-{marker.rank:02}":
            yield vm, marker


def with_their_clusters(stops: Sequence[TakenVm], running: Iterable[TakenVm]) -> tuple[TakenVm, ...]:
    """These ML VMs, then the others of their clusters among those that run."""
    ids = {marker.id for _, marker in _marked(each.vm for each in stops if each.vm is not None)}
    others = [each for each in running if ids and _is_of(each.vm, ids) and each not in stops]
    return (*stops, *others)


def _is_of(vm: Vm | None, ids: set[str]) -> bool:
    return any(marker.id in ids for _, marker in _marked((vm,) if vm is not None else ()))


@dataclass(frozen=True, slots=True)
class HalfStarted:
    """A cluster of which some VMs were started, and the others did not start."""

    name: str
    started: tuple[Vm, ...]
    failed: tuple[Vm, ...]

    def __str__(self) -> str:
        failed, started = (", ".join(vm.name for vm in each) for each in (self.failed, self.started))
        return f"cluster {self.name}: {failed} did not start, so that {started} has nothing to do"


def half_started(
    outcomes: Iterable[Outcome], inventory: Inventory, earlier: Mapping[str, bool]
) -> tuple[HalfStarted, ...]:
    """The clusters that these starts leave in part. `earlier`: by VM (ref), whether its start did well in the run that
    was cut off and is finished by this one."""
    started = dict(earlier)
    for outcome in outcomes:
        if isinstance(outcome.step, PowerOnVm):
            started[outcome.step.vm] = outcome.verdict in (Verdict.DONE, Verdict.ALREADY)
    good: dict[str, list[Vm]] = {}
    bad: dict[str, list[Vm]] = {}
    names: dict[str, str] = {}
    for member, marker in _marked(inventory.vms[ref] for ref in started if ref in inventory.vms):
        names[marker.id] = marker.cluster
        (good if started[member.ref] else bad).setdefault(marker.id, []).append(member)
    return tuple(HalfStarted(names[id], tuple(good[id]), tuple(bad[id])) for id in good if id in bad)
