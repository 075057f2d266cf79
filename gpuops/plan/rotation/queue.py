"""Rotation, the queue: which ML VMs start tonight, where, and which desktops make room for them.

The queue is served in the order that it comes in. For each VM as few desktops as possible give way: GPU by GPU, first
those that can be cleared whole. Every decision is made on the snapshot as it will be after the ones before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import QueuedVm
from gpuops.model.vm import Vm
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.placement.wanted import pins_of
from gpuops.plan.plan import Choice, Rejection
from gpuops.plan.project import project
from gpuops.plan.rotation.room import Room, around
from gpuops.plan.rotation.start import Start
from gpuops.plan.rotation.taking import taking
from gpuops.plan.rotation.waiting import Waiting
from gpuops.plan.steps import PowerOnVm, RelocateVm

_NONE_AT_ALL: Final = -(10**6)
"""Less than any priority."""

Returns = Callable[[Sequence[Vm]], tuple[Rejection, ...]]
"""Every reason why these desktops, all suspended, could not come back in the morning; empty = they can."""


Objection = Callable[[Sequence[Start]], str]
"""What the last of these starts would break; empty = all of them may be."""


def no_objection(starts: Sequence[Start]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Served:
    """What the queue comes to."""

    starts: tuple[Start, ...]
    choices: tuple[Choice, ...]
    """One line per VM of the queue; those of the starts in their order."""
    unknown: tuple[str, ...] = ()
    """Why entries of the queue mean no VM: a name that nobody has, or that several have."""

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
) -> Served:
    """Which VMs of the queue start, each with the fewest desktops that make room for it.

    `priority` of desktops, by ref: those with the lowest give way first.
    """
    queue = tuple(queue)
    turn = _Turn(inventory, list(free_to_take), room, may_return, objection, priority or {})
    choices: list[Choice] = []
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    for waiting in queue:
        reason = waiting.reason or _enough(waiting.queued, running)
        if waiting.vm is not None and not reason:
            start, reason = turn.start(waiting.vm, waiting.queued)
            running[waiting.queued] += start is not None
            choices.append(Choice(waiting.name, chosen=start is not None, reason=_why(start) if start else reason))
        else:
            choices.append(Choice(waiting.name, chosen=False, reason=reason))
    unknown = tuple(waiting.reason for waiting in queue if waiting.vm is None)
    return Served(tuple(turn.starts), tuple(choices), unknown)


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
    starts: list[Start] = field(default_factory=list)

    def start(self, vm: Vm, queued: QueuedVm) -> tuple[Start | None, str]:
        """The start that costs the fewest desktops, of the lowest priority; the VM's own host wins a tie."""
        candidates, refusals = self._candidates(vm, queued)
        objections: list[str] = []
        for start in sorted(candidates, key=self._cost):
            said = self._spoken_against(start)
            if not said:
                self._accept(start)
                return start, ""
            objections.append(said)
        if refusals:
            objections.insert(0, f"does not fit: {'; '.join(refusals)}")
        return None, "; ".join(dict.fromkeys(objections))

    def _candidates(self, vm: Vm, queued: QueuedVm) -> tuple[list[Start], list[str]]:
        """Where there is room, or would be; and a reason for each other host."""
        found: list[Start] = []
        reasons: list[str] = []
        for host in _hosts(vm, queued, self.world):
            desktops, refusals = _make_room(vm, host, self.left, self.world, self.room, self.priority)
            if desktops is None:
                reasons += [str(refusal) for refusal in refusals[:1]]
                continue
            found.append(Start(vm, queued, host, desktops))
            if not desktops and not self._spoken_against(found[-1]):
                break
        if not found and queued.relocate and _bound(vm):
            reasons.append("it is bound to a GPU or a NUMA node of its host, so a night does not move it")
        return found, reasons if found or reasons else ["no host it may run on"]

    def _cost(self, start: Start) -> tuple[int, int]:
        highest = max((self.priority.get(vm.ref, 0) for vm in start.desktops), default=_NONE_AT_ALL)
        return highest, len(start.desktops)

    def _spoken_against(self, start: Start) -> str:
        said = self.objection([*self.starts, start])
        if said:
            return said
        before = [desktop for other in self.starts for desktop in other.desktops if desktop.host == start.host.ref]
        stranded = self.may_return([*before, *start.desktops])
        return f"its desktops could not come back: {'; '.join(str(each) for each in stranded)}" if stranded else ""

    def _accept(self, start: Start) -> None:
        self.starts.append(start)
        self.left = [desktop for desktop in self.left if desktop not in start.desktops]
        for desktop in start.desktops:
            self.world = project(taking(desktop), self.world)
        if start.moves:
            self.world = project(RelocateVm(start.vm.ref, start.host.ref), self.world)
        self.world = project(PowerOnVm(start.vm.ref, start.host.ref), self.world, self.room.catalog)


