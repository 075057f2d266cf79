"""Rotation, the queue: which ML VMs start tonight, where, and which desktops make room for them.

The queue is served in the order that it comes in. For each VM as few desktops as possible give way: GPU by GPU, first
those that can be cleared whole. Every decision is made on the snapshot as it will be after the ones before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import QueuedVm
from gpuops.model.vm import Vm
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.placement.wanted import pins_of
from gpuops.plan.plan import Choice, Rejection
from gpuops.plan.project import project
from gpuops.plan.rotation.room import Room, around
from gpuops.plan.rotation.waiting import Waiting
from gpuops.plan.steps import PowerOnVm, RelocateVm, SuspendVm

Returns = Callable[[Sequence[Vm]], tuple[Rejection, ...]]
"""Every reason why these desktops, all suspended, could not come back in the morning; empty = they can."""


@dataclass(frozen=True, slots=True)
class Start:
    """One ML VM that starts, and the desktops that make room for it."""

    vm: Vm
    host: Host
    desktops: tuple[Vm, ...]

    @property
    def moves(self) -> bool:
        return self.vm.host != self.host.ref


@dataclass(frozen=True, slots=True)
class Served:
    """What the queue comes to."""

    starts: tuple[Start, ...]
    choices: tuple[Choice, ...]
    """One line per VM of the queue."""
    unknown: tuple[str, ...] = ()
    """Why entries of the queue mean no VM: a name that nobody has, or that several have."""

    @property
    def desktops(self) -> tuple[Vm, ...]:
        return tuple(vm for start in self.starts for vm in start.desktops)


def serve(
    queue: Iterable[Waiting], free_to_take: Sequence[Vm], inventory: Inventory, room: Room, may_return: Returns
) -> Served:
    """Which VMs of the queue start, each with the fewest desktops that make room for it."""
    world = inventory
    left = list(free_to_take)
    starts: list[Start] = []
    choices: list[Choice] = []
    unknown: list[str] = []
    queue = tuple(queue)
    running = Counter(waiting.queued for waiting in queue if waiting.runs)
    for waiting in queue:
        vm, queued = waiting.vm, waiting.queued
        if vm is None:
            unknown.append(waiting.reason)
        reason = waiting.reason or _enough(queued, running)
        if vm is None or reason:
            choices.append(Choice(waiting.name, chosen=False, reason=reason))
            continue
        start, reasons = _best_start(vm, queued, left, world, room)
        if start is None:
            choices.append(Choice(waiting.name, chosen=False, reason=f"does not fit: {'; '.join(reasons)}"))
            continue
        before = [desktop for other in starts for desktop in other.desktops if desktop.host == start.host.ref]
        stranded = may_return([*before, *start.desktops])
        if stranded:
            reason = f"its desktops could not come back: {'; '.join(str(refusal) for refusal in stranded)}"
            choices.append(Choice(waiting.name, chosen=False, reason=reason))
            continue
        starts.append(start)
        running[queued] += 1
        choices.append(Choice(waiting.name, chosen=True, reason=_why(start)))
        left = [desktop for desktop in left if desktop not in start.desktops]
        world = _after(start, world, room)
    return Served(tuple(starts), tuple(choices), tuple(unknown))


def _enough(queued: QueuedVm, running: Counter[QueuedVm]) -> str:
    if queued.count is None or running[queued] < queued.count:
        return ""
    return f"count: {queued.count} of {queued.label} run"


def _best_start(
    vm: Vm, queued: QueuedVm, left: Sequence[Vm], world: Inventory, room: Room
) -> tuple[Start | None, list[str]]:
    """The start that costs the fewest desktops; the VM's own host wins a tie."""
    best: Start | None = None
    reasons: list[str] = []
    for host in _hosts(vm, queued, world):
        desktops, refusals = _make_room(vm, host, left, world, room)
        if desktops is None:
            reasons += [str(refusal) for refusal in refusals[:1]]
        elif best is None or len(desktops) < len(best.desktops):
            best = Start(vm, host, desktops)
        if best is not None and not best.desktops:
            break
    if best is None and queued.relocate and _bound(vm):
        reasons.append("it is bound to a GPU or a NUMA node of its host, so a night does not move it")
    return best, reasons or ["no host it may run on"]


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
    vm: Vm, host: Host, left: Sequence[Vm], world: Inventory, room: Room
) -> tuple[tuple[Vm, ...] | None, tuple[Rejection, ...]]:
    """The desktops of this host that must give way; None with every reason when not even all of them are enough."""
    there = [desktop for desktop in left if desktop.host == host.ref]
    world = around(host, world, vm)
    groups = _groups(host, there)
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
            world = project(SuspendVm(desktop.ref), world)
    return room.refusals(vm, world.hosts[host.ref], world)


def _groups(host: Host, desktops: Sequence[Vm]) -> list[tuple[Vm, ...]]:
    """The desktops by the GPU they are on: GPUs that can be cleared whole first, then those with fewer desktops.

    A desktop whose GPU the host does not tell is a group of its own.
    """
    by_ref = {desktop.ref: desktop for desktop in desktops}
    groups: list[tuple[bool, tuple[Vm, ...]]] = []
    for gpu in host.gpus:
        on_it = [by_ref.pop(ref) for ref in gpu.vms or () if ref in by_ref]
        if on_it:
            groups.append((len(on_it) < len(set(gpu.vms or ())), tuple(on_it)))
    groups += [(True, (desktop,)) for desktop in by_ref.values()]
    return [group for _, group in sorted(groups, key=lambda item: (item[0], len(item[1]), item[1][0].name))]


def _after(start: Start, world: Inventory, room: Room) -> Inventory:
    for desktop in start.desktops:
        world = project(SuspendVm(desktop.ref), world)
    if start.moves:
        world = project(RelocateVm(start.vm.ref, start.host.ref), world)
    return project(PowerOnVm(start.vm.ref, start.host.ref), world, room.catalog)


def _why(start: Start) -> str:
    made = f"{len(start.desktops)} desktop(s) make room" if start.desktops else "there is room without any desktop"
    return f"starts on {start.host.name}: {made}" + (", after a cold move" if start.moves else "")
