"""The defragmentation request and its answer: which moves free the most slots or whole GPUs, and which VMs stay.

`gpuops defrag` (`cli/vms/defrag.py`, `api/vms.py`, `execute/change/moves.py`) and `plan/queue/suggestions.py` call it.
The answer has the moves by name, what is free before and after each, and why the other VMs stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Final

from gpuops.advise.fragmentation import FragmentationMeasure
from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.command_line import Names, Option, word
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import RelocateVm
from gpuops.plan.devices.goal import offered_profile, pin_changes
from gpuops.plan.moving.frontier import ClusterPlans, combine_clusters, explore_cluster
from gpuops.plan.moving.movability import OPT_OUT, Movability, MoveMethod, TargetHosts, admitted_moves, judge_all
from gpuops.plan.moving.moves import ArrivalBasis, MoveSequence, apply_move, arrival_of, host_of, make_frontier, replay
from gpuops.plan.moving.searched_cluster import (
    CERTAIN,
    ClusterHost,
    ClusterModel,
    ClusterState,
    FreeingGoal,
    GpuContent,
    SearchVm,
    VmMove,
    gpu_contents,
    gpus_per_vm,
    make_search_vms,
)
from gpuops.plan.placement.host_filters import surely_unreserved_mib
from gpuops.plan.placement.suspended_vms import with_claims
from gpuops.plan.placement.vm_demand import PinPolicy


@dataclass(frozen=True, slots=True)
class StayingVm:
    """A VM that does not move, and why it may not."""

    vm: Vm
    way: MoveMethod
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The move of one VM to another host, after the moves before it."""

    vm: Vm
    source: Host
    target: Host
    way: MoveMethod
    gpus: tuple[PciAddress, ...]
    """The GPUs of the target that its vGPUs may be on after the move."""
    basis: ArrivalBasis
    pins: Mapping[int, PciAddress]
    """The GPU that each of its vGPUs is bound to there, by ordinal; none = the host chooses."""
    free: int
    """How much of the goal is free on all hosts after this move."""

    @property
    def step(self) -> RelocateVm:
        return RelocateVm(self.vm.ref, self.target.ref)

    @property
    def pin_entries(self) -> dict[str, str]:
        """Return the extraConfig entries that bind its vGPUs to these GPUs."""
        return pin_changes(self.vm, self.pins) if self.pins else {}


@dataclass(frozen=True, slots=True)
class GpuHolding:
    """How many vGPUs are on a GPU, at least and at most; `free`: how much of the goal is free there."""

    at_least: int
    at_most: int
    free: int


@dataclass(frozen=True, slots=True)
class GpuChange:
    """A GPU that a VM leaves, arrives on, or may arrive on."""

    address: PciAddress
    before: GpuHolding
    after: GpuHolding
    certain: bool
    """False: it may instead be another GPU of the host with the same content."""


@dataclass(frozen=True, slots=True)
class HostChange:
    """How much of the goal is free on a host before and after the plan, and its GPUs that change."""

    host: Host
    before: int
    after: int
    gpus: tuple[GpuChange, ...]


@dataclass(frozen=True, slots=True)
class UnclearGpu:
    """A GPU that does not count, and why."""

    host: Host
    address: PciAddress
    because: str


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """The plan, and what is proven about it."""

    inventory: Inventory
    profile: str | None
    """None = whole GPUs."""
    gpus: int
    moves: tuple[PlannedMove, ...]
    hosts: tuple[HostChange, ...]
    before: int
    after: int
    bound: int
    """No sequence of moves can free more than this."""
    proven: bool
    """It is proven that no other moves free more for certain, and no fewer moves as much (within `max_moves`)."""
    proven_unpinned: bool
    """It is proven that no moves in which the hosts choose all GPUs are better than this plan."""
    assumes: tuple[str, ...]
    """Assumptions about the hosts' choice of GPU; () = no host has more than one to choose from."""
    settled: int
    """No plan of up to this many moves is better than this plan cut to as many moves."""
    stays: tuple[StayingVm, ...]
    unclear: tuple[UnclearGpu, ...]
    steps_of_gain: tuple[tuple[int, int], ...]
    """(number of moves, amount free) for each move that raises the free amount to a new maximum."""
    fragmented_mib: tuple[int, int] | None = None
    """With --budget the fragmented memory before and after the moves; None = the request has no budget."""


