"""Groups the suspends and starts of one host into stages, so that each VM finds the room that was planned for it.
`queue.py` calls it for each start.

A host puts a VM on the GPU that its own rule prefers at that moment, not on the one that the plan assumed. If all
desktops of a host are suspended before the first VM starts there, more GPUs are free than when the starts were planned
one after the other: VMs that should share a GPU are spread over two, and a VM that needs a complete GPU finds none.

A stage is therefore tried in the order of the host: first all suspends, then one start after the other. A start joins
the stage only if all VMs of it still find room. Otherwise it begins a new stage after the one before has ended, with
exactly the GPUs by which it was judged. Most nights have one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm, RelocateVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room, around
from gpuops.plan.placement.suspended_vms import size_mib, suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start

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
        host_alone = around(start.host, world)
        return cls(host_alone, (), host_alone)

    def with_start(self, start: Start, position: Mapping[str, int], room: Room) -> HostStages:
        """Return the stages with one more start, in the last stage if all VMs of it still find room.

        `position`: VM ref -> its position in the queue.
        """
        if self.stages:
            before = self.before.with_vm(start.vm)
            for stage in _orders((*self.stages[-1], start), position, room):
                after = _try_stage(stage, before, room)
                if after is not None:
                    return HostStages(before, (*self.stages[:-1], stage), after)
        before = self.after.with_vm(start.vm)
        return HostStages(before, (*self.stages, (start,)), _run_stage((start,), before, room))


def by_stage(hosts: Mapping[str, HostStages], position: Mapping[str, int]) -> tuple[Stage, ...]:
    """Return the stages of all hosts in parallel, each in the order of the queue as far as its hosts allow."""
    count = max((len(host.stages) for host in hosts.values()), default=0)
    at_once = ([host.stages[at] for host in hosts.values() if at < len(host.stages)] for at in range(count))
    return tuple(_side_by_side(stages, position) for stages in at_once)


def _side_by_side(of_hosts: Sequence[Stage], position: Mapping[str, int]) -> Stage:
    """Return one stage of several hosts: in the order of the queue, but for each host in the order of its stage."""
    starts = sorted((start for stage in of_hosts for start in stage), key=lambda start: position[start.vm.ref])
    in_turn = {stage[0].host.ref: iter(stage) for stage in of_hosts}
    return tuple(next(in_turn[start.host.ref]) for start in starts)


def _orders(stage: Stage, position: Mapping[str, int], room: Room) -> Iterator[Stage]:
    """Yield the orders to try: that of the queue, then the largest VM first, since it needs a completely free GPU."""
    queue = sorted(stage, key=lambda start: position[start.vm.ref])
    yield tuple(queue)
    yield tuple(sorted(queue, key=lambda start: -size_mib(start.vm, room.catalog)))


def _try_stage(stage: Stage, world: Inventory, room: Room) -> Inventory | None:
    """Return the host after this stage; None = one of its VMs would find no room."""
    world = _suspend_and_move(stage, world)
    for start in stage:
        vm = world.vm(start.vm.ref)
        if room.refusals(vm, world.hosts[start.host.ref], world):
            return None
        world = project(PowerOnVm(vm.ref, start.host.ref), world, room.catalog)
    return world


def _run_stage(stage: Stage, world: Inventory, room: Room) -> Inventory:
    """Return the host after this stage, without checking for room."""
    world = _suspend_and_move(stage, world)
    for start in stage:
        world = project(PowerOnVm(start.vm.ref, start.host.ref), world, room.catalog)
    return world


def _suspend_and_move(stage: Stage, world: Inventory) -> Inventory:
    """Return the host after the desktops of a stage are suspended and its VMs have moved there."""
    for start in stage:
        for desktop in start.desktops:
            world = project(suspend_or_shut_down(desktop), world)
    for start in stage:
        if start.moves:
            world = project(RelocateVm(start.vm.ref, start.host.ref), world)
    return world
