"""What a move does: on which GPU a host puts a VM that arrives, as far as that is certain, and sequences of moves.

`move_search.py` calls it. The host chooses the GPU itself, and vMotion has no option for it, so such a move
counts only as far as the host's documented policy leaves no choice:

* one GPU is possible: the VM is on it;
* several that are alike: it does not matter which, so the first stands for the one that it is;
* several that differ: the VM is counted on each of them, so that a GPU is taken for fuller than it is and never
emptier.

A VM that is off for its move may be bound to any GPU with certain room instead (`bound_arrivals`); it stays there.

Sources: vSphere API, HostGraphicsConfig.sharedPassthruAssignmentPolicy (same-size mode: `performance` the GPU with the
fewest VMs, `consolidation` the one with the most); NVIDIA AI Enterprise docs (mixed-size mode: the least used; the
policy is ignored there and in MIG mode). What breaks ties, and the order in MIG mode, is documented nowhere.

Example: two GPUs in same-size mode, one with two VMs of 8 GiB, one empty. Under `consolidation` a third VM of 8 GiB
goes to the first, and the second stays free; under `performance` it goes to the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.devices.gpu import AssignmentPolicy, VgpuMode
from gpuops.plan.moving.searched_cluster import (
    CERTAIN,
    POSSIBLE,
    ClusterModel,
    ClusterState,
    GpuContent,
    HostContents,
    SearchVm,
    VgpuOnGpu,
    VmMove,
    with_host,
)


class ArrivalBasis(StrEnum):
    """Why it is known on which GPU the VM arrives, or why it does not matter."""

    BOUND = "pinned to it"
    ONLY = "the only GPU with room"
    POLICY = "assignment policy"
    ALIKE = "one of several that are alike"
    ANY = "any of them: counted on each"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A host with one more VM, and the GPUs that the VM may be on."""

    host_after: HostContents
    gpus: tuple[int, ...]
    basis: ArrivalBasis


@dataclass(frozen=True, slots=True)
class _VgpuArrival:
    """The GPUs that one vGPU may be on after its arrival."""

    gpus: tuple[int, ...]
    basis: ArrivalBasis


def remove_vm(model: ClusterModel, host_now: HostContents, search_vm: SearchVm) -> HostContents | None:
    """Return the host without the VM; None if it is unknown which GPU the VM leaves, or the VM is bound to it."""
    if search_vm.number in host_now.fixed_vms:
        return None
    contents = tuple(tuple(vgpu for vgpu in content if vgpu.vm != search_vm.number) for content in host_now.contents)
    return model.host_state(
        host_now.number,
        contents,
        host_now.free_mib + search_vm.reserved_mib,
        host_now.ambiguous_gpus,
        host_now.fixed_vms,
    )


def add_vm(model: ClusterModel, host_now: HostContents, search_vm: SearchVm) -> Arrival | None:
    """Return the host after the VM has arrived, on the GPU that the host chooses; None = no certain room."""
    # 1. Memory, which is reserved in full.
    if search_vm.memory_mib > host_now.free_mib:
        return None
    # 2. Its vGPUs, one after the other, each where the host puts it.
    contents, ambiguous_gpus, fixed_vms = list(host_now.contents), host_now.ambiguous_gpus, host_now.fixed_vms
    possible_gpus: set[int] = set()
    bases = [ArrivalBasis.ONLY]
    for profile in search_vm.profiles:
        vgpu_arrival = _vgpu_arrival(model, host_now.number, contents, profile)
        if vgpu_arrival is None:
            return None
        gpus, certainty = vgpu_arrival.gpus[:1], CERTAIN
        if vgpu_arrival.basis is ArrivalBasis.ALIKE:
            # The vGPU is counted on the first of these GPUs. From now on it is unknown which VMs share its GPU.
            ambiguous_gpus |= set(vgpu_arrival.gpus)
            fixed_vms |= {vgpu.vm for gpu in vgpu_arrival.gpus for vgpu in contents[gpu]}
        elif vgpu_arrival.basis is ArrivalBasis.ANY:
            gpus, certainty = vgpu_arrival.gpus, POSSIBLE
        for gpu in gpus:
            contents[gpu] = (*contents[gpu], VgpuOnGpu(search_vm.number, profile, certainty))
        possible_gpus.update(vgpu_arrival.gpus)
        bases.append(vgpu_arrival.basis)
    free_mib = host_now.free_mib - search_vm.memory_mib
    host_after = model.host_state(host_now.number, tuple(contents), free_mib, ambiguous_gpus, fixed_vms)
    # 3. If one of the GPUs was ambiguous before, it may be any of the ambiguous ones.
    if host_now.ambiguous_gpus & possible_gpus:
        possible_gpus |= host_now.ambiguous_gpus
        bases.append(ArrivalBasis.ALIKE)
    # the members of `ArrivalBasis` are in the order of falling certainty
    least_certain_basis = max(bases, key=list(ArrivalBasis).index)
    return Arrival(host_after, tuple(sorted(possible_gpus)), least_certain_basis)


