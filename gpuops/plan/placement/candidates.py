"""Candidates: the feasible places on a host, each with its seats, and every reason against the others.

What the host itself would choose is one place. Where the GPU is ours to choose, each GPU with room is one more, and the
VM would be bound to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpuops.advise.occupancy import gpu_states, may_run
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import GraphicsType, PciAddress, PhysicalGpu
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaNode, NumaPolicy
from gpuops.plan.placement.filters import refusals
from gpuops.plan.placement.gpus import slot_on
from gpuops.plan.placement.nodes import memory_doubt, short_beside
from gpuops.plan.placement.seating import Seating, seat
from gpuops.plan.placement.wanted import Demand, PinPolicy, Wanted, WantsVgpu
from gpuops.plan.plan import Rejection

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.losses import Losses


@dataclass(frozen=True, slots=True)
class Candidate:
    """One feasible place: a host, the node the VM would be beside if one is required, and the seats there."""

    host: Host
    seating: Seating
    node: NumaNode | None = None
    bound: bool = False
    """The GPUs are ours to choose; else they are those that the host would take."""

    @property
    def subject(self) -> str:
        return self.host.name if self.node is None else f"{self.host.name} numa{self.node.id}"

    @property
    def gpus(self) -> str:
        return ", ".join(str(address) for address in sorted(set(self.seating.seats.values())))


@dataclass(frozen=True)
class World:
    """What is asked, and of what."""

    wanted: Wanted
    inventory: Inventory
    catalog: Catalog

    @cached_property
    def losses(self) -> Losses:
        """What a place takes from other VMs. Made at the first question: where there is no choice there is none."""
        from gpuops.plan.placement.fleet.index import Fleet
        from gpuops.plan.placement.fleet.losses import Losses

        return Losses(self.wanted, Fleet.of(self.inventory, self.catalog))


def on_host(host: Host, world: World) -> Iterator[Candidate | Rejection]:
    """Each feasible place on the host (one, one per NUMA node if locality is required, one per GPU if that is ours to
    choose), and each reason against."""
    wanted = world.wanted
    refused = refusals(wanted, host, world.inventory)
    if refused and not _worth_a_look(host, world):
        yield from refused
        return
    for found in _places(host, world):
        if isinstance(found, Rejection) or not refused:
            yield found
    yield from refused


def _worth_a_look(host: Host, world: World) -> bool:
    """Whether a refused host's GPUs are looked at too: where it is the only host, and its GPUs may tell the cause."""
    demands = world.wanted.demands
    return len(world.wanted.hosts) == 1 and any(
        not isinstance(demand, WantsVgpu) or any(may_run(gpu, demand.profile, world.catalog) for gpu in host.gpus)
        for demand in demands
    )


def _places(host: Host, world: World) -> Iterator[Candidate | Rejection]:
    wanted, demands = world.wanted, demands_on(host, world.wanted)
    if wanted.numa is not NumaPolicy.REQUIRED:
        seating = seat(wanted.vm, demands, host, world.inventory, world.catalog)
        if seating.complete:
            yield from _with_bound(Candidate(host, seating), world)
        yield from seating.rejections
        return
    if not host.numa_nodes:
        yield Rejection(host.name, "its NUMA nodes cannot be read", hint="--numa preferred does without")
    for node in sorted(host.numa_nodes, key=lambda node: node.id):
        short = short_beside(wanted.vm, node, host, world.inventory)
        seating = seat(wanted.vm, demands, host, world.inventory, world.catalog, node.id)
        candidate = Candidate(host, seating, node)
        unpinned = _unpinned_elsewhere(candidate, world) if wanted.pin is PinPolicy.NEVER else None
        if seating.complete and not short and unpinned is None:
            yield from _with_bound(candidate, world)
        yield from (*short, *seating.rejections, *([unpinned] if unpinned else []))


def _with_bound(own: Candidate, world: World) -> Iterator[Candidate]:
    """The host's own choice, and the places on other GPUs where the GPU is ours to choose."""
    yield own
    found = _bound(own.host, own.node, world)
    yield from (candidate for candidate in found if candidate.seating.seats != own.seating.seats)


def _bound(host: Host, node: NumaNode | None, world: World) -> Iterator[Candidate]:
    profile = world.wanted.bindable
    if profile is None:
        if world.wanted.numa is NumaPolicy.PREFERRED and world.wanted.mixed:
            yield from (
                found for each in host.numa_nodes if (found := _mixed_on_one_node(host, each, world)) is not None
            )
        return
    if len(world.wanted.demands) == 1:
        yield from _on_one_gpu(WantsVgpu(world.wanted.demands[0].ordinal, profile), host, node, world)
    elif world.wanted.numa is not NumaPolicy.NONE:
        nodes = host.numa_nodes if node is None else (node,)
        yield from (found for each in nodes if (found := _on_one_node(profile, host, each, world)) is not None)


