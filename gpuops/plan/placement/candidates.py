"""The places on a host where a VM can go, each with its GPUs, and every reason against the others.

`select.py` calls it for each host. What the host itself would choose is one place. Where the plan may choose the GPU,
each GPU with room is one more, and the VM would be bound (pinned) to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpuops.advise.occupancy import gpu_states, may_run
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu
from gpuops.model.vcenter.host import Host, NumaNode, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.gpu_filters import judge_slot
from gpuops.plan.placement.host_filters import refusals
from gpuops.plan.placement.keep_free import KeptRoom
from gpuops.plan.placement.numa_nodes import memory_doubt, short_beside
from gpuops.plan.placement.seating import Seating, seat
from gpuops.plan.placement.vm_demand import Demand, PinPolicy, Wanted, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.losses import Losses


@dataclass(frozen=True, slots=True)
class Candidate:
    """One feasible place: a host, its NUMA node if one is required, and the GPUs there."""

    host: Host
    seating: Seating
    node: NumaNode | None = None
    bound: bool = False
    """The plan chose the GPUs and must pin them; else they are those that the host would choose."""

    @property
    def subject(self) -> str:
        return self.host.name if self.node is None else f"{self.host.name} numa{self.node.id}"

    @property
    def gpus(self) -> str:
        return ", ".join(str(address) for address in sorted(set(self.seating.seats.values())))


@dataclass(frozen=True)
class PlacementQuestion:
    """What a VM needs, and the snapshot and the catalogue in which a place for it is looked for."""

    needs: Wanted
    inventory: Inventory
    catalog: Catalog

    @cached_property
    def losses(self) -> Losses:
        """The measure of what a place takes from other VMs. It is made at the first use: a single place needs none."""
        from gpuops.plan.placement.fleet.index import FleetIndex
        from gpuops.plan.placement.fleet.losses import Losses

        return Losses(self.needs, FleetIndex.of(self.inventory, self.catalog))

    @cached_property
    def kept_room(self) -> KeptRoom:
        """What the places must leave free."""
        return KeptRoom(self.needs, self.inventory, self.catalog)


def candidates_on_host(host: Host, question: PlacementQuestion) -> Iterator[Candidate | Rejection]:
    """Yield each feasible place on the host, and each reason why other places are not feasible.

    One place for the host; one for each NUMA node if locality is required; one for each GPU if the plan may choose it.
    """
    needs = question.needs
    # 1. The host filters. The GPUs of a refused host are only checked if it is the only host: they may explain why.
    refused = refusals(needs, host, question.inventory)
    if refused and not _worth_a_look(host, question):
        yield from refused
        return
    # 2. Its GPUs.
    feasible: list[Candidate] = []
    for answer in _candidates(host, question):
        if isinstance(answer, Rejection):
            yield answer
        elif not refused:
            feasible.append(answer)
    yield from refused
    # 3. What is to stay free.
    yield from _leaving_enough(feasible, question)


def _leaving_enough(feasible: Sequence[Candidate], question: PlacementQuestion) -> Iterator[Candidate | Rejection]:
    """Yield the places of one host that leave enough free; if no place does, the rejection with the most left free."""
    if not feasible or not question.kept_room.keeps(feasible[0].host):
        yield from feasible
        return
    against = [question.kept_room.refusal(candidate.host, candidate.seating.seats) for candidate in feasible]
    yield from (candidate for candidate, reason in zip(feasible, against, strict=True) if reason is None)
    if None not in against:
        yield from sorted(
            (rejection for rejection in against if rejection), key=lambda rejection: -float(rejection.available or 0)
        )[:1]


def _worth_a_look(host: Host, question: PlacementQuestion) -> bool:
    """Whether to check the GPUs of a refused host: it is the only host, and its GPUs may explain why it is refused."""
    demands = question.needs.demands
    return len(question.needs.hosts) == 1 and any(
        not isinstance(demand, WantsVgpu) or any(may_run(gpu, demand.profile, question.catalog) for gpu in host.gpus)
        for demand in demands
    )


def _candidates(host: Host, question: PlacementQuestion) -> Iterator[Candidate | Rejection]:
    needs, demands = question.needs, demands_on(host, question.needs)
    if needs.numa is not NumaPolicy.REQUIRED:
        seating = seat(needs.vm, demands, host, question.inventory, question.catalog)
        if seating.complete:
            yield from _with_bound_candidates(Candidate(host, seating), question)
        yield from seating.rejections
        return
    if not host.numa_nodes:
        yield Rejection(host.name, "its NUMA nodes cannot be read", hint="--numa preferred does without")
    for node in sorted(host.numa_nodes, key=lambda node: node.id):
        short = short_beside(needs.vm, node, host, question.inventory)
        seating = seat(needs.vm, demands, host, question.inventory, question.catalog, node.id)
        candidate = Candidate(host, seating, node)
        unpinned = _needs_forbidden_pin(candidate, question) if needs.pin is PinPolicy.NEVER else None
        if seating.complete and not short and unpinned is None:
            yield from _with_bound_candidates(candidate, question)
        yield from (*short, *seating.rejections, *([unpinned] if unpinned else []))


def _with_bound_candidates(host_choice: Candidate, question: PlacementQuestion) -> Iterator[Candidate]:
    """The host's own choice, and the places on other GPUs where the plan may choose the GPU."""
    yield host_choice
    bound = _bound_candidates(host_choice.host, host_choice.node, question)
    yield from (candidate for candidate in bound if candidate.seating.seats != host_choice.seating.seats)