def bound_arrivals(
    model: ClusterModel, host_now: HostContents, search_vm: SearchVm
) -> Iterator[tuple[tuple[int, ...], Arrival]]:
    """Yield the GPUs that the VM's vGPUs may be bound to, and the host with it, once for choices that are alike.

    Ambiguous GPUs are left out: a VM that arrived on one of them may be on the one that would be chosen here.
    """
    if not search_vm.bindable or search_vm.memory_mib > host_now.free_mib:
        return
    # Extend each choice by a GPU for the next vGPU. Choices after which the host has the same key are alike: the first
    # of them is kept.
    choices: list[tuple[tuple[int, ...], HostContents]] = [((), host_now)]
    for profile in search_vm.profiles:
        longer_choices: dict[int, tuple[tuple[int, ...], HostContents]] = {}
        for gpus, host in choices:
            for gpu in range(len(host_now.contents)):
                after = _with_bound(model, host, search_vm, profile, gpu)
                if after is not None:
                    longer_choices.setdefault(after.key, ((*gpus, gpu), after))
        choices = list(longer_choices.values())
    for gpus, after in choices:
        yield gpus, _bound_arrival(model, after, search_vm, gpus)


def arrival_of(model: ClusterModel, host_now: HostContents, vm_move: VmMove) -> Arrival | None:
    """Return the host with the VM of this move, bound or where the host puts it; None = no certain room."""
    search_vm = model.search_vms[vm_move.search_vm]
    if not vm_move.gpus:
        return add_vm(model, host_now, search_vm)
    if search_vm.memory_mib > host_now.free_mib:
        return None
    after: HostContents | None = host_now
    for profile, gpu in zip(search_vm.profiles, vm_move.gpus, strict=True):
        after = None if after is None else _with_bound(model, after, search_vm, profile, gpu)
    return None if after is None else _bound_arrival(model, after, search_vm, vm_move.gpus)


def _with_bound(
    model: ClusterModel, host_now: HostContents, search_vm: SearchVm, profile: str, gpu: int
) -> HostContents | None:
    """Return the host with this vGPU of the VM on this GPU, its memory not yet taken; None = no certain room there."""
    content, ambiguous_gpus = host_now.contents[gpu], host_now.ambiguous_gpus
    if gpu in ambiguous_gpus or not model.slots(host_now.number, gpu, content, profile).at_least:
        return None
    with_vgpu = (*content, VgpuOnGpu(search_vm.number, profile, CERTAIN))
    contents = (*host_now.contents[:gpu], with_vgpu, *host_now.contents[gpu + 1 :])
    fixed_vms = host_now.fixed_vms | {search_vm.number}  # a pinned VM does not move again
    return model.host_state(host_now.number, contents, host_now.free_mib, ambiguous_gpus, fixed_vms)


def _bound_arrival(
    model: ClusterModel, with_vgpus: HostContents, search_vm: SearchVm, gpus: tuple[int, ...]
) -> Arrival:
    """Return the arrival on a host that already counts the VM's vGPUs: its memory is taken here."""
    free_mib = with_vgpus.free_mib - search_vm.memory_mib
    host_after = model.host_state(
        with_vgpus.number, with_vgpus.contents, free_mib, with_vgpus.ambiguous_gpus, with_vgpus.fixed_vms
    )
    return Arrival(host_after, tuple(sorted(set(gpus))), ArrivalBasis.BOUND)


def _vgpu_arrival(model: ClusterModel, host: int, contents: list[GpuContent], profile: str) -> _VgpuArrival | None:
    """Return the GPUs that one vGPU may go to; None = there is no certain room. Suspended VMs keep their slots, but the
    host does not count them when it chooses."""
    # 1. Free slots on each GPU: `slots` keeps those of suspended VMs, `open_to_host` counts only what runs.
    running_vgpus = [tuple(vgpu for vgpu in content if model.search_vms[vgpu.vm].running) for content in contents]
    slots = [model.slots(host, gpu, content, profile) for gpu, content in enumerate(contents)]
    if not any(room.at_least for room in slots):
        return None
    open_to_host = {
        gpu: room.at_least > 0
        for gpu, content in enumerate(running_vgpus)
        if (room := model.slots(host, gpu, content, profile)).possible
    }
    # 2. The GPUs that the host may choose. None of them may be one where only the slot of a suspended VM is left.
    chosen, by_policy = _possible_choices(model, host, running_vgpus, open_to_host)
    if any(slots[gpu].at_least == 0 and running_vgpus[gpu] != contents[gpu] for gpu in chosen):
        return None  # a suspended VM might not find its slot again
    # 3. One is left, several that are alike, or several that differ.
    if len(chosen) == 1:
        return _VgpuArrival(chosen, ArrivalBasis.ONLY if len(open_to_host) == 1 else ArrivalBasis.POLICY)
    kinds = {model.kind_of_gpu(host, gpu, contents[gpu]) for gpu in chosen}
    certain = all(vgpu.certainty == CERTAIN for gpu in chosen for vgpu in contents[gpu])
    if len(kinds) == 1 and certain and by_policy:
        return _VgpuArrival(chosen, ArrivalBasis.ALIKE)
    return _VgpuArrival(chosen, ArrivalBasis.ANY)


