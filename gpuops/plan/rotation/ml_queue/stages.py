"""Which suspends and starts of one host go on together, so that each VM finds the room that it was given. `queue.py`
calls it for each start.

A host puts a VM on the GPU that its own rule prefers at that moment, whichever the plan had in mind. When all desktops
of a host are suspended before the first VM starts there, more GPUs are free than when they were counted one start after
the other: VMs that were to share a GPU are spread over two, and one that needs a whole GPU finds none.

So a stage is tried as the host will see it: everything suspended first, then start after start. A start joins the stage
only where all of them still find their room. Else it is a stage of its own, which begins when the one before has ended,
with just the GPUs by which it was judged. Most nights have one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm, RelocateVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import size_mib, suspend_or_shut_down
from gpuops.plan.placement.room import Room, around
from gpuops.plan.rotation.ml_queue.ml_vms import Start

Stage = tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class HostStages:
    """The stages of one host."""

    before: Inventory
    """The host and who is on it, as they are when the last stage begins."""
    stages: tuple[Stage, ...]
    after: Inventory
    """The same when it has ended."""

    @classmethod
    def of(cls, start: Start, world: Inventory) -> HostStages:
        """No stage yet, on this start's host."""
        here = around(start.host, world)
        return cls(here, (), here)

    def joined_by(self, start: Start, position: Mapping[str, int], room: Room) -> HostStages:
        """The stages with one more start, in the last one if all of its VMs then still find their room.

        `position`: VM ref -> its position in the queue.
        """
        if self.stages:
            before = self.before.with_vm(start.vm)
            for stage in _orders((*self.stages[-1], start), position, room):
                after = _tried(stage, before, room)
                if after is not None:
                    return HostStages(before, (*self.stages[:-1], stage), after)
        before = self.after.with_vm(start.vm)
        return HostStages(before, (*self.stages, (start,)), _done((start,), before, room))


def by_stage(hosts: Mapping[str, HostStages], position: Mapping[str, int]) -> tuple[Stage, ...]:
    """The stages of all hosts side by side, each in the order of the queue as far as its hosts allow."""
    count = max((len(host.stages) for host in hosts.values()), default=0)
    at_once = ([host.stages[at] for host in hosts.values() if at < len(host.stages)] for at in range(count))
    return tuple(_side_by_side(stages, position) for stages in at_once)


def _side_by_side(of_hosts: Sequence[Stage], position: Mapping[str, int]) -> Stage:
    """One stage of several hosts: in the order of the queue, but of each host in the order of its own stage."""
    starts = sorted((start for stage in of_hosts for start in stage), key=lambda start: position[start.vm.ref])
    in_turn = {stage[0].host.ref: iter(stage) for stage in of_hosts}
    return tuple(next(in_turn[start.host.ref]) for start in starts)


def _orders(stage: Stage, position: Mapping[str, int], room: Room) -> Iterator[Stage]:
    """The orders that are tried: that of the queue, then the largest first, since it needs a GPU that is free whole."""
    queue = sorted(stage, key=lambda start: position[start.vm.ref])
    yield tuple(queue)
    yield tuple(sorted(queue, key=lambda start: -size_mib(start.vm, room.catalog)))


def _tried(stage: Stage, world: Inventory, room: Room) -> Inventory | None:
    """The host after this stage; None = one of its VMs would find no room."""
    world = _suspended(stage, world)
    for start in stage:
        vm = world.vm(start.vm.ref)
        if room.refusals(vm, world.hosts[start.host.ref], world):
            return None
        world = project(PowerOnVm(vm.ref, start.host.ref), world, room.catalog)
    return world


def _done(stage: Stage, world: Inventory, room: Room) -> Inventory:
    """The host after this stage."""
    world = _suspended(stage, world)
    for start in stage:
        world = project(PowerOnVm(start.vm.ref, start.host.ref), world, room.catalog)
    return world


def _suspended(stage: Stage, world: Inventory) -> Inventory:
    """The host when the desktops of a stage are suspended and its VMs have moved there."""
    for start in stage:
        for desktop in start.desktops:
            world = project(suspend_or_shut_down(desktop), world)
    for start in stage:
        if start.moves:
            world = project(RelocateVm(start.vm.ref, start.host.ref), world)
    return world
