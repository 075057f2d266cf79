"""Decides which ML VMs of the queue start tonight, where, in which stages, and which desktops make room.

`night.py` calls `decide_queue`.

Within each priority, the proposals for the complete queue are tried first (`proposals.py`). Each is judged by the exact
placement rules on the snapshot after the starts before it; desktops that are not needed keep running. VMs without a
proposal, or with a refused one, are tried next in the order of the queue: as few desktops as possible make room, GPU by
GPU, first GPUs that can be cleared completely. A bad proposal therefore costs GPU-hours, but never breaks a rule.

Suspends and starts of one host are grouped into stages, so that each VM finds the room that was planned for it.

A host puts a VM on the GPU that its own rule prefers at that moment, not on the one that the plan assumed. If all
desktops of a host are suspended before the first VM starts there, more GPUs are free than when the starts were planned
one after the other: VMs that should share a GPU are spread over two, and a VM that needs a complete GPU finds none.

A stage is therefore tried in the order of the host: first all suspends, then one start after the other. A start joins
the stage only if all VMs of it still find room. Otherwise it begins a new stage after the one before has ended, with
exactly the GPUs by which it was judged. Most nights have one stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOnVm, RelocateVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room, reduced_to_host
from gpuops.plan.placement.suspended_vms import size_mib, suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import HoldBackCheck, Start, WaitingVm, hold_back_none, hosts_for, is_bound
from gpuops.plan.rotation.ml_queue.proposals import Proposal

Stage = tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class HostStages:
    """The stages of one host."""

    before: Inventory
    """The host and its VMs when the last stage begins."""
    stages: tuple[Stage, ...]
    after: Inventory
    """The host and its VMs after the last stage."""

    @classmethod
    def of(cls, start: Start, world: Inventory) -> HostStages:
        """Return no stages yet for the host of this start."""
        host_alone = reduced_to_host(start.host, world)
        return cls(host_alone, (), host_alone)

    def with_start(self, start: Start, position: Mapping[str, int], room: Room) -> HostStages:
        """Return the stages with one more start, in the last stage if all VMs of that stage still find room.

        `position`: VM ref -> its position in the queue.
        """
        if self.stages:
            # Try the order of the queue, then the largest VM first, since it needs a completely free GPU.
            before = self.before.with_vm(start.vm)
            in_order = sorted((*self.stages[-1], start), key=lambda staged: position[staged.vm.ref])
            largest_first = sorted(in_order, key=lambda staged: -size_mib(staged.vm, room.catalog))
            for stage in (tuple(in_order), tuple(largest_first)):
                after = _try_stage(stage, before, room)
                if after is not None:
                    return HostStages(before, (*self.stages[:-1], stage), after)
        # Otherwise it starts in a new stage, after all VMs of the earlier stages.
        before = self.after.with_vm(start.vm)
        after = _suspend_and_move((start,), before)
        after = project(PowerOnVm(start.vm.ref, start.host.ref), after, room.catalog)
        return HostStages(before, (*self.stages, (start,)), after)


def merge_stages(hosts: Mapping[str, HostStages], position: Mapping[str, int]) -> tuple[Stage, ...]:
    """Return the stages of all hosts in parallel, each in the order of the queue as far as its hosts allow.

    Example: the queue is a, b, c. Host 1 has the stage (c, a), in this order because c is larger; host 2 has (b). The
    places of host 1 in the order of the queue are the first and the last: the common stage is c, b, a.
    """
    stages: list[Stage] = []
    for index in range(max((len(host.stages) for host in hosts.values()), default=0)):
        stages_of_hosts = [host.stages[index] for host in hosts.values() if index < len(host.stages)]
        next_start = {stage[0].host.ref: iter(stage) for stage in stages_of_hosts}
        in_queue_order = sorted(chain.from_iterable(stages_of_hosts), key=lambda start: position[start.vm.ref])
        # The place of each start in the order of the queue goes to the next start of the stage of its host.
        stages.append(tuple(next(next_start[start.host.ref]) for start in in_queue_order))
    return tuple(stages)


def _try_stage(stage: Stage, world: Inventory, room: Room) -> Inventory | None:
    """Return the host after this stage; None = one of its VMs would find no room."""
    world = _suspend_and_move(stage, world)
    for start in stage:
        vm = world.vm(start.vm.ref)
        if room.refusals(vm, world.hosts[start.host.ref], world):
            return None
        world = project(PowerOnVm(vm.ref, start.host.ref), world, room.catalog)
    return world


def _suspend_and_move(stage: Stage, world: Inventory) -> Inventory:
    """Return the host after the desktops of a stage are suspended and its VMs have moved there."""
    world = _after_suspends((desktop for start in stage for desktop in start.desktops), world)
    for start in stage:
        if start.moves:
            world = project(RelocateVm(start.vm.ref, start.host.ref), world)
    return world


_BELOW_ALL: Final = -(10**6)
"""Lower than any priority."""

Cost = tuple[int, int]
"""(highest priority, number) of the desktops that make room."""


def cost(desktops: Sequence[Vm], priority: Mapping[str, int]) -> Cost:
    """Return the cost of suspending these: one of a higher priority costs more than any number of lower ones."""
    return max((priority.get(vm.ref, 0) for vm in desktops), default=_BELOW_ALL), len(desktops)


def make_room(
    vm: Vm,
    host: Host,
    free_to_take: Sequence[Vm],
    world: Inventory,
    room: Room,
    priority: Mapping[str, int],
    best: Cost | None,
    proposed_gpus: Collection[PciAddress] = (),
) -> tuple[tuple[Vm, ...] | None, tuple[Rejection, ...]]:
    """Return the desktops of this host that must make room; None with the reasons if all of them are not enough.

    None without a reason: the cost would not be lower than the `best` so far. `proposed_gpus` are cleared first.

    Example: a VM needs a complete GPU. Two desktops are on GPU A, one is on GPU B, and GPU B has another VM that stays.
    The groups are A, then B. After A is cleared the VM fits, so the two desktops of A are returned.
    """
    on_host = [desktop for desktop in free_to_take if desktop.host == host.ref]
    world = reduced_to_host(host, world, vm)
    groups = _group_by_gpu(host, on_host, priority, proposed_gpus)
    # The VM may fit without suspending a desktop. If not, and each group alone costs at least as much as the best start
    # so far, this host cannot be better.
    refusals = room.refusals(vm, host, world)
    if refusals and best is not None and all(cost(group, priority) >= best for group in groups):
        return None, ()
    # Clear one group after the other until the VM fits.
    cleared: list[tuple[Vm, ...]] = []
    after = world
    for group in groups:
        if not refusals:
            break
        cleared.append(group)
        after = _after_suspends(group, after)
        refusals = room.refusals(vm, after.hosts[host.ref], after)
    if refusals:
        return None, refusals
    # Then put back each cleared group and keep it running if the VM still fits: only one GPU, one slot or the memory of
    # the host may have been missing.
    needed = cleared
    for group in cleared:
        fewer = [needed_group for needed_group in needed if needed_group is not group]
        if fewer == cleared[:-1]:
            continue  # without the last group the VM did not fit
        after = _after_suspends(chain.from_iterable(fewer), world)
        if not room.refusals(vm, after.hosts[host.ref], after):
            needed = fewer
    return tuple(chain.from_iterable(needed)), ()


def _after_suspends(desktops: Iterable[Vm], world: Inventory) -> Inventory:
    """Return the snapshot after these desktops are suspended or shut down."""
    for desktop in desktops:
        world = project(suspend_or_shut_down(desktop), world)
    return world


def _group_by_gpu(
    host: Host, desktops: Sequence[Vm], priority: Mapping[str, int], proposed_gpus: Collection[PciAddress]
) -> list[tuple[Vm, ...]]:
    """Return the desktops grouped by GPU: proposed GPUs first, then the lowest priority, then GPUs that can be cleared
    completely, then GPUs with fewer desktops.

    A desktop whose GPU cannot be read forms its own group.
    """
    ungrouped = {desktop.ref: desktop for desktop in desktops}
    # Whether the GPU is not proposed, whether other VMs stay on it, its desktops.
    groups: list[tuple[bool, bool, tuple[Vm, ...]]] = []
    for gpu in host.gpus:
        on_gpu = [ungrouped.pop(ref) for ref in gpu.vms or () if ref in ungrouped]
        if on_gpu:
            groups.append((gpu.address not in proposed_gpus, len(on_gpu) < len(set(gpu.vms or ())), tuple(on_gpu)))
    groups += [(True, True, (desktop,)) for desktop in ungrouped.values()]

    def sort_key(candidate: tuple[bool, bool, tuple[Vm, ...]]) -> tuple[bool, int, bool, int, str]:
        is_not_proposed, is_shared, group = candidate
        return is_not_proposed, max(priority.get(vm.ref, 0) for vm in group), is_shared, len(group), group[0].name

    return [group for *_, group in sorted(groups, key=sort_key)]


ReturnCheck = Callable[[Sequence[Vm]], tuple[Rejection, ...]]
"""A function that returns why these desktops, all suspended, could not return in the morning; empty = they can."""

Objection = Callable[[Sequence[Start]], str]
"""A function that returns the limit that the last of these starts would exceed; empty = all are allowed."""


def no_objection(starts: Sequence[Start]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """Which VMs of the queue start, and why the others do not."""

    stages: tuple[Stage, ...]
    """The starts by stage: a host begins a stage after the one before has ended."""
    choices: tuple[Choice, ...]
    """One line per VM of the queue."""
    unknown: tuple[str, ...] = ()
    """Why entries of the queue select no VM: no VM has the name, or several have it."""

    @property
    def starts(self) -> tuple[Start, ...]:
        return tuple(chain.from_iterable(self.stages))

    @property
    def desktops(self) -> tuple[Vm, ...]:
        return tuple(vm for start in self.starts for vm in start.desktops)


def decide_queue(
    queue: Iterable[WaitingVm],
    free_to_take: Sequence[Vm],
    inventory: Inventory,
    room: Room,
    return_check: ReturnCheck,
    *,
    objection: Objection = no_objection,
    priority: Mapping[str, int] | None = None,
    proposals: Mapping[str, Proposal] | None = None,
    held_back: HoldBackCheck = hold_back_none,
) -> QueueDecision:
    """Return which VMs of the queue start, and which desktops make room for each.

    `priority` of desktops, by ref: the lowest make room first. `proposals` by VM ref: each is followed if the exact
    rules allow it; a VM without a proposal, or with a refused one, starts where it costs the fewest desktops.
    `return_check` and `objection` return why a start is not allowed: its desktops could not return, or it exceeds
    a limit of the night.
    """
    queue = tuple(queue)
    position = {waiting.vm.ref: index for index, waiting in enumerate(queue) if waiting.vm is not None}
    state = _QueueState(inventory, list(free_to_take), room, return_check, objection, priority or {}, position)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    choices: dict[int, Choice] = {}
    for index, proposal in _attempts(queue, proposals or {}):
        if index in choices:  # it has started by its proposal
            continue
        waiting, start = queue[index], None
        vm, queued, reason = waiting.vm, waiting.queued, waiting.reason
        if not reason and queued.count is not None and running[queued] >= queued.count:
            reason = f"count: {queued.count} of {queued.label} run, which is the limit"
        if vm is not None and not reason:
            reason = held_back([earlier.vm for earlier in state.starts], vm)
        if vm is not None and not reason:
            start, reason = state.start(vm, queued, proposal)
            reason = f"{reason}; {waiting.note}" if reason and waiting.note else reason
        if start is not None:
            running[queued] += 1
            choices[index] = Choice(waiting.name, chosen=True, reason=start.because)
        elif proposal is None:  # after a refused proposal it is tried again without one
            choices[index] = Choice(waiting.name, chosen=False, reason=reason)
    unknown = tuple(waiting.reason for waiting in queue if waiting.vm is None)
    in_queue_order = tuple(choices[index] for index in range(len(queue)))
    return QueueDecision(merge_stages(state.hosts, position), in_queue_order, unknown)


def _attempts(queue: Sequence[WaitingVm], proposals: Mapping[str, Proposal]) -> Iterator[tuple[int, Proposal | None]]:
    """Yield the positions in the queue in the order in which they are tried, each with its proposal or None.

    All proposals of a priority come before its VMs without one, so that no GPU-hour of a higher priority is lost to a
    lower one, and no VM takes a GPU that was proposed for another VM of its priority. Ranks count like priorities.
    """
    for _, of_priority in groupby(
        range(len(queue)), key=lambda index: (queue[index].queued.priority, queue[index].rank)
    ):
        positions = list(of_priority)
        for index in positions:
            vm = queue[index].vm
            if vm is not None and vm.ref in proposals:
                yield index, proposals[vm.ref]
        yield from ((index, None) for index in positions)


@dataclass(slots=True)
class _QueueState:
    """The state while the queue is decided: the snapshot as it will be after the starts so far."""

    world: Inventory
    free_to_take: list[Vm]
    """Desktops that may be suspended and that no start has taken yet."""
    room: Room
    return_check: ReturnCheck
    objection: Objection
    priority: Mapping[str, int]
    position: Mapping[str, int]
    """VM ref -> its position in the queue."""
    starts: list[Start] = field(default_factory=list)
    hosts: dict[str, HostStages] = field(default_factory=dict)

    def start(self, vm: Vm, queued: QueuedVm, proposal: Proposal | None) -> tuple[Start | None, str]:
        """Return the start as proposed, or the one with the lowest cost; None with all reasons if no start is possible.

        If two have the same cost, the VM's present host comes first.
        """
        objections: list[str] = []
        refusals: list[str] = []
        # Try only the hosts that may be the cheapest first: computing all costs takes long in a large fleet. If a limit
        # of the night forbids these, try all hosts.
        for all_hosts in (False, True):
            candidates, refusals = self._candidates(vm, queued, proposal, all_hosts=all_hosts)
            objections = []
            for start in sorted(candidates, key=self._cost):
                objection = self._objection_to(start)
                if not objection:
                    self._accept(start)
                    return start, ""
                objections.append(objection)
            if not candidates:
                break
        if refusals:
            objections.insert(0, f"does not fit: {'; '.join(refusals)}")
        return None, "; ".join(dict.fromkeys(objections))

    def _candidates(
        self, vm: Vm, queued: QueuedVm, proposal: Proposal | None, *, all_hosts: bool
    ) -> tuple[list[Start], list[str]]:
        """Return the possible starts, and a reason for each other host. A proposal names one host only.

        Unless `all_hosts` is set, hosts that cost at least as much as the best so far are left out.
        """
        candidates: list[Start] = []
        reasons: list[str] = []
        hosts = hosts_for(vm, queued, self.world)
        if proposal is not None:
            hosts = [host for host in hosts if host.ref == proposal.host]
        proposed_gpus = proposal.gpus if proposal is not None else ()
        for host in hosts:
            best = None if all_hosts else min(map(self._cost, candidates), default=None)
            desktops, refusals = make_room(
                vm, host, self.free_to_take, self.world, self.room, self.priority, best, proposed_gpus
            )
            if desktops is None:
                reasons += [str(refusal) for refusal in refusals[:1]]
                continue
            candidates.append(Start(vm, queued, host, desktops))
            if not desktops and not self._objection_to(candidates[-1]):
                break  # nothing costs less than no desktop
        if not candidates and queued.relocate and is_bound(vm):
            reasons.append("it is bound to a GPU or a NUMA node of its host, so a night does not move it")
        return candidates, reasons if candidates or reasons else ["there is no host on which it may run"]

    def _cost(self, start: Start) -> Cost:
        return cost(start.desktops, self.priority)

    def _objection_to(self, start: Start) -> str:
        """Return the limit that the start would exceed, or why its desktops could not return; empty = it is allowed."""
        limit = self.objection([*self.starts, start])
        if limit or not start.desktops:  # the desktops of earlier starts were checked when these were accepted
            return limit
        taken_before = [
            desktop for earlier in self.starts for desktop in earlier.desktops if desktop.host == start.host.ref
        ]
        stranded = self.return_check([*taken_before, *start.desktops])
        return (
            f"its desktops could not come back: {'; '.join(str(refusal) for refusal in stranded)}" if stranded else ""
        )

    def _accept(self, start: Start) -> None:
        """Add the start, and update the snapshot to the state after the last stage of its host."""
        self.starts.append(start)
        self.free_to_take = [desktop for desktop in self.free_to_take if desktop not in start.desktops]
        host = start.host.ref
        stages = self.hosts.get(host) or HostStages.of(start, self.world)
        stages = stages.with_start(start, self.position, self.room)
        self.hosts[host] = stages
        # Take over the host and its VMs after the last stage, whose order may have changed.
        world, after = self.world, stages.after
        for vm in (*start.desktops, *(staged.vm for staged in stages.stages[-1])):
            world = world.with_vm(after.vm(vm.ref))
        self.world = world.with_hosts([after.hosts[host]])