def _possible_choices(
    model: ClusterModel, host: int, running_vgpus: list[GpuContent], open_to_host: dict[int, bool]
) -> tuple[tuple[int, ...], bool]:
    """Return the GPUs that the host may choose, and whether that follows from a documented rule. `open_to_host`: the
    GPUs with room, True = for certain, False = perhaps. Each sharing mode has an order of its own."""
    cluster_host = model.cluster_hosts[host]
    is_certain = all(vgpu.certainty == CERTAIN for gpu in open_to_host for vgpu in running_vgpus[gpu])
    is_certain = is_certain and not any(cluster_host.unclear[gpu] for gpu in open_to_host)
    by_mode: dict[VgpuMode | None, list[int]] = {}
    for gpu in open_to_host:
        by_mode.setdefault(cluster_host.gpus[gpu].vgpu_mode, []).append(gpu)
    possible_gpus: list[int] = []
    follows_rule = is_certain
    for mode, gpus in by_mode.items():
        order = _order_of_choice(model, host, mode, running_vgpus, gpus) if is_certain else None
        follows_rule = follows_rule and order is not None
        possible_gpus += gpus if order is None else _first_ranks(order, open_to_host)
    return tuple(sorted(possible_gpus)), follows_rule


def _order_of_choice(
    model: ClusterModel, host: int, mode: VgpuMode | None, running_vgpus: list[GpuContent], gpus: Iterable[int]
) -> dict[int, int] | None:
    """Return the rank of each GPU in the host's order, lower first; None = the order is documented nowhere."""
    policy = model.cluster_hosts[host].policy
    if mode is VgpuMode.SAME_SIZE and policy is not None:
        # consolidation chooses the GPU with the most VMs, performance the one with the fewest
        sign = -1 if policy is AssignmentPolicy.CONSOLIDATION else 1
        return {gpu: sign * len({vgpu.vm for vgpu in running_vgpus[gpu]}) for gpu in gpus}
    if mode is VgpuMode.MIXED_SIZE:
        used_mib = dict.fromkeys(gpus, 0)
        for gpu in used_mib:
            profiles = [
                profile for vgpu in running_vgpus[gpu] if (profile := model.catalog.profile(vgpu.profile)) is not None
            ]
            used_mib[gpu] = sum(profile.framebuffer_mib for profile in profiles)
        return used_mib
    if mode is VgpuMode.MULTI_INSTANCE and len({model.kind_of_gpu(host, gpu, running_vgpus[gpu]) for gpu in gpus}) == 1:
        return dict.fromkeys(gpus, 0)  # which of several equal GPUs it is does not matter
    return None


def _first_ranks(order: dict[int, int], open_to_host: dict[int, bool]) -> list[int]:
    """Return the GPUs of the ranks down to the first one with certain room: any before it may refuse. Both arguments
    are by GPU: its rank, and whether its room is certain.

    >>> _first_ranks({0: 1, 1: 2, 2: 2, 3: 5}, {0: False, 1: True, 2: False, 3: True})
    [0, 1, 2]
    """
    possible_gpus: list[int] = []
    for rank in sorted(set(order.values())):
        gpus_of_rank = [gpu for gpu, gpu_rank in order.items() if gpu_rank == rank]
        possible_gpus += gpus_of_rank
        if any(open_to_host[gpu] for gpu in gpus_of_rank):
            break
    return possible_gpus


@dataclass(frozen=True, slots=True)
class MoveSequence:
    """Possible moves from the first state on, and the state that they lead to."""

    cluster_state: ClusterState
    vm_moves: tuple[VmMove, ...] = ()
    overcounted: bool = False
    """More may be free than is counted: a VM counts on several GPUs although it is on one of them, or could be bound to
    a GPU that is ambiguous."""

    @property
    def worth(self) -> int:
        return sum(host_now.worth for host_now in self.cluster_state)

    @property
    def moves(self) -> int:
        return len(self.vm_moves)

    @property
    def bound(self) -> int:
        """Return how many of the moves bind their VM to its GPUs."""
        return sum(bool(vm_move.gpus) for vm_move in self.vm_moves)