def describe_plan(
    inventory: Inventory,
    catalog: Catalog,
    profile: str | None,
    all_plans: Sequence[ClusterPlans],
    sequences: Sequence[MoveSequence],
    stays: tuple[StayingVm, ...],
    powered_off: frozenset[str],
    limit: int,
) -> Defragmentation:
    """Return the plan with names instead of numbers. Each sequence is cut where the exact rules of placement refuse a
    move."""
    before = sum(plans.model.count_all_free(plans.start.cluster_state) for plans in all_plans)
    chosen = [
        _confirm_sequence(plans, sequence, inventory, catalog)
        for plans, sequence in zip(all_plans, sequences, strict=True)
    ]
    # `_confirm_sequence` returns the same object if all moves of the sequence are admitted
    confirmed = all(admitted is sequence for admitted, sequence in zip(chosen, sequences, strict=True))
    moves: list[PlannedMove] = []
    free = before
    for plans, sequence in zip(all_plans, chosen, strict=True):
        moves += [replace(move, free=free + move.free) for move in _moves(plans, sequence, powered_off)]
        free += _freed(plans, sequence.cluster_state)
    return Defragmentation(
        inventory=inventory,
        profile=profile,
        gpus=sum(len(cluster_host.gpus) for plans in all_plans for cluster_host in plans.model.cluster_hosts),
        moves=tuple(moves),
        hosts=tuple(
            host_change
            for plans, sequence in zip(all_plans, chosen, strict=True)
            for host_change in _changes(plans, sequence.cluster_state)
        ),
        before=before,
        after=free,
        bound=before + sum(map(_most_freed, all_plans)),
        proven=confirmed and _proven(all_plans, sequences, limit, lambda plans: plans.settled),
        proven_unpinned=confirmed and _proven(all_plans, sequences, limit, lambda plans: plans.settled_unpinned),
        assumes=tuple(dict.fromkeys(assumption for plans in all_plans for assumption in _assumptions(plans))),
        settled=min((plans.settled for plans in all_plans), default=limit),
        stays=stays,
        unclear=tuple(
            UnclearGpu(cluster_host.host, gpu.address, why)
            for plans in all_plans
            for cluster_host in plans.model.cluster_hosts
            for gpu, why in zip(cluster_host.gpus, cluster_host.unclear, strict=True)
            if why and gpu.serves_vgpus
        ),
        steps_of_gain=tuple(_steps_of_gain(moves, before)),
        fragmented_mib=_fragmented(all_plans, chosen),
    )


def _steps_of_gain(moves: Sequence[PlannedMove], free_before: int) -> Iterator[tuple[int, int]]:
    """Yield (number of moves, amount free) for each move after which more is free than ever before."""
    most_free = free_before
    for number, move in enumerate(moves, 1):
        if move.free > most_free:
            most_free = move.free
            yield number, most_free


def _freed(plans: ClusterPlans, cluster_state: ClusterState) -> int:
    """Return how many more slots or whole GPUs are free in this state than at the start."""
    return plans.model.count_all_free(cluster_state) - plans.model.count_all_free(plans.start.cluster_state)


def _most_freed(plans: ClusterPlans) -> int:
    """Return an upper bound on how many more slots or whole GPUs can be freed."""
    if plans.model.goal.measure is None:
        return plans.most_to_gain
    # The goal is less fragmentation: at best every GPU whose VMs can all move becomes free.
    return sum(
        plans.model.count_free(host_now.number, gpu, ()) - plans.model.count_free(host_now.number, gpu, content)
        for host_now in plans.start.cluster_state
        for gpu, content in enumerate(host_now.contents)
        if all(plans.model.search_vms[vgpu.vm].movable for vgpu in content)
    )


def _fragmented(all_plans: Sequence[ClusterPlans], chosen: Sequence[MoveSequence]) -> tuple[int, int] | None:
    """Return the fragmented memory before and after the moves, in MiB; None = the goal is another one."""
    if not all_plans or all_plans[0].model.goal.measure is None:
        return None
    return -sum(plans.start.worth for plans in all_plans), -sum(sequence.worth for sequence in chosen)


def _assumptions(plans: ClusterPlans) -> Iterator[str]:
    """Yield how hosts with several GPUs for vGPUs are taken to choose among those with room (sources: `moves.py`)."""
    for cluster_host in plans.model.cluster_hosts:
        modes = [gpu.vgpu_mode for gpu in cluster_host.gpus if gpu.serves_vgpus]
        for mode in sorted(set(modes), key=str) if len(modes) > 1 else ():
            yield _choice_of_gpu(mode, cluster_host.policy)


