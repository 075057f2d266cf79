"""Picks the place of a VM: finds the feasible places, ranks them and takes the best. Plans call `place`.

On each host, one place has the GPUs that the host itself would choose. Where the plan may choose the GPU, each other
GPU with room is one more place, and the VM would be bound (pinned) to it.

The first difference between two places decides, in the order of `SCORERS`. A new rule is a function here, a line in
`SCORERS` with the reason for its position, and cases.

Two passes give the same answer. The exact pass checks every GPU of every host, tens of microseconds each. On fleets,
the index in `fleet/` proposes a place in about a millisecond, and the exact rules confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuops.advise.occupancy import gpu_states, may_run
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress
from gpuops.model.vcenter.host import Host, NumaNode, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.fleet.site_demand import NO_LOSS, Loss
from gpuops.plan.placement.gpu_filters import judge_slot
from gpuops.plan.placement.host_filters import memory_doubt, node_of, node_shortages, refusals
from gpuops.plan.placement.keep_free import KeptRoom, reserved_unknown
from gpuops.plan.placement.seating import Seating, seat
from gpuops.plan.placement.vm_demand import Demand, PinPolicy, Placement, Wanted, WantsVgpu

if TYPE_CHECKING:
    from gpuops.plan.placement.fleet.choice import FleetChoice
    from gpuops.plan.placement.fleet.losses import Losses


@dataclass(frozen=True, slots=True)
class Candidate:
    """One feasible place: a host, its NUMA node if one is required, and the GPUs there."""

    host: Host
    seating: Seating
    node: NumaNode | None = None
    pinned_by_plan: bool = False
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
    """Yield each feasible place on the host, and each reason why other places are not feasible. One place for the host;
    one for each NUMA node if locality is required; one for each GPU if the plan may choose it."""
    needs = question.needs
    # 1. The host filters. The GPUs of a refused host are only checked if it is the only host: they may explain why.
    refused = refusals(needs, host, question.inventory)
    if refused and (len(needs.hosts) > 1 or not _may_run_any(needs, host, question.catalog)):
        yield from refused
        return
    # 2. Its GPUs.
    feasible: list[Candidate] = []
    for candidate_or_rejection in _candidates(host, question):
        if isinstance(candidate_or_rejection, Rejection):
            yield candidate_or_rejection
        elif not refused:
            feasible.append(candidate_or_rejection)
    yield from refused
    # 3. What is to stay free.
    yield from _leaving_enough(feasible, question)


def _leaving_enough(feasible: Sequence[Candidate], question: PlacementQuestion) -> Iterator[Candidate | Rejection]:
    """Yield the places of one host that leave enough free; if no place does, the rejection with the most left free."""
    if not feasible or not question.kept_room.must_keep_any(feasible[0].host):
        yield from feasible
        return
    rejections = []
    for candidate in feasible:
        rejection = question.kept_room.refusal(candidate.host, candidate.seating.seats)
        if rejection is None:
            yield candidate
        else:
            rejections.append(rejection)
    if len(rejections) == len(feasible):
        yield max(rejections, key=lambda rejection: float(rejection.available or 0))


def _may_run_any(needs: Wanted, host: Host, catalog: Catalog) -> bool:
    """Return whether GPUs of the host may run one of the VM's devices. Any host may have a whole device."""
    profiles = [demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu)]
    if len(profiles) < len(needs.demands):
        return True
    return any(may_run(gpu, profile, catalog) for gpu in host.gpus for profile in profiles)


