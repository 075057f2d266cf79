"""Rotation, the queue: which ML VMs start tonight, where, and which desktops make room for them.

Priority by priority, proposals for the whole queue come first (`proposal.py`); each is judged by the exact rules on the
snapshot as it will be after the starts before it, and desktops that are not needed stay. A VM without a proposal, or
whose proposal is refused, is served then, in the order of the queue: as few desktops as possible give way, GPU by GPU,
first those that can be cleared whole. So a proposal can be wrong in one way only: by being worse than another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import QueuedVm
from gpuops.model.vm import Vm
from gpuops.plan.core.plan import Choice, Rejection
from gpuops.plan.placement.room import Room
from gpuops.plan.rotation.giving_way import Cost, cost, make_room
from gpuops.plan.rotation.proposal import Proposal
from gpuops.plan.rotation.stages import HostStages, Stage, by_stage
from gpuops.plan.rotation.start import Start
from gpuops.plan.rotation.waiting import Waiting
from gpuops.plan.rotation.whereto import bound, hosts_for

Returns = Callable[[Sequence[Vm]], tuple[Rejection, ...]]
"""Every reason why these desktops, all suspended, could not come back in the morning; empty = they can."""


Objection = Callable[[Sequence[Start]], str]
"""What the last of these starts would break; empty = all of them may be."""


def no_objection(starts: Sequence[Start]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Served:
    """What the queue comes to."""

    stages: tuple[Stage, ...]
    """The starts, those of one stage together: a host begins the next when the one before has ended."""
    choices: tuple[Choice, ...]
    """One line per VM of the queue."""
    unknown: tuple[str, ...] = ()
    """Why entries of the queue mean no VM: a name that nobody has, or that several have."""

    @property
    def starts(self) -> tuple[Start, ...]:
        return tuple(chain.from_iterable(self.stages))

    @property
    def desktops(self) -> tuple[Vm, ...]:
        return tuple(vm for start in self.starts for vm in start.desktops)


def serve(
    queue: Iterable[Waiting],
    free_to_take: Sequence[Vm],
    inventory: Inventory,
    room: Room,
    may_return: Returns,
    *,
    objection: Objection = no_objection,
    priority: Mapping[str, int] | None = None,
    proposals: Mapping[str, Proposal] | None = None,
) -> Served:
    """Which VMs of the queue start, and which desktops make room for each.

    `priority` of desktops, by ref: those with the lowest give way first. `proposals` by VM: each is taken as far as the
    exact rules allow; a VM without one, or whose proposal they refuse, then starts where it costs the fewest desktops.
    """
    queue = tuple(queue)
    place = {waiting.vm.ref: at for at, waiting in enumerate(queue) if waiting.vm is not None}
    turn = _Turn(inventory, list(free_to_take), room, may_return, objection, priority or {}, place)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    said: dict[int, Choice] = {}
    for at, proposal in _in_turn(queue, proposals or {}):
        waiting = queue[at]
        reason = waiting.reason or _enough(waiting.queued, running)
        start = None
        if at in said:
            continue
        if waiting.vm is not None and not reason:
            start, reason = turn.start(waiting.vm, waiting.queued, proposal)
        if start is not None or proposal is None:
            running[waiting.queued] += start is not None
            said[at] = Choice(waiting.name, chosen=start is not None, reason=_why(start) if start else reason)
    unknown = tuple(waiting.reason for waiting in queue if waiting.vm is None)
    return Served(by_stage(turn.hosts, place), tuple(said[at] for at in range(len(queue))), unknown)


def _in_turn(queue: Sequence[Waiting], proposals: Mapping[str, Proposal]) -> Iterator[tuple[int, Proposal | None]]:
    """Every VM by its place in the queue, priority by priority: as was proposed first, then once more by the rule."""
    for _, of_one in groupby(range(len(queue)), key=lambda at: queue[at].queued.priority):
        places = list(of_one)
        for at in places:
            vm = queue[at].vm
            if vm is not None and vm.ref in proposals:
                yield at, proposals[vm.ref]
        yield from ((at, None) for at in places)


def _enough(queued: QueuedVm, running: Counter[QueuedVm]) -> str:
    if queued.count is None or running[queued] < queued.count:
        return ""
    return f"count: {queued.count} of {queued.label} run"


@dataclass(slots=True)
class _Turn:
    """The queue while it is served: the world as it will be after the starts so far."""

    world: Inventory
    left: list[Vm]
    room: Room
    may_return: Returns
    objection: Objection
    priority: Mapping[str, int]
    place: Mapping[str, int]
    starts: list[Start] = field(default_factory=list)
    hosts: dict[str, HostStages] = field(default_factory=dict)

    def start(self, vm: Vm, queued: QueuedVm, proposal: Proposal | None) -> tuple[Start | None, str]:
        """The start that was proposed; or the one that costs the fewest desktops, of the lowest priority.

        Of two that cost the same the VM's own host wins.
        """
        objections: list[str] = []
        refusals: list[str] = []
        for every in (False, True):  # where the cheapest hears an objection, the dearer ones are worth a look
            candidates, refusals = self._candidates(vm, queued, proposal, every=every)
            objections = []
            for start in sorted(candidates, key=self._cost):
                said = self._spoken_against(start)
                if not said:
                    self._accept(start)
                    return start, ""
                objections.append(said)
            if not candidates:
                break
        if refusals:
            objections.insert(0, f"does not fit: {'; '.join(refusals)}")
        return None, "; ".join(dict.fromkeys(objections))

    def _candidates(
        self, vm: Vm, queued: QueuedVm, proposal: Proposal | None, *, every: bool
    ) -> tuple[list[Start], list[str]]:
        """Where there is room, or would be; and a reason for each other host. A proposal knows but one host.

        Not `every` host: those that would surely cost more than the best so far are passed over.
        """
        found: list[Start] = []
        reasons: list[str] = []
        hosts = hosts_for(vm, queued, self.world)
        if proposal is not None:
            hosts = [host for host in hosts if host.ref == proposal.host]
        first = proposal.gpus if proposal is not None else ()
        for host in hosts:
            best = None if every else min(map(self._cost, found), default=None)
            desktops, refusals = make_room(vm, host, self.left, self.world, self.room, self.priority, best, first)
            if desktops is None:
                reasons += [str(refusal) for refusal in refusals[:1]]
                continue
            found.append(Start(vm, queued, host, desktops))
            if not desktops and not self._spoken_against(found[-1]):
                break
        if not found and queued.relocate and bound(vm):
            reasons.append("it is bound to a GPU or a NUMA node of its host, so a night does not move it")
        return found, reasons if found or reasons else ["no host it may run on"]

    def _cost(self, start: Start) -> Cost:
        return cost(start.desktops, self.priority)

    def _spoken_against(self, start: Start) -> str:
        said = self.objection([*self.starts, start])
        if said or not start.desktops:  # of those before it, it was asked when they were accepted
            return said
        before = [desktop for other in self.starts for desktop in other.desktops if desktop.host == start.host.ref]
        stranded = self.may_return([*before, *start.desktops])
        return f"its desktops could not come back: {'; '.join(str(each) for each in stranded)}" if stranded else ""

    def _accept(self, start: Start) -> None:
        self.starts.append(start)
        self.left = [desktop for desktop in self.left if desktop not in start.desktops]
        host = start.host.ref
        stages = self.hosts.get(host) or HostStages.of(start, self.world)
        self.hosts[host] = stages.joined_by(start, self.place, self.room)
        self.world = self._with(self.hosts[host], start)

    def _with(self, host: HostStages, start: Start) -> Inventory:
        """The world with what one host and its last stage come to."""
        world, after = self.world, host.after
        for vm in (*start.desktops, *(other.vm for other in host.stages[-1])):
            world = world.with_vm(after.vm(vm.ref))
        return world.with_hosts([after.hosts[start.host.ref]])


def _why(start: Start) -> str:
    made = f"{len(start.desktops)} desktop(s) make room" if start.desktops else "there is room without any desktop"
    return f"starts on {start.host.name}: {made}" + (", after a cold move" if start.moves else "")
