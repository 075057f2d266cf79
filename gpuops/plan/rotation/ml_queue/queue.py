"""Which ML VMs of the queue start tonight, on which hosts, and which desktops make room for each. `night.py` calls
`decide_queue`.

Priority by priority, the proposals for the whole queue come first (`proposals.py`). Each is judged by the exact rules
of placement on the snapshot as it will be after the starts before it; desktops that are not needed stay. A VM without a
proposal, or whose proposal is refused, comes next, in the order of the queue: as few desktops as possible make room,
GPU by GPU, first those that can be cleared whole. So a bad proposal costs GPU-hours, and never breaks a rule.
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
from gpuops.plan.core.plan import Choice, Rejection
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import suspend_or_shut_down
from gpuops.plan.placement.room import Room, around
from gpuops.plan.rotation.ml_queue.ml_vms import HeldBack, Start, WaitingVm, hosts_for, is_bound, nobody_held_back
from gpuops.plan.rotation.ml_queue.proposals import Proposal
from gpuops.plan.rotation.ml_queue.stages import HostStages, Stage, by_stage

_BELOW_ALL: Final = -(10**6)
"""Less than any priority."""

Cost = tuple[int, int]
"""(highest priority, number) of the desktops that make room."""


def cost(desktops: Sequence[Vm], priority: Mapping[str, int]) -> Cost:
    """What it costs to suspend these: one of a higher priority costs more than any number of lower ones."""
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
    """The desktops of this host that must make room; None with every reason when not even all of them are enough.

    None without a reason: it would cost no less than the `best` so far. `proposed_gpus` are cleared before others.

    Example: a VM needs a whole GPU. Two desktops are on GPU A, one is on GPU B, and GPU B has another VM that stays.
    The groups are A, then B. After A is cleared the VM fits, so the answer is the two desktops of A.
    """
    on_host = [desktop for desktop in free_to_take if desktop.host == host.ref]
    world = around(host, world, vm)
    groups = _groups(host, on_host, priority, proposed_gpus)
    # There may be room without any desktop. Where there is none, and each group alone costs no less than the best start
    # so far, this host cannot be better.
    refusals = room.refusals(vm, host, world)
    if refusals and best is not None and all(cost(group, priority) >= best for group in groups):
        return None, ()
    # Group after group is cleared until the VM fits.
    taken: list[tuple[Vm, ...]] = []
    after = world
    for group in groups:
        if not refusals:
            break
        taken.append(group)
        after = _taken(group, after)
        refusals = room.refusals(vm, after.hosts[host.ref], after)
    if refusals:
        return None, refusals
    # Then each group that was cleared on the way is put back, and stays where the VM still fits: what blocked it may
    # have been one GPU, one slot or the memory of the host.
    needed = taken
    for group in taken:
        fewer = [other for other in needed if other is not group]
        if fewer == taken[:-1]:
            continue  # without the last group the VM did not fit
        after = _taken(chain.from_iterable(fewer), world)
        if not room.refusals(vm, after.hosts[host.ref], after):
            needed = fewer
    return tuple(chain.from_iterable(needed)), ()


def _taken(desktops: Iterable[Vm], world: Inventory) -> Inventory:
    """The snapshot once these desktops are suspended."""
    for desktop in desktops:
        world = project(suspend_or_shut_down(desktop), world)
    return world


def _groups(
    host: Host, desktops: Sequence[Vm], priority: Mapping[str, int], proposed_gpus: Collection[PciAddress]
) -> list[tuple[Vm, ...]]:
    """The desktops by the GPU they are on: proposed GPUs first; then the lowest priority, then GPUs that can be cleared
    whole, then those with fewer desktops.

    A desktop whose GPU cannot be read is a group of its own.
    """
    by_ref = {desktop.ref: desktop for desktop in desktops}
    groups: list[tuple[bool, bool, tuple[Vm, ...]]] = []
    for gpu in host.gpus:
        on_it = [by_ref.pop(ref) for ref in gpu.vms or () if ref in by_ref]
        if on_it:
            groups.append((gpu.address not in proposed_gpus, len(on_it) < len(set(gpu.vms or ())), tuple(on_it)))
    groups += [(True, True, (desktop,)) for desktop in by_ref.values()]

    def order(item: tuple[bool, bool, tuple[Vm, ...]]) -> tuple[bool, int, bool, int, str]:
        other, shared, group = item
        return other, max(priority.get(vm.ref, 0) for vm in group), shared, len(group), group[0].name

    return [group for *_, group in sorted(groups, key=order)]


ReturnCheck = Callable[[Sequence[Vm]], tuple[Rejection, ...]]
"""Every reason why these desktops, all suspended, could not come back in the morning; empty = they can."""

Objection = Callable[[Sequence[Start]], str]
"""Which limit of the night the last of these starts would exceed; empty = all of them may be."""


def no_objection(starts: Sequence[Start]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """Which VMs of the queue start, and why the others do not."""

    stages: tuple[Stage, ...]
    """The starts, those of one stage together: a host begins the next when the one before has ended."""
    choices: tuple[Choice, ...]
    """One line per VM of the queue."""
    unknown: tuple[str, ...] = ()
    """Why entries of the queue mean no VM: a name that no VM has, or that several have."""

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
    may_return: ReturnCheck,
    *,
    objection: Objection = no_objection,
    priority: Mapping[str, int] | None = None,
    proposals: Mapping[str, Proposal] | None = None,
    held_back: HeldBack = nobody_held_back,
) -> QueueDecision:
    """Which VMs of the queue start, and which desktops make room for each.

    `priority` of desktops, by ref: those with the lowest make room first. `proposals` by VM ref: each is followed as
    far as the exact rules allow; a VM without one, or whose proposal they refuse, starts where it costs the fewest
    desktops.
    """
    queue = tuple(queue)
    position = {waiting.vm.ref: at for at, waiting in enumerate(queue) if waiting.vm is not None}
    state = _QueueState(inventory, list(free_to_take), room, may_return, objection, priority or {}, position)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    choices: dict[int, Choice] = {}
    for at, proposal in _attempts(queue, proposals or {}):
        waiting = queue[at]
        reason = waiting.reason or _count_reached(waiting.queued, running)
        start = None
        if at in choices:  # it has started as it was proposed
            continue
        if waiting.vm is not None and not reason:
            reason = held_back([each.vm for each in state.starts], waiting.vm)
        if waiting.vm is not None and not reason:
            start, reason = state.start(waiting.vm, waiting.queued, proposal)
            reason = f"{reason}; {waiting.note}" if reason and waiting.note else reason
        if start is not None or proposal is None:
            running[waiting.queued] += start is not None
            choices[at] = Choice(waiting.name, chosen=start is not None, reason=_reason_for(start) if start else reason)
    unknown = tuple(waiting.reason for waiting in queue if waiting.vm is None)
    return QueueDecision(by_stage(state.hosts, position), tuple(choices[at] for at in range(len(queue))), unknown)


def _attempts(queue: Sequence[WaitingVm], proposals: Mapping[str, Proposal]) -> Iterator[tuple[int, Proposal | None]]:
    """Which VM, by its position in the queue, is tried next, and with which proposal; None = without one.

    All proposals of a priority come before its VMs without one, so that no GPU-hour of a higher priority is lost to a
    lower one, and no VM takes a GPU that was proposed for another of its priority. The same of each rank in it.
    """
    for _, of_priority in groupby(range(len(queue)), key=lambda at: (queue[at].queued.priority, queue[at].rank)):
        positions = list(of_priority)
        for at in positions:
            vm = queue[at].vm
            if vm is not None and vm.ref in proposals:
                yield at, proposals[vm.ref]
        yield from ((at, None) for at in positions)


def _count_reached(queued: QueuedVm, running: Counter[QueuedVm]) -> str:
    """That as many VMs of the entry run as it asks for; empty = fewer do."""
    if queued.count is None or running[queued] < queued.count:
        return ""
    return f"count: {queued.count} of {queued.label} run"


@dataclass(slots=True)
class _QueueState:
    """The state while the queue is decided: the snapshot as it will be after the starts so far."""

    world: Inventory
    free_to_take: list[Vm]
    """Desktops that may be suspended and that no start has taken yet."""
    room: Room
    may_return: ReturnCheck
    objection: Objection
    priority: Mapping[str, int]
    position: Mapping[str, int]
    """VM ref -> its position in the queue."""
    starts: list[Start] = field(default_factory=list)
    hosts: dict[str, HostStages] = field(default_factory=dict)

    def start(self, vm: Vm, queued: QueuedVm, proposal: Proposal | None) -> tuple[Start | None, str]:
        """The start as proposed, or the one with the lowest cost; None with every reason where there is none.

        Of two with the same cost the VM's own host comes first.
        """
        objections: list[str] = []
        refusals: list[str] = []
        # First only the hosts that may be the cheapest: to know the cost of all takes long in a large fleet. Where a
        # limit of the night forbids these, all hosts are tried.
        for every in (False, True):
            candidates, refusals = self._candidates(vm, queued, proposal, every=every)
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
        self, vm: Vm, queued: QueuedVm, proposal: Proposal | None, *, every: bool
    ) -> tuple[list[Start], list[str]]:
        """The possible starts, and a reason for each other host; a proposal names one host alone.

        Where not `every` host is asked for, those that cost no less than the best so far are left out.
        """
        candidates: list[Start] = []
        reasons: list[str] = []
        hosts = hosts_for(vm, queued, self.world)
        if proposal is not None:
            hosts = [host for host in hosts if host.ref == proposal.host]
        proposed_gpus = proposal.gpus if proposal is not None else ()
        for host in hosts:
            best = None if every else min(map(self._cost, candidates), default=None)
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
        return candidates, reasons if candidates or reasons else ["no host it may run on"]

    def _cost(self, start: Start) -> Cost:
        return cost(start.desktops, self.priority)

    def _objection_to(self, start: Start) -> str:
        """Which limit the start would exceed, or why its desktops could not come back; empty = it may be."""
        limit = self.objection([*self.starts, start])
        if limit or not start.desktops:  # the desktops of earlier starts were checked when these were accepted
            return limit
        before = [desktop for other in self.starts for desktop in other.desktops if desktop.host == start.host.ref]
        stranded = self.may_return([*before, *start.desktops])
        return f"its desktops could not come back: {'; '.join(str(each) for each in stranded)}" if stranded else ""

    def _accept(self, start: Start) -> None:
        """Adds the start to those of the night."""
        self.starts.append(start)
        self.free_to_take = [desktop for desktop in self.free_to_take if desktop not in start.desktops]
        host = start.host.ref
        stages = self.hosts.get(host) or HostStages.of(start, self.world)
        self.hosts[host] = stages.joined_by(start, self.position, self.room)
        self.world = self._with(self.hosts[host], start)

    def _with(self, host: HostStages, start: Start) -> Inventory:
        """The snapshot with the host as it is after its last stage, which may have been put in another order."""
        world, after = self.world, host.after
        for vm in (*start.desktops, *(other.vm for other in host.stages[-1])):
            world = world.with_vm(after.vm(vm.ref))
        return world.with_hosts([after.hosts[start.host.ref]])


def _reason_for(start: Start) -> str:
    made = f"{len(start.desktops)} desktop(s) make room" if start.desktops else "there is room without any desktop"
    return f"starts on {start.host.name}: {made}" + (", after a cold move" if start.moves else "")
