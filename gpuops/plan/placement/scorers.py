"""Scorers: which of the feasible places is best. The first difference decides, in the order of `SCORERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuops.model.numa import NumaPolicy
from gpuops.plan.placement.candidates import Candidate, World
from gpuops.plan.placement.loss import NO_LOSS, Loss
from gpuops.plan.placement.nodes import node_of, short_beside

_GIB_MIB: Final = 1024
_LITTLE: Final = 0.05
"""GiB that are not worth a word."""


@dataclass(frozen=True, slots=True)
class Score:
    """Higher is better; `reason` in words, empty where there is nothing to say."""

    value: float
    reason: str


Scorer = Callable[[Candidate, World, Loss], Score]


def stays(candidate: Candidate, world: World, loss: Loss) -> Score:
    if world.wanted.vm.host is None:
        return Score(0, "")
    here = candidate.host.ref == world.wanted.vm.host
    return Score(here, "the VM is registered there" if here else "the VM must move there")


def certain(candidate: Candidate, world: World, loss: Loss) -> Score:
    doubts = len(candidate.seating.doubts)
    return Score(-doubts, f"open questions: {doubts}" if doubts else "every check was possible")


def spreads(candidate: Candidate, world: World, loss: Loss) -> Score:
    others = world.wanted.spread_from
    there = others.count(candidate.host.ref)
    return Score(-there, f"of its spread group there: {there}" if others else "")


def beside_gpu(candidate: Candidate, world: World, loss: Loss) -> Score:
    """Whether cores, memory and GPU can share a NUMA node."""
    if world.wanted.numa is NumaPolicy.NONE:
        return Score(0, "NUMA does not count")
    node = local_node(candidate, world)
    if node is None:
        return Score(0, "cores and memory may be remote from the GPU")
    return Score(1, f"cores and memory beside the GPU on NUMA node {node}")


def same_cluster(candidate: Candidate, world: World, loss: Loss) -> Score:
    if world.wanted.vm.host is None:
        return Score(0, "")
    own = world.inventory.host_of(world.wanted.vm)
    same = own is not None and own.cluster is not None and candidate.host.cluster == own.cluster
    return Score(same, "the same cluster" if same else "another cluster, or none")


def leaves_most(candidate: Candidate, world: World, loss: Loss) -> Score:
    """What is left to the other VMs that the site knows or is asked for; small differences do not decide."""
    if loss == NO_LOSS:
        return Score(0, "")
    worth, kept = loss.worth_mib / _GIB_MIB, loss.kept_mib / _GIB_MIB
    reason = f"takes {worth:.1f} GiB of use from other VMs"
    if kept >= _LITTLE:
        reason += f" and {kept:.1f} GiB kept for VMs of several GPUs"
    return Score(-loss.steps, reason)


SCORERS: Final[tuple[Scorer, ...]] = (
    stays,  # moving a VM is the dearest thing a plan can do
    certain,  # then a power-on that will not be refused
    spreads,  # then what was asked for by name: not all of a group lost with one host
    beside_gpu,  # then speed inside the guest
    same_cluster,  # then what vMotion, HA and DRS can still reach
    leaves_most,  # then what the next VMs can still be given
)


def local_node(candidate: Candidate, world: World) -> int | None:
    """The NUMA node that holds the GPUs the VM is expected on, and has its cores and memory."""
    if candidate.node is not None:
        return candidate.node.id
    gpus = [candidate.host.gpu(address) for address in candidate.seating.seats.values()]
    number = node_of(gpu.numa_node if gpu else None for gpu in gpus)
    node = next((node for node in candidate.host.numa_nodes if node.id == number), None)
    if node is None or short_beside(world.wanted.vm, node, candidate.host, world.inventory):
        return None
    return node.id