def _candidates(host: Host, question: PlacementQuestion) -> Iterator[Candidate | Rejection]:
    """Yield the places by the host's GPUs alone, and the reasons against others."""
    needs, demands = question.needs, demands_on(host, question.needs)
    if needs.numa is not NumaPolicy.REQUIRED:
        seating = seat(needs.vm, demands, host, question.inventory, question.catalog)
        if seating.complete:
            yield from _with_pinned_candidates(Candidate(host, seating), question)
        yield from seating.rejections
        return
    if not host.numa_nodes:
        yield Rejection(host.name, "its NUMA nodes cannot be read", hint="use --numa preferred instead")
    for node in sorted(host.numa_nodes, key=lambda node: node.id):
        reasons = list(node_shortages(needs.vm, node, host, question.inventory))
        seating = seat(needs.vm, demands, host, question.inventory, question.catalog, node.id)
        reasons += seating.rejections
        candidate = Candidate(host, seating, node)
        if needs.pin is PinPolicy.NEVER and necessary_pins(candidate, question):
            rule = "the host may choose a GPU on another NUMA node, and pinning is switched off"
            reasons.append(Rejection(candidate.subject, rule, hint="--pin auto binds the vGPU to a GPU of the node"))
        if not reasons:
            yield from _with_pinned_candidates(candidate, question)
        yield from reasons


def _with_pinned_candidates(host_choice: Candidate, question: PlacementQuestion) -> Iterator[Candidate]:
    """Yield the place with the GPUs that the host would choose, then those with other GPUs, where the VM is bound."""
    yield host_choice
    pinned_candidates = _pinned_candidates(host_choice.host, host_choice.node, question)
    yield from (candidate for candidate in pinned_candidates if candidate.seating.seats != host_choice.seating.seats)


def _pinned_candidates(host: Host, node: NumaNode | None, question: PlacementQuestion) -> Iterator[Candidate]:
    """Yield the places where the plan chooses the GPUs: for one vGPU any GPU with room, for several those of a node.

    Several vGPUs are only bound for the sake of locality: there are too many sets of GPUs to compare them all.
    """
    needs, profile = question.needs, question.needs.bindable
    candidates: Iterable[Candidate | None] = ()
    if profile is not None and len(needs.demands) == 1:
        candidates = _on_one_gpu(WantsVgpu(needs.demands[0].ordinal, profile), host, node, question)
    elif profile is not None and needs.numa is not NumaPolicy.NONE:
        nodes = host.numa_nodes if node is None else (node,)
        candidates = (_on_one_node(profile, host, numa_node, question) for numa_node in nodes)
    elif profile is None and needs.numa is NumaPolicy.PREFERRED and needs.mixed:
        candidates = (_mixed_profiles_on_node(host, numa_node, question) for numa_node in host.numa_nodes)
    yield from (candidate for candidate in candidates if candidate is not None)


def _on_one_gpu(
    demand: WantsVgpu, host: Host, node: NumaNode | None, question: PlacementQuestion
) -> Iterator[Candidate]:
    """Yield a place for each GPU with room for the vGPU."""
    vm = question.needs.vm
    memory = memory_doubt(vm, host, question.inventory)  # empty if there is no doubt
    for state in gpu_states(host, question.inventory, question.catalog):
        if node is not None and state.gpu.numa_node != node.id:
            continue
        doubt_or_rejection = judge_slot(state.without(vm.ref), demand, vm, host, question.catalog)
        if not isinstance(doubt_or_rejection, Rejection):
            gpu_doubt = f"{host.name} {state.gpu.address}: {doubt_or_rejection}" if doubt_or_rejection else ""
            doubts = tuple(doubt for doubt in (memory, gpu_doubt) if doubt)
            yield Candidate(host, Seating({demand.ordinal: state.gpu.address}, (), doubts), node, pinned_by_plan=True)


def _on_one_node(profile: str, host: Host, node: NumaNode, question: PlacementQuestion) -> Candidate | None:
    """Return the place on the GPUs of this node that leaves the most to others; None if there is no room, or if
    the exact rules doubt it."""
    needs = question.needs
    if node_shortages(needs.vm, node, host, question.inventory):
        return None
    gpus = question.losses.on_node(profile, host, node.id)
    if gpus is None:
        return None
    pins = {demand.ordinal: gpu for demand, gpu in zip(needs.demands, gpus, strict=True)}
    seating = seat_pinned(pins, host, question)
    required_node = node if needs.numa is NumaPolicy.REQUIRED else None
    if not seating.complete or seating.doubts:
        return None
    return Candidate(host, seating, required_node, pinned_by_plan=True)


