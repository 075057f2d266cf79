"""Picks the place of a VM: filters what is feasible, ranks it, takes the best. `place` is what plans call.

Two passes give one answer. The exact pass asks every GPU of every host, tens of microseconds each. On fleets, the index
in `fleet/` proposes a place in about a millisecond, and the exact rules confirm it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Choice, Rejection
from gpuops.plan.placement.candidates import (
    Candidate,
    PlacementQuestion,
    bound_to,
    candidates_on_host,
    demands_on,
    necessary_pins,
)
from gpuops.plan.placement.fleet.site_demand import NO_LOSS
from gpuops.plan.placement.reserved import reserved_unknown
from gpuops.plan.placement.scorers import SCORERS, Score, Scorer, local_node
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import Placement, Wanted

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.choice import FleetChoice

_FEW_HOSTS: Final = 8
"""Up to so many hosts are asked one by one: an index would take longer."""


def place(
    wanted: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """The best place for the VM's devices, or every reason why there is none.

    With `wanted.explain` there is a line for every place looked at.
    """
    if not wanted.explain and scorers is SCORERS and not wanted.beyond_gpus:
        placement = place_in_fleet(wanted, inventory, catalog) if len(wanted.hosts) > _FEW_HOSTS else None
        if placement is not None:
            return placement
    return place_exactly(wanted, inventory, catalog, scorers)


def without_full_hosts(wanted: Wanted, inventory: Inventory, catalog: Catalog) -> Wanted:
    """The same, asked of no host that surely has no room for the devices; of few hosts all are asked."""
    if len(wanted.hosts) <= _FEW_HOSTS or wanted.beyond_gpus:
        return wanted
    from gpuops.plan.placement.fleet.choice import hosts_with_room
    from gpuops.plan.placement.fleet.index import FleetIndex

    return replace(wanted, hosts=hosts_with_room(wanted, FleetIndex.of(inventory, catalog)))


def place_exactly(
    wanted: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """The best place by the exact pass, or every reason why there is none."""
    question = PlacementQuestion(wanted, inventory, catalog)
    # 1. Feasible: every place on every host, and every reason against.
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for ref in wanted.hosts:
        for answer in candidates_on_host(inventory.hosts[ref], question):
            if isinstance(answer, Candidate):
                candidates.append(answer)
            else:
                rejections.append(answer)
    if not candidates:
        nowhere = Rejection(wanted.vm.name, "no host was given to look at")
        return tuple(dict.fromkeys(rejections)) or (nowhere,)
    # 2. Rank: by what each place takes from other VMs and by the scorers, in their order. One place needs no loss.
    losses = [NO_LOSS]
    if len(candidates) > 1:
        losses = question.losses.of([(candidate.host, candidate.seating.seats) for candidate in candidates])
    ranked = sorted(
        (
            _RankedCandidate(candidate, tuple(scorer(candidate, question, loss) for scorer in scorers))
            for candidate, loss in zip(candidates, losses, strict=True)
        ),
        key=lambda scored: scored.rank,
    )
    # 3. Select the first, and explain all if asked.
    choices = (*_choices(ranked), *map(Choice.refused, dict.fromkeys(rejections))) if wanted.explain else ()
    return _placement(ranked[0].candidate, question, choices)


def place_in_fleet(wanted: Wanted, inventory: Inventory, catalog: Catalog) -> Placement | None:
    """The best place by the index of the fleet, if the exact rules confirm it; None = the exact pass must answer."""
    from gpuops.plan.placement.fleet.choice import choose_in_fleet

    if wanted.vm.host in wanted.hosts:
        # Staying outranks everything else, so other hosts matter only where the VM cannot stay.
        on_own_host = place_exactly(replace(wanted, hosts=(wanted.vm.host,)), inventory, catalog)
        if isinstance(on_own_host, Placement):
            return on_own_host
    question = PlacementQuestion(wanted, inventory, catalog)
    chosen = choose_in_fleet(wanted, question.losses.fleet, question.losses)
    best = _confirmed(chosen, question)
    if best is None:
        return None
    if question.kept.refusal(best.host, best.seating.seats) is None:
        return _placement(best, question, ())
    return _place_leaving_enough(question)


def _place_leaving_enough(question: PlacementQuestion) -> Placement | None:
    """The best place that leaves enough free: of the hosts that do so anyway the index finds it, beside those where it
    depends on the GPU; None = the exact pass must answer."""
    from gpuops.plan.placement.fleet.choice import choose_in_fleet
    from gpuops.plan.placement.fleet.kept_hosts import kept_hosts

    hosts = kept_hosts(question.kept, question.losses.fleet)
    there = replace(question, wanted=replace(question.wanted, hosts=hosts.sure))
    chosen = choose_in_fleet(there.wanted, question.losses.fleet, question.losses)
    if chosen is not None and _confirmed(chosen, there) is None:
        return None
    refs = (*(() if chosen is None else (chosen.host.ref,)), *hosts.unsure)
    found = place_exactly(replace(question.wanted, hosts=refs), question.inventory, question.catalog)
    return found if isinstance(found, Placement) and not found.doubts else None


def _confirmed(chosen: FleetChoice | None, question: PlacementQuestion) -> Candidate | None:
    """The chosen place, where the exact rules see it too and without a doubt."""
    if chosen is None:
        return None
    best = _as_candidate(chosen, question)
    sure = best.seating.complete and not best.seating.doubts and best.seating.seats == chosen.seats
    return best if sure else None


def _as_candidate(chosen: FleetChoice, question: PlacementQuestion) -> Candidate:
    """The chosen place as the exact rules see it."""
    host, wanted = chosen.host, question.wanted
    node = next((node for node in host.numa_nodes if node.id == chosen.node), None)
    if chosen.bound:
        return Candidate(host, bound_to(chosen.seats, host, question), node, bound=True)
    seating = seat(wanted.vm, demands_on(host, wanted), host, question.inventory, question.catalog, chosen.node)
    return Candidate(host, seating, node)


def _placement(best: Candidate, question: PlacementQuestion, choices: tuple[Choice, ...]) -> Placement:
    unknown = reserved_unknown(best.host, question.inventory) if question.wanted.demands else None
    return Placement(
        host=best.host,
        seats=best.seating.seats,
        pins=necessary_pins(best, question),
        numa_node=None if question.wanted.numa is NumaPolicy.NONE else local_node(best, question),
        doubts=(*best.seating.doubts, *([unknown] if unknown else [])),
        choices=choices,
    )


@dataclass(frozen=True, slots=True)
class _RankedCandidate:
    candidate: Candidate
    scores: tuple[Score, ...]

    @property
    def rank(self) -> tuple[object, ...]:
        """Smaller is better. Between equals a fixed order decides, so that a request has one answer: the name of the
        host, its node, the host's own choice before a pin, the GPU."""
        candidate = self.candidate
        host, node = candidate.host, "" if candidate.node is None else str(candidate.node.id)
        gpus = sorted((str(_node(host, gpu)), gpu) for gpu in candidate.seating.seats.values())
        return (*(-score.value for score in self.scores), host.name, host.ref, node, candidate.bound, gpus)


