"""Pieces: the VMs of a cluster as the search sees them. Those that are alike are one kind: no matter which moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuops.advise.occupancy import GpuState
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.defrag.standing import Standing, Way
from gpuops.plan.defrag.targets import Targets

MAYBE, LISTED, CERTAIN = 0, 1, 2
"""How sure it is that a vGPU is on a GPU: it may be, its VM is listed there, it is."""

Seat = tuple[int, str, int]
"""(number of the piece, profile, how sure)."""
Content = tuple[Seat, ...]
"""What is on one GPU, at the most."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One VM that runs with a vGPU, or is suspended and comes back to one."""

    number: int
    vm: Vm
    profiles: tuple[str, ...]
    memory_mib: int
    """What it reserves where it arrives."""
    reserved_mib: int
    """What it surely leaves behind."""
    allowed: frozenset[int]
    """Numbers of the hosts that may take it; none where it may not move."""
    running: bool
    """False = suspended: its slots are kept, but no host counts it when it chooses a GPU."""
    kind: int

    @property
    def movable(self) -> bool:
        return bool(self.allowed)


def pieces_of(
    standings: Sequence[Standing],
    seats: Mapping[str, int],
    targets: Targets,
    ways: frozenset[Way],
) -> tuple[Piece, ...]:
    """A piece for each VM, numbered in their order. `seats` = on how many GPUs each may be; `ways` it may move by."""
    numbers = {host.ref: number for number, host in enumerate(targets.hosts)}
    kinds: dict[tuple[object, ...], int] = {}
    found = []
    for number, each in enumerate(standings):
        vm = each.vm
        allowed: frozenset[int] = frozenset()
        if each.way in ways:
            refs, _ = targets.of(vm, running=each.way is Way.VMOTION)
            allowed = frozenset(numbers[ref] for ref in refs)
        if allowed <= {numbers.get(vm.host or "")}:
            allowed = frozenset()
        running = vm.power is not PowerState.SUSPENDED
        memory_mib, reserved_mib = vm.memory_mib or 0, vm.memory_reservation_mib or 0
        alike: tuple[object, ...] = (vm.profiles, memory_mib, reserved_mib, allowed, running)
        if len(vm.profiles) > 1 or seats.get(vm.ref) != 1:
            alike = (vm.ref,)  # it is on several GPUs, or may be: no other one is on the same
        kind = kinds.setdefault(alike, len(kinds))
        found.append(Piece(number, vm, vm.profiles, memory_mib, reserved_mib, allowed, running, kind))
    return tuple(found)


def gpus_of(states: Iterable[GpuState]) -> Counter[str]:
    """On how many GPUs each VM is, or may be."""
    return Counter(ref for state in states for ref in {tenant.vm for tenant in state.tenants})


def contents_of(states: Iterable[GpuState], numbers: Mapping[str, int]) -> tuple[Content, ...]:
    """What is on each of these GPUs, in the words of the search."""
    return tuple(
        tuple(
            (
                numbers[tenant.vm],
                tenant.profile,
                CERTAIN if tenant.certain else LISTED if tenant.vm in (state.gpu.vms or ()) else MAYBE,
            )
            for tenant in state.tenants
        )
        for state in states
    )
