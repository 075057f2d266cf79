"""Which of the feasible places is best. The first difference decides, in the order of `SCORERS`.

`select.py` calls them. A new rule is a function here, a line in `SCORERS` with the reason for its position, and cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuops.model.vcenter.host import NumaPolicy
from gpuops.plan.placement.candidates import Candidate, PlacementQuestion
from gpuops.plan.placement.fleet.site_demand import NO_LOSS, Loss
from gpuops.plan.placement.nodes import node_of, short_beside

_GIB_MIB: Final = 1024
_NEGLIGIBLE_GIB: Final = 0.05
"""GiB that are too little to be named in a reason."""


@dataclass(frozen=True, slots=True)
class Score:
    """A score and its reason in words. Higher is better; an empty reason is not shown."""

    value: float
    reason: str


Scorer = Callable[[Candidate, PlacementQuestion, Loss], Score]


def score_staying(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    if question.needs.vm.host is None:
        return Score(0, "")
    stays = candidate.host.ref == question.needs.vm.host
    return Score(stays, "the VM is registered there" if stays else "the VM must move there")


def score_certainty(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    doubts = len(candidate.seating.doubts)
    return Score(-doubts, f"open questions: {doubts}" if doubts else "every check was possible")


def score_spread(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    spread_hosts = question.needs.spread_from
    group_vms_on_host = spread_hosts.count(candidate.host.ref)
    return Score(-group_vms_on_host, f"of its spread group there: {group_vms_on_host}" if spread_hosts else "")


def score_locality(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    """Whether cores, memory and GPU can share a NUMA node."""
    if question.needs.numa is NumaPolicy.NONE:
        return Score(0, "NUMA does not count")
    node = local_node(candidate, question)
    if node is None:
        return Score(0, "cores and memory may be remote from the GPU")
    return Score(1, f"cores and memory beside the GPU on NUMA node {node}")


def score_cluster(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    if question.needs.vm.host is None:
        return Score(0, "")
    current_host = question.inventory.host_of(question.needs.vm)
    same = (
        current_host is not None and current_host.cluster is not None and candidate.host.cluster == current_host.cluster
    )
    return Score(same, "the same cluster" if same else "another cluster, or none")


def score_loss(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    """How much the place leaves to the other VMs that the site has or is asked for; small differences do not count."""
    if loss == NO_LOSS:
        return Score(0, "")
    worth_gib, kept_gib = loss.worth_mib / _GIB_MIB, loss.kept_mib / _GIB_MIB
    reason = f"takes {worth_gib:.1f} GiB of use from other VMs"
    if kept_gib >= _NEGLIGIBLE_GIB:
        reason += f" and {kept_gib:.1f} GiB kept for VMs with whole GPUs"
    return Score(-loss.steps, reason)


SCORERS: Final[tuple[Scorer, ...]] = (
    score_staying,  # moving a VM is the most expensive step of a plan
    score_certainty,  # a refused power-on is worse than a slow VM
    score_spread,  # requested explicitly: one failed host must not stop the complete group
    score_locality,  # speed inside the guest
    score_cluster,  # vMotion, HA and DRS stay within a cluster
    score_loss,  # room for the next VMs
)


def local_node(candidate: Candidate, question: PlacementQuestion) -> int | None:
    """Return the NUMA node with the GPUs that the VM is expected on and enough cores and memory for it, or None."""
    if candidate.node is not None:
        return candidate.node.id
    gpus = [candidate.host.device(address) for address in candidate.seating.seats.values()]
    number = node_of(gpu.numa_node if gpu else None for gpu in gpus)
    node = next((node for node in candidate.host.numa_nodes if node.id == number), None)
    if node is None or short_beside(question.needs.vm, node, candidate.host, question.inventory):
        return None
    return node.id
