"""Select: feasible, rank, pick. The one function that plans ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.plan.placement.candidates import Candidate, World, bound_to, demands_on, on_host, pins_for
from gpuops.plan.placement.loss import NO_LOSS
from gpuops.plan.placement.scorers import SCORERS, Score, Scorer, local_node
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import Placement, Wanted
from gpuops.plan.plan import Choice, Rejection

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.choice import Chosen

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
        for found in on_host(inventory.hosts[ref], world):
            if isinstance(found, Candidate):
                candidates.append(found)
            else:
                rejections.append(found)
    if not candidates:
        nowhere = Rejection(wanted.vm.name, "no host was given to look at")
        return tuple(dict.fromkeys(rejections)) or (nowhere,)
    losses = [NO_LOSS]
    if len(candidates) > 1:
        losses = world.losses.of([(candidate.host, candidate.seating.seats) for candidate in candidates])
    ranked = sorted(
        (
            _Scored(candidate, tuple(scorer(candidate, world, loss) for scorer in scorers))
            for candidate, loss in zip(candidates, losses, strict=True)
        ),
        key=lambda scored: scored.rank,
    )
    told = (*_choices(ranked), *map(_refused, dict.fromkeys(rejections))) if wanted.explain else ()
    return _placement(ranked[0].candidate, world, told)


def in_fleet(wanted: Wanted, inventory: Inventory, catalog: Catalog) -> Placement | None:
    """The best place by the index of the fleet, seated again by the exact rules; None = they must say."""
    from gpuops.plan.placement.fleet.choice import choose

    if wanted.vm.host in wanted.hosts:
        # To stay is worth more than all else, so the others matter only where the VM cannot.
        at_home = place_exactly(replace(wanted, hosts=(wanted.vm.host,)), inventory, catalog)
        if isinstance(at_home, Placement):
            return at_home
    world = World(wanted, inventory, catalog)
    chosen = choose(wanted, world.losses.fleet, world.losses)
    if chosen is None:
        return None
    best = _as_chosen(chosen, world)
    if not best.seating.complete or best.seating.doubts or best.seating.seats != chosen.seats:
        return None
    return _placement(best, world, ())


def _as_chosen(chosen: Chosen, world: World) -> Candidate:
    """The place by the exact rules."""
    host, wanted = chosen.host, world.wanted
    node = next((node for node in host.numa_nodes if node.id == chosen.node), None)
    if chosen.bound:
        return Candidate(host, bound_to(chosen.seats, host, world), node, bound=True)
    seating = seat(wanted.vm, demands_on(host, wanted), host, world.inventory, world.catalog, chosen.node)
    return Candidate(host, seating, node)


def _placement(best: Candidate, world: World, choices: tuple[Choice, ...]) -> Placement:
    return Placement(
        host=best.host,
        seats=best.seating.seats,
        pins=pins_for(best, world),
        numa_node=None if world.wanted.numa is NumaPolicy.NONE else local_node(best, world),
        doubts=best.seating.doubts,
        choices=choices,
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    candidate: Candidate
    scores: tuple[Score, ...]

    @property
    def rank(self) -> tuple[object, ...]:
        """Smaller is better; a fixed order decides between equals, so that the same question has the same answer: the
        host, its node, what the host would choose itself, the GPU."""
        candidate = self.candidate
        host, node = candidate.host, "" if candidate.node is None else str(candidate.node.id)
        gpus = sorted((str(_node(host, gpu)), gpu) for gpu in candidate.seating.seats.values())
        return (*(-score.value for score in self.scores), host.name, host.ref, node, candidate.bound, gpus)


def _node(host: Host, address: PciAddress) -> int | None:
    gpu = host.gpu(address)
    return None if gpu is None else gpu.numa_node


def _choices(ranked: list[_Scored]) -> Iterator[Choice]:
    """The best place; of each other host or node its best one; and a line for each further GPU there."""
    best = ranked[0]
    reasons = "; ".join(score.reason for score in best.scores if score.reason)
    bound = "bound to " if best.candidate.bound else ""
    seats = f"{bound}GPU {best.candidate.gpus}" if best.candidate.gpus else "no GPU needed"
    yield Choice(best.candidate.subject, chosen=True, reason=f"{seats}: {reasons}", feasible=True)
    told = {best.candidate.subject}
    for other in ranked[1:]:
        subject = other.candidate.subject
        if subject in told:
            subject = f"{other.candidate.host.name} {other.candidate.gpus}"
        told.add(subject)
        yield Choice(subject, chosen=False, reason=_worse(other, best), feasible=True)


def _worse(other: _Scored, best: _Scored) -> str:
    """The first score that decided against a feasible place."""
    for its, chosen in zip(other.scores, best.scores, strict=True):
        if its.value < chosen.value:
            return f"would do, but {its.reason} (chosen: {chosen.reason})"
    if other.candidate.subject != best.candidate.subject:
        return f"would do as well as {best.candidate.subject}, which comes first by name"
    why = "comes first" if best.candidate.bound else "the host chooses itself"
    return f"would do as well as {best.candidate.gpus}, which {why}"


def _refused(rejection: Rejection) -> Choice:
    return Choice(rejection.subject, chosen=False, reason=str(rejection).removeprefix(f"{rejection.subject}: "))