def _mixed_profiles_on_node(host: Host, node: NumaNode, question: PlacementQuestion) -> Candidate | None:
    """Return the place of vGPUs of several profiles where the host would put them if it had only this node's GPUs."""
    needs = question.needs
    if node_shortages(needs.vm, node, host, question.inventory):
        return None
    seating_on_node = seat(needs.vm, needs.demands, host, question.inventory, question.catalog, node.id)
    if not seating_on_node.complete:
        return None
    seating = seat_pinned(dict(seating_on_node.seats), host, question)
    return Candidate(host, seating, pinned_by_plan=True) if seating.complete and not seating.doubts else None


def seat_pinned(gpus: dict[int, PciAddress], host: Host, question: PlacementQuestion) -> Seating:
    """Return the seating if each vGPU (by ordinal) is bound to its GPU in `gpus`."""
    demands = [
        replace(demand, pin=gpus[demand.ordinal]) for demand in question.needs.demands if isinstance(demand, WantsVgpu)
    ]
    return seat(question.needs.vm, demands, host, question.inventory, question.catalog)


def demands_on(host: Host, needs: Wanted) -> tuple[Demand, ...]:
    """Return the demands for this host. Pins count only on the VM's own host, since they are addresses there."""
    if host.ref == needs.vm.host:
        return needs.demands
    pinned = (demand for demand in needs.demands if isinstance(demand, WantsVgpu) and demand.pin is not None)
    unpinned = {demand.ordinal: replace(demand, pin=None) for demand in pinned}
    return tuple(unpinned.get(demand.ordinal, demand) for demand in needs.demands) if unpinned else needs.demands


def necessary_pins(candidate: Candidate, question: PlacementQuestion) -> dict[int, PciAddress]:
    """Return the pins that the placement needs: all if the plan chose the GPUs; else, if locality is required, those
    of vGPUs that the host could put on another node."""
    node, seats = candidate.node, candidate.seating.seats
    if node is None and not candidate.pinned_by_plan:
        return {}
    gpus = [gpu for gpu in candidate.host.gpus if gpu.graphics_type is GraphicsType.SHARED_DIRECT]
    gpus_elsewhere = [gpu for gpu in gpus if node is not None and gpu.numa_node != node.id]
    pins: dict[int, PciAddress] = {}
    for demand in question.needs.demands:
        if isinstance(demand, WantsVgpu) and demand.ordinal in seats:
            may_run_elsewhere = any(
                may_run(gpu, demand.profile, question.catalog) is not False for gpu in gpus_elsewhere
            )
            if candidate.pinned_by_plan or may_run_elsewhere:
                pins[demand.ordinal] = seats[demand.ordinal]
    return pins


_MIB_PER_GIB: Final = 1024
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
    """Return whether cores, memory and GPU can share a NUMA node."""
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
    own_cluster = None if current_host is None else current_host.cluster
    same = own_cluster is not None and candidate.host.cluster == own_cluster
    return Score(same, "the same cluster" if same else "another cluster, or none")


def score_loss(candidate: Candidate, question: PlacementQuestion, loss: Loss) -> Score:
    """How much the place leaves to the other VMs that the site has or is asked for; small differences do not count."""
    if loss == NO_LOSS:
        return Score(0, "")
    worth_gib, kept_gib = loss.worth_mib / _MIB_PER_GIB, loss.kept_mib / _MIB_PER_GIB
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
    if node is None or node_shortages(question.needs.vm, node, candidate.host, question.inventory):
        return None
    return node.id


_FEW_HOSTS: Final = 8
"""Up to this number hosts are checked one by one: building an index would take longer."""