def _choice_of_gpu(mode: VgpuMode | None, policy: AssignmentPolicy | None) -> str:
    if mode is VgpuMode.MIXED_SIZE:
        return "mixed-size mode: the GPU with the least memory used"
    if mode is VgpuMode.SAME_SIZE and policy is not None:
        most = "most" if policy is AssignmentPolicy.CONSOLIDATION else "fewest"
        return f"same-size mode, policy {policy.value}: the GPU with the {most} VMs"
    where = "MIG mode" if mode is VgpuMode.MULTI_INSTANCE else "a mode or policy that vCenter does not report"
    return f"{where}: any"


def _confirm_sequence(
    plans: ClusterPlans, sequence: MoveSequence, inventory: Inventory, catalog: Catalog
) -> MoveSequence:
    """Return the sequence, or the best part of it whose moves are all admitted."""
    model = plans.model
    steps: list[RelocateVm] = []
    pins: dict[int, dict[str, str]] = {}
    for number, vm_move in enumerate(sequence.vm_moves):
        vm = model.search_vms[vm_move.search_vm].vm
        steps.append(RelocateVm(vm.ref, model.cluster_hosts[vm_move.to].host.ref))
        if vm_move.gpus:
            pins[number] = pin_changes(vm, _pins(plans, vm_move))
    admitted_count = admitted_moves(steps, inventory, catalog, pins)
    if admitted_count == sequence.moves:
        return sequence
    first_moves = (sequence.vm_moves[:count] for count in range(admitted_count + 1))
    parts = [replay(model, plans.start.cluster_state, vm_moves) for vm_moves in first_moves]
    return make_frontier([part for part in parts if part is not None])[-1]  # the last one frees the most


def _proven(
    all_plans: Sequence[ClusterPlans],
    sequences: Sequence[MoveSequence],
    limit: int,
    settled: Callable[[ClusterPlans], int],
) -> bool:
    """Return whether every cluster was searched far enough to exclude a better plan."""
    if all(plans.gain(sequence) == plans.most_to_gain for plans, sequence in zip(all_plans, sequences, strict=True)):
        return all(settled(plans) >= sequence.moves - 1 for plans, sequence in zip(all_plans, sequences, strict=True))
    return all(settled(plans) >= limit for plans in all_plans)


def _moves(plans: ClusterPlans, sequence: MoveSequence, powered_off: frozenset[str]) -> Iterator[PlannedMove]:
    """Yield the moves of one cluster; `free` counts from the start of the plan in this cluster."""
    model, cluster_state = plans.model, plans.start.cluster_state
    for vm_move in sequence.vm_moves:
        search_vm = model.search_vms[vm_move.search_vm]
        source, arrival = host_of(cluster_state, search_vm), arrival_of(model, cluster_state[vm_move.to], vm_move)
        after = apply_move(model, cluster_state, vm_move)
        assert source is not None, f"{search_vm.vm.name} is somewhere"
        assert arrival is not None, f"{search_vm.vm.name} was found a place by the same rule"
        assert after is not None, f"{search_vm.vm.name} may leave"
        target, cluster_state = model.cluster_hosts[vm_move.to], after
        yield PlannedMove(
            vm=search_vm.vm,
            source=model.cluster_hosts[source.number].host,
            target=target.host,
            way=MoveMethod.POWERED_OFF if search_vm.vm.ref in powered_off else MoveMethod.VMOTION,
            gpus=tuple(target.gpus[gpu].address for gpu in arrival.gpus),
            basis=arrival.basis,
            pins=_pins(plans, vm_move),
            free=_freed(plans, after),
        )


def _pins(plans: ClusterPlans, vm_move: VmMove) -> dict[int, PciAddress]:
    """Return the GPU that each vGPU is bound to by this move, by ordinal; empty = the host chooses."""
    gpus = plans.model.cluster_hosts[vm_move.to].gpus
    return {ordinal: gpus[gpu].address for ordinal, gpu in enumerate(vm_move.gpus)}