def _hosts(vm: Vm, queued: QueuedVm, world: Inventory) -> list[Host]:
    own = world.host_of(vm)
    # A pin is an address of its own host, a node a number there: a bare move would leave both meaning something else.
    may_move = queued.relocate and not _bound(vm)
    others = [host for host in world.hosts.values() if host is not own and host.gpus] if may_move else []
    usable = [own, *sorted(others, key=lambda host: host.name)] if own else others
    return [host for host in usable if host.connected is True and host.in_maintenance is False]


def _bound(vm: Vm) -> bool:
    """Whether the VM's configuration names a GPU or a NUMA node of the host it is on."""
    return bool(pins_of(vm) or (vm.extra_config or {}).get(AFFINITY_KEY))


def _make_room(
    vm: Vm, host: Host, left: Sequence[Vm], world: Inventory, room: Room, priority: Mapping[str, int]
) -> tuple[tuple[Vm, ...] | None, tuple[Rejection, ...]]:
    """The desktops of this host that must give way; None with every reason when not even all of them are enough."""
    there = [desktop for desktop in left if desktop.host == host.ref]
    world = around(host, world, vm)
    groups = _groups(host, there, priority)
    taken: list[tuple[Vm, ...]] = []
    refusals = room.refusals(vm, host, world)
    for group in groups:
        if not refusals:
            break
        taken.append(group)
        refusals = _refusals(vm, host, taken, world, room)
    if refusals:
        return None, refusals
    for group in tuple(taken):
        fewer = [other for other in taken if other is not group]
        if not _refusals(vm, host, fewer, world, room):
            taken = fewer
    return tuple(desktop for group in taken for desktop in group), ()


def _refusals(
    vm: Vm, host: Host, groups: Sequence[tuple[Vm, ...]], world: Inventory, room: Room
) -> tuple[Rejection, ...]:
    for group in groups:
        for desktop in group:
            world = project(taking(desktop), world)
    return room.refusals(vm, world.hosts[host.ref], world)


def _groups(host: Host, desktops: Sequence[Vm], priority: Mapping[str, int]) -> list[tuple[Vm, ...]]:
    """The desktops by the GPU they are on: the lowest priority first, then GPUs that can be cleared whole, then those
    with fewer desktops.

    A desktop whose GPU the host does not tell is a group of its own.
    """
    by_ref = {desktop.ref: desktop for desktop in desktops}
    groups: list[tuple[bool, tuple[Vm, ...]]] = []
    for gpu in host.gpus:
        on_it = [by_ref.pop(ref) for ref in gpu.vms or () if ref in by_ref]
        if on_it:
            groups.append((len(on_it) < len(set(gpu.vms or ())), tuple(on_it)))
    groups += [(True, (desktop,)) for desktop in by_ref.values()]

    def order(item: tuple[bool, tuple[Vm, ...]]) -> tuple[int, bool, int, str]:
        shared, group = item
        return max(priority.get(vm.ref, 0) for vm in group), shared, len(group), group[0].name

    return [group for _, group in sorted(groups, key=order)]


def _why(start: Start) -> str:
    made = f"{len(start.desktops)} desktop(s) make room" if start.desktops else "there is room without any desktop"
    return f"starts on {start.host.name}: {made}" + (", after a cold move" if start.moves else "")
