"""Picks the place of a VM: ranks the feasible places and takes the best. Plans call `place`.

The first difference between two places decides, in the order of `SCORERS`. A new rule is a function here, a line in
`SCORERS` with the reason for its position, and cases.

Two passes give the same answer. The exact pass checks every GPU of every host, tens of microseconds each. On fleets,
the index in `fleet/` proposes a place in about a millisecond, and the exact rules confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from gpuops.plan.placement.fleet.site_demand import NO_LOSS, Loss
from gpuops.plan.placement.numa_nodes import node_of, short_beside
from gpuops.plan.placement.reserved_slots import reserved_unknown
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.vm_demand import Placement, Wanted

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.choice import FleetChoice


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


_FEW_HOSTS: Final = 8
"""Up to this number hosts are checked one by one: building an index would take longer."""


def place(
    needs: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """Return the best place for the VM's devices, or every reason why there is no place.

    With `needs.explain` the placement has a line for every place that was checked.
    """
    if not needs.explain and scorers is SCORERS and not needs.beyond_gpus:
        placement = place_in_fleet(needs, inventory, catalog) if len(needs.hosts) > _FEW_HOSTS else None
        if placement is not None:
            return placement
    return place_exactly(needs, inventory, catalog, scorers)


def without_full_hosts(needs: Wanted, inventory: Inventory, catalog: Catalog) -> Wanted:
    """Return the needs without the hosts that surely have no room for the devices; with few hosts, unchanged."""
    if len(needs.hosts) <= _FEW_HOSTS or needs.beyond_gpus:
        return needs
    from gpuops.plan.placement.fleet.choice import hosts_with_room
    from gpuops.plan.placement.fleet.index import FleetIndex

    return replace(needs, hosts=hosts_with_room(needs, FleetIndex.of(inventory, catalog)))


def place_exactly(
    needs: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """Return the best place by the exact pass, or every reason why there is no place."""
    question = PlacementQuestion(needs, inventory, catalog)
    # 1. Feasible: every place on every host, and every reason against.
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for ref in needs.hosts:
        for answer in candidates_on_host(inventory.hosts[ref], question):
            if isinstance(answer, Candidate):
                candidates.append(answer)
            else:
                rejections.append(answer)
    if not candidates:
        nowhere = Rejection(needs.vm.name, "no host was given to look at")
        return tuple(dict.fromkeys(rejections)) or (nowhere,)
    # 2. Rank: by what each place takes from other VMs and by the scorers, in their order. A single place needs no loss.
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
    choices = (*_choices(ranked), *map(Choice.refused, dict.fromkeys(rejections))) if needs.explain else ()
    return _placement(ranked[0].candidate, question, choices)


def place_in_fleet(needs: Wanted, inventory: Inventory, catalog: Catalog) -> Placement | None:
    """Return the best place by the index of the fleet, if the exact rules confirm it; None = use the exact pass."""
    from gpuops.plan.placement.fleet.choice import choose_in_fleet

    if needs.vm.host in needs.hosts:
        # Staying outranks everything else, so other hosts matter only where the VM cannot stay.
        on_own_host = place_exactly(replace(needs, hosts=(needs.vm.host,)), inventory, catalog)
        if isinstance(on_own_host, Placement):
            return on_own_host
    question = PlacementQuestion(needs, inventory, catalog)
    chosen = choose_in_fleet(needs, question.losses.fleet, question.losses)
    best = _confirm(chosen, question)
    if best is None:
        return None
    if question.kept_room.refusal(best.host, best.seating.seats) is None:
        return _placement(best, question, ())
    return _place_leaving_enough(question)


def _place_leaving_enough(question: PlacementQuestion) -> Placement | None:
    """Return the best place that leaves enough free; None = use the exact pass.

    The index searches the hosts that leave enough on any GPU. Its choice is then compared, by the exact rules, with the
    hosts where it depends on the GPU.
    """
    from gpuops.plan.placement.fleet.choice import choose_in_fleet
    from gpuops.plan.placement.fleet.index import kept_hosts

    hosts = kept_hosts(question.kept_room, question.losses.fleet)
    narrowed = replace(question, needs=replace(question.needs, hosts=hosts.sure))
    chosen = choose_in_fleet(narrowed.needs, question.losses.fleet, question.losses)
    if chosen is not None and _confirm(chosen, narrowed) is None:
        return None
    refs = (*(() if chosen is None else (chosen.host.ref,)), *hosts.unsure)
    placement = place_exactly(replace(question.needs, hosts=refs), question.inventory, question.catalog)
    return placement if isinstance(placement, Placement) and not placement.doubts else None


def _confirm(chosen: FleetChoice | None, question: PlacementQuestion) -> Candidate | None:
    """Return the chosen place if the exact rules agree without a doubt, else None."""
    if chosen is None:
        return None
    best = _as_candidate(chosen, question)
    sure = best.seating.complete and not best.seating.doubts and best.seating.seats == chosen.seats
    return best if sure else None


def _as_candidate(chosen: FleetChoice, question: PlacementQuestion) -> Candidate:
    """Return the chosen place, seated by the exact rules."""
    host, needs = chosen.host, question.needs
    node = next((node for node in host.numa_nodes if node.id == chosen.node), None)
    if chosen.bound:
        return Candidate(host, bound_to(chosen.seats, host, question), node, bound=True)
    seating = seat(needs.vm, demands_on(host, needs), host, question.inventory, question.catalog, chosen.node)
    return Candidate(host, seating, node)


def _placement(best: Candidate, question: PlacementQuestion, choices: tuple[Choice, ...]) -> Placement:
    unknown = reserved_unknown(best.host, question.inventory) if question.needs.demands else None
    return Placement(
        host=best.host,
        seats=best.seating.seats,
        pins=necessary_pins(best, question),
        numa_node=None if question.needs.numa is NumaPolicy.NONE else local_node(best, question),
        doubts=(*best.seating.doubts, *([unknown] if unknown else [])),
        choices=choices,
    )


@dataclass(frozen=True, slots=True)
class _RankedCandidate:
    candidate: Candidate
    scores: tuple[Score, ...]

    @property
    def rank(self) -> tuple[object, ...]:
        """The sort key; smaller is better. Between equals a fixed order decides, so that a request always has the same
        answer: the name of the host, its node, the host's own choice before a pin, the GPU."""
        candidate = self.candidate
        host, node = candidate.host, "" if candidate.node is None else str(candidate.node.id)
        gpus = sorted((str(_node(host, gpu)), gpu) for gpu in candidate.seating.seats.values())
        return (*(-score.value for score in self.scores), host.name, host.ref, node, candidate.bound, gpus)