def _changes(plans: ClusterPlans, after: ClusterState) -> Iterator[HostChange]:
    """Yield the hosts whose GPUs hold other vGPUs after the moves, or may hold others."""
    model = plans.model
    for host_before, host_after in zip(plans.start.cluster_state, after, strict=True):
        cluster_host = model.cluster_hosts[host_before.number]
        gpus = []
        for number, gpu in enumerate(cluster_host.gpus):
            content_before, content_after = host_before.contents[number], host_after.contents[number]
            is_ambiguous = number in host_after.ambiguous_gpus
            if content_before != content_after or is_ambiguous:
                holding_before = _gpu_holding(plans, host_before.number, number, content_before)
                holding_after = _gpu_holding(plans, host_after.number, number, content_after)
                gpus.append(GpuChange(gpu.address, holding_before, holding_after, certain=not is_ambiguous))
        if gpus:
            free_before, free_after = model.count_all_free((host_before,)), model.count_all_free((host_after,))
            yield HostChange(cluster_host.host, free_before, free_after, tuple(gpus))


def _gpu_holding(plans: ClusterPlans, host: int, gpu: int, content: GpuContent) -> GpuHolding:
    certain = sum(vgpu.certainty == CERTAIN for vgpu in content)
    return GpuHolding(certain, len(content), plans.model.count_free(host, gpu, content))


UNLIMITED: Final = 1_000_000
_NO_VM: Final = Vm("", "")
NO_REASONS_TO_STAY: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Defrag:
    """A request: what is to be freed, where, and with how many moves."""

    profile: Annotated[str | None, Option("Free slots of this vGPU profile: a40-24q.", "NAME", Names.PROFILES)] = None
    """None = whole GPUs, that nothing runs on."""
    max_moves: Annotated[
        int | None, Option("Plan at most N moves; default: all that free something.", "N", least=0)
    ] = None
    budget: Annotated[
        int | None,
        Option("Plan the N moves that make the most fragmented memory usable again.", "N", least=1),
    ] = None
    """None = free GPUs or slots."""
    powered_off: Annotated[
        bool, Option("Also move VMs that cannot move while they run: each is powered off for it.")
    ] = False
    pin: Annotated[PinPolicy, Option("auto: with --powered-off, bind a vGPU to one GPU where that frees more.")] = (
        PinPolicy.AUTO
    )
    cluster: Annotated[str | None, Option("Only hosts of this cluster.", "NAME", Names.CLUSTERS)] = None
    host: Annotated[
        str | None, Option("Only hosts whose name matches: esx-0*. No VM moves to another host.", "HOST", Names.HOSTS)
    ] = None

    def __post_init__(self) -> None:
        """Check the options, and convert `pin` from text. Raises UsageError."""
        # The class is frozen, so that a request that is compared and stored cannot change.
        object.__setattr__(self, "pin", word(PinPolicy, self.pin, "pin"))
        if self.max_moves is not None and self.max_moves < 0:
            hint = "set --max-moves 0 or more, or remove it for no limit"
            raise UsageError(f"--max-moves {self.max_moves} is not valid", hint=hint)
        if self.budget is not None and (self.profile is not None or self.max_moves is not None):
            other = "--profile" if self.profile is not None else "--max-moves"
            raise UsageError(f"--budget and {other} exclude each other", hint="run the command once with each")
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"--budget {self.budget} is not valid", hint="set --budget 1 or more")

    @property
    def scope(self) -> Scope:
        """Return which hosts take part: VMs leave no other host, and go to no other."""
        return Scope(self.cluster, self.host)

    def find_moves(
        self, inventory: Inventory, catalog: Catalog, reasons_to_stay: Mapping[str, str] = NO_REASONS_TO_STAY
    ) -> Defragmentation:
        """Return the moves, what is free before and after them, and why the other VMs stay.

        `reasons_to_stay`: VM ref -> why it stays, in addition to the reasons in the snapshot.

        Raises HostNotFound, UsageError for an unknown cluster, ProfileUnknown, and Refused for a
        profile that no host offers.
        """
        # 1. Slots that suspended VMs need for their return count as taken.
        self.scope.check(inventory)
        profile = None if self.profile is None else offered_profile(self.profile, inventory, catalog)
        snapshot, _ = with_claims(inventory, catalog)
        ways = frozenset({MoveMethod.VMOTION, MoveMethod.POWERED_OFF} if self.powered_off else {MoveMethod.VMOTION})
        most_moves = self.max_moves if self.budget is None else self.budget
        limit = UNLIMITED if most_moves is None else most_moves
        goal = FreeingGoal(profile, None if self.budget is None else FragmentationMeasure(inventory, catalog))
        all_plans: list[ClusterPlans] = []
        stays: list[StayingVm] = []
        powered_off: set[str] = set()
        for hosts in _by_cluster(self.scope.hosts(inventory), inventory):
            # 2. Which VMs may move, and to which hosts. VMs stay in their cluster: neither CPU features nor networks of
            #    hosts are read, and hosts of one cluster have the same.
            movabilities = judge_all(inventory, hosts, catalog, (OPT_OUT,), reasons_to_stay)
            targets = TargetHosts(hosts, inventory.clusters.get(hosts[0].cluster or ""), inventory)
            states = {host.ref: gpu_states(snapshot.hosts[host.ref], snapshot, catalog) for host in hosts}
            gpu_counts = gpus_per_vm(state for of_host in states.values() for state in of_host)
            search_vms = make_search_vms(movabilities, gpu_counts, targets, ways, self.pin)
            stays += _staying_vms(movabilities, search_vms, targets, ways)
            # 3. The best plans for each number of moves.
            model = ClusterModel(
                [_cluster_host(host, states[host.ref], profile) for host in hosts],
                search_vms,
                goal,
                catalog,
            )
            all_plans.append(explore_cluster(model, _first_state(model, states, snapshot), limit))
            powered_off |= {
                movability.vm.ref for movability in movabilities if movability.way is MoveMethod.POWERED_OFF
            }
        # 4. One plan for each cluster within the limit, then names, and the check of every move by the exact rules.
        sequences = combine_clusters(all_plans, limit)
        return describe_plan(
            inventory, catalog, profile, all_plans, sequences, tuple(stays), frozenset(powered_off), limit
        )