Frontier = tuple[MoveSequence, ...]
"""The sequences that matter: each has more moves and frees more than the one before. The first has none."""


def make_frontier(sequences: Sequence[MoveSequence]) -> Frontier:
    """Return the best of these sequences for each number of moves; of equal ones the one that binds the fewest VMs.
    Sequences of (moves, worth) (0, 1), (2, 1), (3, 4) and (5, 3) leave (0, 1) and (3, 4)."""
    frontier: list[MoveSequence] = []
    for sequence in sorted(sequences, key=lambda sequence: (sequence.moves, -sequence.worth, sequence.bound)):
        if not frontier or sequence.worth > frontier[-1].worth:
            frontier.append(sequence)
    return tuple(frontier)


def apply_move(model: ClusterModel, cluster_state: ClusterState, vm_move: VmMove) -> ClusterState | None:
    """Return the state after the move; None = the move is not certainly possible."""
    search_vm = model.search_vms[vm_move.search_vm]
    source = host_of(cluster_state, search_vm)
    if source is None or source.number == vm_move.to or vm_move.to not in search_vm.allowed:
        return None
    arrival = arrival_of(model, cluster_state[vm_move.to], vm_move)
    if arrival is None:
        return None
    source_after = remove_vm(model, source, search_vm)
    return None if source_after is None else with_host(with_host(cluster_state, source_after), arrival.host_after)


def replay(model: ClusterModel, cluster_state: ClusterState, vm_moves: Sequence[VmMove]) -> MoveSequence | None:
    """Return the sequence of these moves; None = one of them cannot be made."""
    after: ClusterState | None = cluster_state
    for vm_move in vm_moves:
        after = apply_move(model, after, vm_move) if after is not None else None
    return None if after is None else MoveSequence(after, tuple(vm_moves))


def one_move_further(
    model: ClusterModel, sequences: Iterable[MoveSequence], *, binding: bool = False
) -> Iterator[MoveSequence]:
    """Yield these sequences extended by every distinct move; with `binding`, also by moves that bind the VM to GPUs."""
    for sequence in sequences:
        for source in distinct_hosts(sequence.cluster_state):
            for search_vm in distinct_movable_vms(model, source):
                source_after = remove_vm(model, source, search_vm)
                if source_after is None:
                    continue
                for target in distinct_hosts(sequence.cluster_state, without=source):
                    if target.number not in search_vm.allowed:
                        continue
                    # no VM is bound to an ambiguous GPU here, although it could be: that might take fewer moves
                    is_binding_left_out = binding and search_vm.bindable and bool(target.ambiguous_gpus)
                    for gpus, arrival in arrivals(model, target, search_vm, binding=binding):
                        cluster_state = with_host(with_host(sequence.cluster_state, source_after), arrival.host_after)
                        vm_moves = (*sequence.vm_moves, VmMove(search_vm.number, target.number, gpus))
                        overcounted = sequence.overcounted or is_binding_left_out or arrival.basis is ArrivalBasis.ANY
                        yield MoveSequence(cluster_state, vm_moves, overcounted)


def arrivals(
    model: ClusterModel, host_now: HostContents, search_vm: SearchVm, *, binding: bool
) -> Iterator[tuple[tuple[int, ...], Arrival]]:
    """Yield (GPUs that the VM is bound to, arrival) for each way to the host; () = the host chooses the GPUs."""
    chosen = add_vm(model, host_now, search_vm)
    if chosen is not None:
        yield (), chosen
    if binding:
        yield from bound_arrivals(model, host_now, search_vm)


def host_of(cluster_state: ClusterState, search_vm: SearchVm) -> HostContents | None:
    """Return the host that the VM is on now."""
    for host_now in cluster_state:
        if any(vgpu.vm == search_vm.number for content in host_now.contents for vgpu in content):
            return host_now
    return None


def distinct_movable_vms(model: ClusterModel, host_now: HostContents) -> Iterator[SearchVm]:
    """Yield the VMs of the host that may move, one of each kind on GPUs that are alike."""
    yielded_kinds = set()
    for gpu, content in enumerate(host_now.contents):
        for number in dict.fromkeys(vgpu.vm for vgpu in content):
            search_vm = model.search_vms[number]
            kind = (search_vm.kind, model.kind_of_gpu(host_now.number, gpu, content))
            if search_vm.movable and number not in host_now.fixed_vms and kind not in yielded_kinds:
                yielded_kinds.add(kind)
                yield search_vm


def distinct_hosts(cluster_state: ClusterState, without: HostContents | None = None) -> Iterator[HostContents]:
    """Yield the hosts, one of each set that is alike."""
    yielded_keys = set()
    for host_now in cluster_state:
        if host_now is not without and host_now.key not in yielded_keys:
            yielded_keys.add(host_now.key)
            yield host_now