def _node(host: Host, address: PciAddress) -> int | None:
    gpu = host.device(address)
    return None if gpu is None else gpu.numa_node


def _choices(ranked: list[_RankedCandidate]) -> Iterator[Choice]:
    """A line for the best place, one for the best of each other host or node, and one for each further GPU there."""
    best = ranked[0]
    reasons = "; ".join(score.reason for score in best.scores if score.reason)
    bound = "bound to " if best.candidate.bound else ""
    seats = f"{bound}GPU {best.candidate.gpus}" if best.candidate.gpus else "no GPU needed"
    yield Choice(best.candidate.subject, chosen=True, reason=f"{seats}: {reasons}", feasible=True)
    subjects = {best.candidate.subject}
    for other in ranked[1:]:
        subject = other.candidate.subject
        if subject in subjects:
            subject = f"{other.candidate.host.name} {other.candidate.gpus}"
        subjects.add(subject)
        yield Choice(subject, chosen=False, reason=_why_worse(other, best), feasible=True)


def _why_worse(other: _RankedCandidate, best: _RankedCandidate) -> str:
    """The reason of the first score that decided against a feasible place."""
    for its, chosen in zip(other.scores, best.scores, strict=True):
        if its.value < chosen.value:
            return f"would do, but {its.reason} (chosen: {chosen.reason})"
    if other.candidate.subject != best.candidate.subject:
        return f"would do as well as {best.candidate.subject}, which comes first by name"
    why = "comes first" if best.candidate.bound else "the host chooses itself"
    return f"would do as well as {best.candidate.gpus}, which {why}"