def _by_cluster(hosts: Sequence[Host], inventory: Inventory) -> list[list[Host]]:
    """Return the hosts grouped by cluster, in the order of cluster names; hosts outside clusters come last."""
    hosts_of: dict[str | None, list[Host]] = {}
    for host in hosts:
        hosts_of.setdefault(host.cluster if host.cluster in inventory.clusters else None, []).append(host)
    names = {ref: inventory.clusters[ref].name if ref else "" for ref in hosts_of}
    return [hosts_of[ref] for ref in sorted(hosts_of, key=lambda ref: (ref is None, names[ref], ref or ""))]


def _cluster_host(host: Host, states: Sequence[GpuState], profile: str | None) -> ClusterHost:
    """Return the host with why the room of a GPU is unknown, and which GPUs count towards the goal."""
    why_unclear = ""
    if host.connected is not True:
        why_unclear = "its host is not connected, or its connection state cannot be read"
    elif host.in_maintenance is not False:
        why_unclear = "its host is in maintenance mode, or its mode cannot be read"
    unclear = tuple(why_unclear or state.unclear for state in states)
    is_offered = profile is None or host.offers(profile) is not None
    counted = (is_offered and not why and state.gpu.serves_vgpus for state, why in zip(states, unclear, strict=True))
    return ClusterHost(host, tuple(state.gpu for state in states), unclear, tuple(counted))


def _first_state(model: ClusterModel, states: Mapping[str, Sequence[GpuState]], snapshot: Inventory) -> ClusterState:
    """Return who is where before the first move."""
    numbers = {search_vm.vm.ref: search_vm.number for search_vm in model.search_vms}
    return tuple(
        model.host_state(
            number,
            gpu_contents(states[cluster_host.host.ref], numbers),
            surely_unreserved_mib(snapshot.hosts[cluster_host.host.ref], _NO_VM, snapshot) or 0,
        )
        for number, cluster_host in enumerate(model.cluster_hosts)
    )


def _staying_vms(
    movabilities: Sequence[Movability],
    search_vms: Sequence[SearchVm],
    targets: TargetHosts,
    ways: frozenset[MoveMethod],
) -> Iterator[StayingVm]:
    """Yield the VMs that cannot move in this plan, with the reasons."""
    for movability, search_vm in zip(movabilities, search_vms, strict=True):
        if movability.way not in ways:
            yield StayingVm(movability.vm, movability.way, movability.reasons)
        elif not search_vm.movable:
            _, refusals = targets.of(movability.vm, running=movability.way is MoveMethod.VMOTION)
            yield StayingVm(movability.vm, MoveMethod.NOT, tuple(map(str, refusals)) or ("no other host takes part",))
