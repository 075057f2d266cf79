"""Seats: the VMs of a pattern on a host of its shape, each on its GPUs, as the exact rules admit them one by one.

What the solver counted is only a proposal here: each VM is asked for with its host, and what is refused or in doubt is
left out. The host is first left to choose the GPUs itself; only where that spoils the pattern are vGPUs pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.inventory import Inventory
from gpuops.model.vm import VgpuDevice
from gpuops.model.workload import Workload
from gpuops.plan.batch.kinds import Device, Kind
from gpuops.plan.batch.problem import Pattern
from gpuops.plan.batch.world import HostGpus, World
from gpuops.plan.headroom import Headroom
from gpuops.plan.holding import take
from gpuops.plan.hypothetical import running
from gpuops.plan.placement.wanted import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.placement.wide import place_near
from gpuops.plan.plan import Choice
from gpuops.plan.trial import Placed, Trial


@dataclass(frozen=True, slots=True)
class Seat:
    """One VM of a kind on the host: the node it is meant to be beside, and a GPU per device."""

    kind: Kind
    node: int | None
    gpus: tuple[PciAddress, ...]


@dataclass(frozen=True, slots=True)
class Seated:
    """The VMs that were admitted, and the host with them."""

    placed: tuple[Placed, ...]
    inventory: Inventory
    pinned: bool


def seats(world: World, pattern: Pattern, host: HostGpus) -> tuple[Seat, ...]:
    """In the order of starting: whole devices, then vGPUs as fillings are made, of one device those of a node first."""
    shape = world.problem.shapes[pattern.shape]
    free = list(_filled(world, pattern, host))
    ordered = sorted(pattern.vms, key=lambda each: (world.devices.index(world.kinds[each[0]].device), each))
    found = []
    for kind, way, count in ordered:
        node = world.node(shape.ways[kind][way].uses, host)
        for _ in range(count):
            gpus = _taken(world.kinds[kind], node, free)
            found.append(Seat(world.kinds[kind], node, gpus))
    return tuple(found)


def seated(
    proposed: Sequence[tuple[Seat, Workload]],
    ref: str,
    inventory: Inventory,
    catalog: Catalog,
    pin: PinPolicy,
    *,
    pin_at_once: bool = False,
) -> Seated:
    """The proposed VMs that the host takes for certain, each beside the earlier ones.

    `pin_at_once` where an equal host spoilt the same pattern when it was left to choose.
    """
    host = inventory.hosts[ref]
    # Only what the host knows is copied from step to step: a fleet has other VMs in thousands.
    alone = replace(inventory, hosts={ref: host}, vms={vm.ref: vm for vm in inventory.vms_on(host)})
    admits = _Admission(inventory, catalog, ref, pin)
    if pin is not PinPolicy.NEVER and pin_at_once:
        return admits.all_of(proposed, alone, pinned=True)
    free = admits.all_of(proposed, alone, pinned=False)
    if _as_proposed(free.placed, proposed):
        return free
    if pin is PinPolicy.NEVER:
        other = admits.all_of(_one_per_gpu_first(proposed), alone, pinned=False)
    else:
        other = admits.all_of(proposed, alone, pinned=True)
    return other if len(other.placed) >= len(free.placed) else free


@dataclass(frozen=True, slots=True)
class _Admission:
    """One host's answer to VM after VM."""

    fleet: Inventory
    catalog: Catalog
    ref: str
    pin: PinPolicy

    def all_of(self, proposed: Sequence[tuple[Seat, Workload]], alone: Inventory, *, pinned: bool) -> Seated:
        placed = []
        for seat, workload in proposed:
            answer = self._one(seat, workload, alone, pinned)
            if answer is not None:
                placed.append(answer)
                alone = take(running(answer.vm, answer.placement, workload.numa), alone, self.catalog)
        return Seated(tuple(placed), alone, pinned)

    def _one(self, seat: Seat, workload: Workload, alone: Inventory, pinned: bool) -> Placed | None:
        vm = seat.kind.vm(workload)
        if self._kept_free(seat, workload, alone):
            return None
        pins = {at: gpu for at, gpu in enumerate(seat.gpus) if isinstance(seat.kind.devices[at], VgpuDevice)}
        pins = pins if pinned else {}
        here = replace(vm, host=self.ref)  # a pin is an address of the host that the VM is on
        wanted = Wanted(here, demands_of(seat.kind.devices, pins), (self.ref,), workload.numa, self.pin, explain=False)
        found = place_near(wanted, alone, self.catalog)
        if not isinstance(found, Placement) or found.doubts:
            return None
        placement = replace(found, pins={**found.pins, **pins})
        choice = Choice(placement.host.name, chosen=True, reason="the solver's choice for all requests", feasible=True)
        warnings = Trial(workload, alone, self.catalog).warnings(vm, placement)
        return Placed(workload, vm, placement, warnings, (choice,))

    def _kept_free(self, seat: Seat, workload: Workload, alone: Inventory) -> bool:
        """Whether HA of the cluster would refuse it, beside all that this host has been given so far."""
        host = alone.hosts[self.ref]
        cluster = self.fleet.clusters.get(host.cluster or "")
        if cluster is None or cluster.admission is None:
            return False
        now = replace(self.fleet, vms={**self.fleet.vms, **alone.vms})
        return Headroom(seat.kind.vm(workload), now).refusal(host) is not None


def _one_per_gpu_first(proposed: Sequence[tuple[Seat, Workload]]) -> list[tuple[Seat, Workload]]:
    """Started so, each GPU has its size before a host that spreads VMs over GPUs gives it another."""
    there: dict[PciAddress, int] = {}
    turns = []
    for seat, _ in proposed:
        turns.append(max(there.get(gpu, 0) for gpu in seat.gpus) if seat.gpus else 0)
        for gpu in seat.gpus:
            there[gpu] = there.get(gpu, 0) + 1
    order = sorted(range(len(proposed)), key=lambda at: (turns[at], at))
    return [proposed[at] for at in order]


def _as_proposed(placed: Sequence[Placed], proposed: Sequence[tuple[Seat, Workload]]) -> bool:
    """Whether all of them are there, and beside the node that was meant."""
    meant = {workload.name: seat.node for seat, workload in proposed}
    return len(placed) == len(proposed) and all(
        meant[each.workload.name] in (None, each.placement.numa_node) for each in placed
    )


@dataclass(slots=True)
class _Filled:
    """One GPU with the slots that its filling has left."""

    address: PciAddress
    node: int | None
    slots: dict[Device, int]


def _filled(world: World, pattern: Pattern, host: HostGpus) -> Iterator[_Filled]:
    shape = world.problem.shapes[pattern.shape]
    gpus = [iter(group) for group in host.groups]
    for group, number, count in pattern.gpus:
        filling = shape.groups[group].fillings[number]
        for _ in range(count):
            yield _Filled(next(gpus[group]), world.node(filling, host), world.slots(filling, host))


def _taken(kind: Kind, node: int | None, free: Sequence[_Filled]) -> tuple[PciAddress, ...]:
    """A GPU per device of the VM, of this node where there is one, else as few nodes as the order gives."""
    found: list[PciAddress] = []
    for gpu in sorted(free, key=lambda gpu: (str(gpu.node), gpu.address)):
        while len(found) < kind.count and gpu.slots.get(kind.device, 0) and node in (None, gpu.node):
            gpu.slots[kind.device] -= 1
            found.append(gpu.address)
    return tuple(found)