def _node(host: Host, address: PciAddress) -> int | None:
    gpu = host.device(address)
    return None if gpu is None else gpu.numa_node


def _choices(ranked: list[_RankedCandidate]) -> Iterator[Choice]:
    """Yield a line for the best place, one for the best of each other host or node, and one for each further GPU
    there."""
    best = ranked[0]
    reasons = "; ".join(score.reason for score in best.scores if score.reason)
    bound = "bound to " if best.candidate.bound else ""
    seats = f"{bound}GPU {best.candidate.gpus}" if best.candidate.gpus else "no GPU needed"
    yield Choice(best.candidate.subject, chosen=True, reason=f"{seats}: {reasons}", feasible=True)
    subjects = {best.candidate.subject}
    for runner_up in ranked[1:]:
        subject = runner_up.candidate.subject
        if subject in subjects:
            subject = f"{runner_up.candidate.host.name} {runner_up.candidate.gpus}"
        subjects.add(subject)
        yield Choice(subject, chosen=False, reason=_why_worse(runner_up, best), feasible=True)


def _why_worse(runner_up: _RankedCandidate, best: _RankedCandidate) -> str:
    """Return the reason of the first score that decided against a feasible place."""
    for score, best_score in zip(runner_up.scores, best.scores, strict=True):
        if score.value < best_score.value:
            return f"would do, but {score.reason} (chosen: {best_score.reason})"
    if runner_up.candidate.subject != best.candidate.subject:
        return f"would do as well as {best.candidate.subject}, which comes first by name"
    why = "comes first" if best.candidate.bound else "the host chooses itself"
    return f"would do as well as {best.candidate.gpus}, which {why}"
