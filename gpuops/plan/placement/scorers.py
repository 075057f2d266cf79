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
    """Higher is better; `reason`: in words, empty where the score says nothing about the place."""

    value: float
    reason: str


Scorer = Callable[[Candidate, PlacementQuestion, Loss], Score]


def score_staying(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    if question.wanted.vm.host is None:
        return Score(0, "")
    here = candidate.host.ref == question.wanted.vm.host
    return Score(here, "the VM is registered there" if here else "the VM must move there")


def score_certainty(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    doubts = len(candidate.seating.doubts)
    return Score(-doubts, f"open questions: {doubts}" if doubts else "every check was possible")


def score_spread(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    others = question.wanted.spread_from
    there = others.count(candidate.host.ref)
    return Score(-there, f"of its spread group there: {there}" if others else "")


def score_locality(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    """Whether cores, memory and GPU can share a NUMA node."""
    if question.wanted.numa is NumaPolicy.NONE:
        return Score(0, "NUMA does not count")
    node = local_node(candidate, question)
    if node is None:
        return Score(0, "cores and memory may be remote from the GPU")
    return Score(1, f"cores and memory beside the GPU on NUMA node {node}")


def score_cluster(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    if question.wanted.vm.host is None:
        return Score(0, "")
    own = question.inventory.host_of(question.wanted.vm)
    same = own is not None and own.cluster is not None and candidate.host.cluster == own.cluster
    return Score(same, "the same cluster" if same else "another cluster, or none")


def score_loss(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    """How much is left to other VMs that the site has or is asked for; small differences do not decide."""
    if loss == NO_LOSS:
        return Score(0, "")
    worth, kept = loss.worth_mib / _GIB_MIB, loss.kept_mib / _GIB_MIB
    reason = f"takes {worth:.1f} GiB of use from other VMs"
    if kept >= _NEGLIGIBLE_GIB:
        reason += f" and {kept:.1f} GiB kept for VMs with whole GPUs"
    return Score(-loss.steps, reason)


SCORERS: Final[tuple[Scorer, ...]] = (
    score_staying,  # moving a VM is the dearest thing a plan can do
    score_certainty,  # then a power-on that will not be refused
    score_spread,  # then what was asked for by name: not all of a group lost with one host
    score_locality,  # then speed inside the guest
    score_cluster,  # then what vMotion, HA and DRS can still reach
    score_loss,  # then what the next VMs can still be given
)


def local_node(candidate: Candidate, question: PlacementQuestion) -> int | None:
    """The NUMA node that holds the GPUs the VM is expected on, and has its cores and memory."""
    if candidate.node is not None:
        return candidate.node.id
    gpus = [candidate.host.device(address) for address in candidate.seating.seats.values()]
    number = node_of(gpu.numa_node if gpu else None for gpu in gpus)
    node = next((node for node in candidate.host.numa_nodes if node.id == number), None)
    if node is None or short_beside(question.wanted.vm, node, candidate.host, question.inventory):
        return None
    return node.id
