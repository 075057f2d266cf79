"""Scorers: which of the feasible places is best. The first difference decides, in the order of `SCORERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuops.advise.capacity import free_slots
from gpuops.advise.fragmentation import Fragmentation
from gpuops.advise.occupancy import gpu_states
from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaNode, NumaPolicy
from gpuops.plan.placement.nodes import node_of, short_beside
from gpuops.plan.placement.seating import Seating
from gpuops.plan.placement.wanted import Wanted, WantsVgpu
from gpuops.plan.placement.waste import made_useless


@dataclass(frozen=True, slots=True)
class Candidate:
    """One feasible place: a host, the node the VM would be bound to if one is required, and the seats there."""

    host: Host
    seating: Seating
    node: NumaNode | None = None

    @property
    def subject(self) -> str:
        return self.host.name if self.node is None else f"{self.host.name} numa{self.node.id}"


@dataclass(frozen=True, slots=True)
class World:
    """What scorers may look at."""

    wanted: Wanted
    inventory: Inventory
    catalog: Catalog
    fragmentation: Fragmentation | None = None
    """The measure for this site's mix of VMs; None where there is nothing to choose between."""


@dataclass(frozen=True, slots=True)
class Score:
    """Higher is better; `reason` in words, empty where there is nothing to say."""

    value: float
    reason: str


Scorer = Callable[[Candidate, World], Score]


def stays(candidate: Candidate, world: World) -> Score:
    if world.wanted.vm.host is None:
        return Score(0, "")
    here = candidate.host.ref == world.wanted.vm.host
    return Score(here, "the VM is registered there" if here else "the VM must move there")


def certain(candidate: Candidate, world: World) -> Score:
    doubts = len(candidate.seating.doubts)
    return Score(-doubts, f"open questions: {doubts}" if doubts else "every check was possible")


def spreads(candidate: Candidate, world: World) -> Score:
    others = world.wanted.spread_from
    there = others.count(candidate.host.ref)
    return Score(-there, f"of its spread group there: {there}" if others else "")


def beside_gpu(candidate: Candidate, world: World) -> Score:
    """Whether cores, memory and GPU can share a NUMA node."""
    if world.wanted.numa is NumaPolicy.NONE:
        return Score(0, "NUMA does not count")
    node = local_node(candidate, world)
    if node is None:
        return Score(0, "cores and memory may be remote from the GPU")
    return Score(1, f"cores and memory beside the GPU on NUMA node {node}")


def same_cluster(candidate: Candidate, world: World) -> Score:
    if world.wanted.vm.host is None:
        return Score(0, "")
    own = world.inventory.host_of(world.wanted.vm)
    same = own is not None and own.cluster is not None and candidate.host.cluster == own.cluster
    return Score(same, "the same cluster" if same else "another cluster, or none")


def wastes_least(candidate: Candidate, world: World) -> Score:
    """How much less the GPUs there are worth to the VMs that the site knows; small differences do not decide."""
    if world.fragmentation is None or not candidate.seating.seats:
        return Score(0, "")
    wanted, seats = world.wanted, candidate.seating.seats
    waste = made_useless(wanted, seats, candidate.host, world.inventory, world.fragmentation)
    gib = f"{abs(waste.mib) / 1024:.1f} GiB"
    if waste.steps > 0:
        return Score(-waste.steps, f"GPU memory made useless to the VMs here: {gib}")
    return Score(
        -waste.steps,
        f"fills GPU memory useless to the VMs here: {gib}" if waste.steps else "no GPU memory made useless",
    )


def fullest(candidate: Candidate, world: World) -> Score:
    """Fill what is begun: a GPU left empty takes any profile tomorrow, a half-full one only its own size."""
    left = slots_left(candidate.host, world)
    return Score(-left, f"free slots for it there: {left}" if left else "")


SCORERS: Final[tuple[Scorer, ...]] = (
    stays,  # moving a VM is the dearest thing a plan can do
    certain,  # then a power-on that will not be refused
    spreads,  # then what was asked for by name: not all of a group lost with one host
    beside_gpu,  # then speed inside the guest
    same_cluster,  # then what vMotion, HA and DRS can still reach
    wastes_least,  # then what the next VMs can still be given
    fullest,  # last: keep whole GPUs free for what needs them
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


def slots_left(host: Host, world: World) -> int:
    """Slots for the VM's vGPU profiles on the host now, at least."""
    states = gpu_states(host, world.inventory, world.catalog)
    profiles = {demand.profile for demand in world.wanted.demands if isinstance(demand, WantsVgpu)}
    return sum(
        free_slots(state.gpu, state.holders, profile, world.catalog).at_least
        for state in states
        for profile in profiles
    )