def _on_one_gpu(demand: WantsVgpu, host: Host, node: NumaNode | None, world: World) -> Iterator[Candidate]:
    vm = world.wanted.vm
    memory = memory_doubt(vm, host, world.inventory)
    for state in gpu_states(host, world.inventory, world.catalog):
        if node is not None and state.gpu.numa_node != node.id:
            continue
        answer = slot_on(state.without(vm.ref), demand, vm, host, world.catalog)
        if not isinstance(answer, Rejection):
            doubts = tuple(doubt for doubt in (memory, answer) if doubt)
            yield Candidate(host, Seating({demand.ordinal: state.gpu.address}, (), doubts), node, bound=True)


def _on_one_node(profile: str, host: Host, node: NumaNode, world: World) -> Candidate | None:
    """Several vGPUs where the pool would put them on this node, as far as the exact rules have it so."""
    wanted = world.wanted
    if short_beside(wanted.vm, node, host, world.inventory):
        return None
    gpus = world.losses.on_node(profile, host, node.id)
    if gpus is None:
        return None
    pins = {demand.ordinal: gpu for demand, gpu in zip(wanted.demands, gpus, strict=True)}
    seating = bound_to(pins, host, world)
    inside = node if wanted.numa is NumaPolicy.REQUIRED else None
    return Candidate(host, seating, inside, bound=True) if seating.complete and not seating.doubts else None


def _mixed_on_one_node(host: Host, node: NumaNode, world: World) -> Candidate | None:
    """vGPUs of several profiles where the host would seat them if it had no GPUs but those of this node."""
    wanted = world.wanted
    if short_beside(wanted.vm, node, host, world.inventory):
        return None
    inside = seat(wanted.vm, wanted.demands, host, world.inventory, world.catalog, node.id)
    if not inside.complete:
        return None
    seating = bound_to(dict(inside.seats), host, world)
    return Candidate(host, seating, bound=True) if seating.complete and not seating.doubts else None


def bound_to(gpus: dict[int, PciAddress], host: Host, world: World) -> Seating:
    """The seats of vGPUs that are bound to these GPUs, by ordinal."""
    demands = [
        replace(demand, pin=gpus[demand.ordinal]) for demand in world.wanted.demands if isinstance(demand, WantsVgpu)
    ]
    return seat(world.wanted.vm, demands, host, world.inventory, world.catalog)


def demands_on(host: Host, wanted: Wanted) -> tuple[Demand, ...]:
    """The demands; pins are addresses of the host the VM is on, and mean nothing on another."""
    if host.ref == wanted.vm.host:
        return wanted.demands
    return tuple(replace(demand, pin=None) if isinstance(demand, WantsVgpu) else demand for demand in wanted.demands)


def pins_for(candidate: Candidate, world: World) -> dict[int, PciAddress]:
    """The vGPUs that must be bound to their GPU: where it is ours to choose, or locality is required and the host has
    such GPUs on other nodes."""
    node, seats = candidate.node, candidate.seating.seats
    vgpus = [each for each in world.wanted.demands if isinstance(each, WantsVgpu) and each.ordinal in seats]
    if candidate.bound:
        return {demand.ordinal: seats[demand.ordinal] for demand in vgpus}
    if node is None:
        return {}
    return {
        demand.ordinal: seats[demand.ordinal]
        for demand in vgpus
        if _elsewhere(demand, node, candidate.host.gpus, world.catalog)
    }


def _elsewhere(demand: WantsVgpu, node: NumaNode, gpus: Sequence[PhysicalGpu], catalog: Catalog) -> bool:
    """Whether a GPU of another node could serve it too."""
    return any(
        gpu.numa_node != node.id
        and gpu.graphics_type is GraphicsType.SHARED_DIRECT
        and may_run(gpu, demand.profile, catalog) is not False
        for gpu in gpus
    )


def _unpinned_elsewhere(candidate: Candidate, world: World) -> Rejection | None:
    if not pins_for(candidate, world):
        return None
    rule = "the host may choose a GPU on another NUMA node, and pinning is switched off"
    return Rejection(candidate.subject, rule, hint="--pin auto binds the vGPU to a GPU of the node")