def _bound_candidates(host: Host, node: NumaNode | None, question: PlacementQuestion) -> Iterator[Candidate]:
    profile = question.needs.bindable
    if profile is None:
        if question.needs.numa is NumaPolicy.PREFERRED and question.needs.mixed:
            yield from (
                candidate
                for numa_node in host.numa_nodes
                if (candidate := _mixed_profiles_on_node(host, numa_node, question)) is not None
            )
        return
    if len(question.needs.demands) == 1:
        yield from _on_one_gpu(WantsVgpu(question.needs.demands[0].ordinal, profile), host, node, question)
    elif question.needs.numa is not NumaPolicy.NONE:
        nodes = host.numa_nodes if node is None else (node,)
        yield from (
            bound_candidate
            for node in nodes
            if (bound_candidate := _on_one_node(profile, host, node, question)) is not None
        )


def _on_one_gpu(
    demand: WantsVgpu, host: Host, node: NumaNode | None, question: PlacementQuestion
) -> Iterator[Candidate]:
    vm = question.needs.vm
    memory = memory_doubt(vm, host, question.inventory)
    for state in gpu_states(host, question.inventory, question.catalog):
        if node is not None and state.gpu.numa_node != node.id:
            continue
        answer = judge_slot(state.without(vm.ref), demand, vm, host, question.catalog)
        if not isinstance(answer, Rejection):
            doubt = f"{host.name} {state.gpu.address}: {answer}" if answer else ""
            doubts = tuple(reason for reason in (memory, doubt) if reason)
            yield Candidate(host, Seating({demand.ordinal: state.gpu.address}, (), doubts), node, bound=True)


def _on_one_node(profile: str, host: Host, node: NumaNode, question: PlacementQuestion) -> Candidate | None:
    """Several vGPUs on the GPUs of this node that leave the most to others, if the exact rules admit them without
    doubt."""
    needs = question.needs
    if short_beside(needs.vm, node, host, question.inventory):
        return None
    gpus = question.losses.on_node(profile, host, node.id)
    if gpus is None:
        return None
    pins = {demand.ordinal: gpu for demand, gpu in zip(needs.demands, gpus, strict=True)}
    seating = bound_to(pins, host, question)
    inside = node if needs.numa is NumaPolicy.REQUIRED else None
    return Candidate(host, seating, inside, bound=True) if seating.complete and not seating.doubts else None


def _mixed_profiles_on_node(host: Host, node: NumaNode, question: PlacementQuestion) -> Candidate | None:
    """vGPUs of several profiles where the host would put them if it had only the GPUs of this node."""
    needs = question.needs
    if short_beside(needs.vm, node, host, question.inventory):
        return None
    inside = seat(needs.vm, needs.demands, host, question.inventory, question.catalog, node.id)
    if not inside.complete:
        return None
    seating = bound_to(dict(inside.seats), host, question)
    return Candidate(host, seating, bound=True) if seating.complete and not seating.doubts else None


def bound_to(gpus: dict[int, PciAddress], host: Host, question: PlacementQuestion) -> Seating:
    """The seating of the vGPUs bound to these GPUs, by ordinal."""
    demands = [
        replace(demand, pin=gpus[demand.ordinal]) for demand in question.needs.demands if isinstance(demand, WantsVgpu)
    ]
    return seat(question.needs.vm, demands, host, question.inventory, question.catalog)


def demands_on(host: Host, needs: Wanted) -> tuple[Demand, ...]:
    """The demands without pins on another host: a pin is an address of the host that the VM is on."""
    if host.ref == needs.vm.host:
        return needs.demands
    pinned = (demand for demand in needs.demands if isinstance(demand, WantsVgpu) and demand.pin is not None)
    free = {demand.ordinal: replace(demand, pin=None) for demand in pinned}
    return tuple(free.get(demand.ordinal, demand) for demand in needs.demands) if free else needs.demands


def necessary_pins(candidate: Candidate, question: PlacementQuestion) -> dict[int, PciAddress]:
    """The pins that the placement needs: where the plan chose the GPUs, or locality is required and the host could
    choose a GPU of another node."""
    node, seats = candidate.node, candidate.seating.seats
    vgpus = [demand for demand in question.needs.demands if isinstance(demand, WantsVgpu) and demand.ordinal in seats]
    if candidate.bound:
        return {demand.ordinal: seats[demand.ordinal] for demand in vgpus}
    if node is None:
        return {}
    return {
        demand.ordinal: seats[demand.ordinal]
        for demand in vgpus
        if _served_elsewhere(demand, node, candidate.host.gpus, question.catalog)
    }


def _served_elsewhere(demand: WantsVgpu, node: NumaNode, gpus: Sequence[PhysicalGpu], catalog: Catalog) -> bool:
    """Whether a GPU of another NUMA node could also serve the vGPU."""
    return any(
        gpu.numa_node != node.id
        and gpu.graphics_type is GraphicsType.SHARED_DIRECT
        and may_run(gpu, demand.profile, catalog) is not False
        for gpu in gpus
    )


def _needs_forbidden_pin(candidate: Candidate, question: PlacementQuestion) -> Rejection | None:
    if not necessary_pins(candidate, question):
        return None
    rule = "the host may choose a GPU on another NUMA node, and pinning is switched off"
    return Rejection(candidate.subject, rule, hint="--pin auto binds the vGPU to a GPU of the node")
