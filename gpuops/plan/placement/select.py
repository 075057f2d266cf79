"""Select: feasible, rank, pick. The one function that plans ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.advise.fragmentation import Fragmentation, mix_of
from gpuops.advise.occupancy import may_run
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import GraphicsType, PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.plan.placement.filters import refusals
from gpuops.plan.placement.nodes import short_beside
from gpuops.plan.placement.scorers import SCORERS, Candidate, Score, Scorer, World, local_node
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import Demand, PinPolicy, Placement, Wanted, WantsVgpu
from gpuops.plan.plan import Choice, Rejection

_FEW: Final = 8
"""Hosts that are looked at one by one sooner than an index of the fleet is made."""


def place(
    wanted: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """The best place for the VM's devices, or every reason why there is none.

    With `wanted.explain` there is a line for every place looked at.
    """
    if not wanted.explain and scorers is SCORERS:
        found = in_fleet(wanted, inventory, catalog) if len(wanted.hosts) > _FEW else None
        if found is not None:
            return found
    return place_exactly(wanted, inventory, catalog, scorers)


def place_exactly(
    wanted: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """The same, asking every GPU of every host."""
    world = World(wanted, inventory, catalog)
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for ref in wanted.hosts:
        for found in _on_host(inventory.hosts[ref], world):
            if isinstance(found, Candidate):
                candidates.append(found)
            else:
                rejections.append(found)
    if not candidates:
        nowhere = Rejection(wanted.vm.name, "no host was given to look at")
        return tuple(dict.fromkeys(rejections)) or (nowhere,)
    if len(candidates) > 1:
        vms = (wanted.vm, *(vm for vm in inventory.vms.values() if vm.ref != wanted.vm.ref))
        world = replace(world, fragmentation=Fragmentation(mix_of(vms, catalog), catalog))
    ranked = sorted((_score(candidate, world, scorers) for candidate in candidates), key=lambda scored: scored.rank)
    told = (*_choices(ranked), *map(_refused, dict.fromkeys(rejections))) if wanted.explain else ()
    return _placement(ranked[0].candidate, world, told)


def in_fleet(wanted: Wanted, inventory: Inventory, catalog: Catalog) -> Placement | None:
    """The best place by the index of the fleet, seated again by the exact rules; None = they must say."""
    from gpuops.plan.placement.fleet.choice import choose
    from gpuops.plan.placement.fleet.index import Fleet

    if wanted.vm.host in wanted.hosts:
        # To stay is worth more than all else, so the others matter only where the VM cannot.
        at_home = place_exactly(replace(wanted, hosts=(wanted.vm.host,)), inventory, catalog)
        if isinstance(at_home, Placement):
            return at_home
    fleet = Fleet.of(inventory, catalog)
    chosen = choose(wanted, fleet, fleet.mix.with_vm(wanted.vm, inventory, catalog))
    if chosen is None:
        return None
    world = World(wanted, inventory, catalog)
    node = next((node for node in chosen.host.numa_nodes if node.id == chosen.node), None)
    demands = _demands_on(chosen.host, wanted)
    seating = seat(wanted.vm, demands, chosen.host, inventory, catalog, chosen.node)
    if not seating.complete or seating.doubts or seating.seats != chosen.seats:
        return None
    return _placement(Candidate(chosen.host, seating, node), world, ())


def _placement(best: Candidate, world: World, choices: tuple[Choice, ...]) -> Placement:
    return Placement(
        host=best.host,
        seats=best.seating.seats,
        pins=_pins(best, world),
        numa_node=None if world.wanted.numa is NumaPolicy.NONE else local_node(best, world),
        doubts=best.seating.doubts,
        choices=choices,
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    candidate: Candidate
    scores: tuple[Score, ...]

    @property
    def rank(self) -> tuple[float | str, ...]:
        """Smaller is better; the name decides between equals, so that the same question has the same answer."""
        return (*(-score.value for score in self.scores), self.candidate.subject)


def _score(candidate: Candidate, world: World, scorers: Iterable[Scorer]) -> _Scored:
    return _Scored(candidate, tuple(scorer(candidate, world) for scorer in scorers))


def _on_host(host: Host, world: World) -> Iterator[Candidate | Rejection]:
    """Each feasible place on the host (one, or one per NUMA node if locality is required), and each reason against."""
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
    wanted, demands = world.wanted, _demands_on(host, world.wanted)
    if wanted.numa is not NumaPolicy.REQUIRED:
        seating = seat(wanted.vm, demands, host, world.inventory, world.catalog)
        if seating.complete:
            yield Candidate(host, seating)
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
            yield candidate
        yield from (*short, *seating.rejections, *([unpinned] if unpinned else []))


def _demands_on(host: Host, wanted: Wanted) -> tuple[Demand, ...]:
    """The demands; pins are addresses of the host the VM is on, and mean nothing on another."""
    if host.ref == wanted.vm.host:
        return wanted.demands
    return tuple(replace(demand, pin=None) if isinstance(demand, WantsVgpu) else demand for demand in wanted.demands)


def _unpinned_elsewhere(candidate: Candidate, world: World) -> Rejection | None:
    if not _pins(candidate, world):
        return None
    rule = "the host may choose a GPU on another NUMA node, and pinning is switched off"
    return Rejection(candidate.subject, rule, hint="--pin auto binds the vGPU to a GPU of the node")


def _pins(candidate: Candidate, world: World) -> dict[int, PciAddress]:
    """The vGPUs that must be bound to their GPU: locality is required, and the host has such GPUs on other nodes."""
    node = candidate.node
    if node is None:
        return {}
    pins = {}
    for demand in world.wanted.demands:
        if not isinstance(demand, WantsVgpu) or demand.ordinal not in candidate.seating.seats:
            continue
        elsewhere = any(
            gpu.numa_node != node.id
            and gpu.graphics_type is GraphicsType.SHARED_DIRECT
            and may_run(gpu, demand.profile, world.catalog) is not False
            for gpu in candidate.host.gpus
        )
        if elsewhere:
            pins[demand.ordinal] = candidate.seating.seats[demand.ordinal]
    return pins


def _choices(ranked: list[_Scored]) -> Iterator[Choice]:
    best = ranked[0]
    reasons = "; ".join(score.reason for score in best.scores if score.reason)
    yield Choice(best.candidate.subject, chosen=True, reason=f"{_seats(best.candidate)}: {reasons}", feasible=True)
    for other in ranked[1:]:
        yield Choice(other.candidate.subject, chosen=False, reason=_worse(other, best), feasible=True)


def _worse(other: _Scored, best: _Scored) -> str:
    """The first score that decided against a feasible place."""
    for its, chosen in zip(other.scores, best.scores, strict=True):
        if its.value < chosen.value:
            return f"would do, but {its.reason} (chosen: {chosen.reason})"
    return f"would do as well as {best.candidate.subject}, which comes first by name"


def _seats(candidate: Candidate) -> str:
    gpus = sorted({str(address) for address in candidate.seating.seats.values()})
    return f"GPU {', '.join(gpus)}" if gpus else "no GPU needed"


def _refused(rejection: Rejection) -> Choice:
    return Choice(rejection.subject, chosen=False, reason=str(rejection).removeprefix(f"{rejection.subject}: "))