def place(
    needs: Wanted, inventory: Inventory, catalog: Catalog, scorers: Sequence[Scorer] = SCORERS
) -> Placement | tuple[Rejection, ...]:
    """Return the best place for the VM's devices, or every reason why there is no place. With `needs.explain` the
    placement has a line for every place that was checked."""
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
        for candidate_or_rejection in candidates_on_host(inventory.hosts[ref], question):
            if isinstance(candidate_or_rejection, Candidate):
                candidates.append(candidate_or_rejection)
            else:
                rejections.append(candidate_or_rejection)
    if not candidates:
        no_host = Rejection(needs.vm.name, "no host was given")
        return tuple(dict.fromkeys(rejections)) or (no_host,)
    # 2. Rank: by what each place takes from other VMs and by the scorers, in their order. A single place needs no loss.
    losses = [NO_LOSS]
    if len(candidates) > 1:
        losses = question.losses.of([(candidate.host, candidate.seating.seats) for candidate in candidates])
    ranked = [
        _RankedCandidate(candidate, tuple(scorer(candidate, question, loss) for scorer in scorers))
        for candidate, loss in zip(candidates, losses, strict=True)
    ]
    ranked.sort(key=lambda scored: scored.rank)
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
    """Return the best place that leaves enough free; None = use the exact pass. The index searches the hosts that leave
    enough on any GPU. Its choice is then compared, by the exact rules, with the hosts that may leave enough,
    depending on the GPU."""
    from gpuops.plan.placement.fleet.choice import choose_in_fleet
    from gpuops.plan.placement.fleet.index import kept_hosts

    sure_hosts, unsure_hosts = kept_hosts(question.kept_room, question.losses.fleet)
    narrowed = replace(question, needs=replace(question.needs, hosts=sure_hosts))
    chosen = choose_in_fleet(narrowed.needs, question.losses.fleet, question.losses)
    if chosen is not None and _confirm(chosen, narrowed) is None:
        return None
    refs = (*(() if chosen is None else (chosen.host.ref,)), *unsure_hosts)
    placement = place_exactly(replace(question.needs, hosts=refs), question.inventory, question.catalog)
    return placement if isinstance(placement, Placement) and not placement.doubts else None


def _confirm(chosen: FleetChoice | None, question: PlacementQuestion) -> Candidate | None:
    """Return the chosen place if the exact rules agree without a doubt, else None."""
    if chosen is None:
        return None
    host, needs = chosen.host, question.needs
    node = next((node for node in host.numa_nodes if node.id == chosen.node), None)
    if chosen.pinned_by_plan:
        seating = seat_pinned(chosen.seats, host, question)
    else:
        seating = seat(needs.vm, demands_on(host, needs), host, question.inventory, question.catalog, chosen.node)
    is_confirmed = seating.complete and not seating.doubts and seating.seats == chosen.seats
    return Candidate(host, seating, node, chosen.pinned_by_plan) if is_confirmed else None


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
        node_of_gpu = {device.address: device.numa_node for device in host.devices}
        gpus = sorted((str(node_of_gpu.get(gpu)), gpu) for gpu in candidate.seating.seats.values())
        return (*(-score.value for score in self.scores), host.name, host.ref, node, candidate.pinned_by_plan, gpus)


def _choices(ranked: list[_RankedCandidate]) -> Iterator[Choice]:
    """Yield a line for the best place, one for the best of each other host or node, and one for each further GPU
    there."""
    best = ranked[0]
    reasons = "; ".join(score.reason for score in best.scores if score.reason)
    binding = "bound to " if best.candidate.pinned_by_plan else ""
    seats = f"{binding}GPU {best.candidate.gpus}" if best.candidate.gpus else "no GPU needed"
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
    # All scores are equal: the order of names decides, or the host's own choice comes before a pin.
    if runner_up.candidate.subject != best.candidate.subject:
        return f"would do as well as {best.candidate.subject}, which comes first by name"
    why = "comes first" if best.candidate.pinned_by_plan else "the host chooses itself"
    return f"would do as well as {best.candidate.gpus}, which {why}"
