"""What is left of a vGPU type in a cluster or on a host, and whether a start leaves what is reserved of it.

A VM for which nothing is reserved starts only where the unused units of every reservation still have room afterwards
(vSphere API, CapacityInfo.unusedReservation). Not documented, and chosen here: a start that takes nothing from a
reservation is admitted although that has too little room already; the fault is that of a GPU without room; a host
counts as reserved what the other hosts of its cluster have no room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuops.sim.inventory import faults
from gpuops.sim.state.direct_path import ReservationState, room

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.state.gpu_admission import RunningVgpu


@dataclass(frozen=True, slots=True)
class TypeCapacity:
    """DirectPathProfileManagerCapacityInfo of a vGPU type in one place."""

    consumed: int
    remaining: int
    max: int
    unused_reservation: int


def capacity(vgpu: str, hosts: list[HostEntity], reservations: Iterable[ReservationState]) -> TypeCapacity:
    """What these hosts have of a type; `reservations` are those of their cluster."""
    seats = [seat for host in hosts for seat in host.seats()]
    unused = sum(_unused(each, seats, hosts) for each in reservations if each.vgpu == vgpu)
    return TypeCapacity(
        consumed=sum(seat.type.name == vgpu for seat in seats),
        remaining=sum(_room(vgpu, host, host.seats()) for host in hosts),
        max=sum(_room(vgpu, host, ()) for host in hosts),
        unused_reservation=unused,
    )


def at_host(
    vgpu: str, host: HostEntity, others: list[HostEntity], reservations: list[ReservationState]
) -> TypeCapacity:
    """The same of one host of a cluster: of what the cluster reserves, what its other hosts have no room for."""
    alone = capacity(vgpu, [host], ())
    unused = capacity(vgpu, [host, *others], reservations).unused_reservation
    elsewhere = sum(_room(vgpu, other, other.seats()) for other in others)
    reserved = max(0, min(alone.remaining, unused - elsewhere))
    return TypeCapacity(alone.consumed, alone.remaining, alone.max, reserved)


def refuse_over_reservations(vm: VmEntity, host: HostEntity, seats: tuple[RunningVgpu, ...]) -> None:
    """Raises InsufficientGraphicsResourcesFault where a start on these GPUs takes what is reserved for others."""
    place = host.compute_resource()
    reservations = [each for each in _all(vm) if each.place == place.moid]
    if not reservations:
        return
    hosts = [each for each in place.hosts() if each.state.usable]
    before = {each.moid: tuple(each.seats()) for each in hosts}
    after = {moid: tuple(seat for seat in there if seat.vm != vm.moid) for moid, there in before.items()}
    after[host.moid] = (*after.get(host.moid, ()), *seats)
    for reservation in reservations:
        left, was = (_margin(reservation, hosts, each) for each in (after, before))
        if left < min(0, was):
            missing = f"{-left} of {reservation.units} {reservation.vgpu} that are reserved in {place.name}"
            raise faults.no_graphics(f"{missing} would have no room left")


def _all(vm: VmEntity) -> tuple[ReservationState, ...]:
    state: Any = vm.world
    found: tuple[ReservationState, ...] = state.direct_path.reservations
    return found


def _margin(
    reservation: ReservationState, hosts: list[HostEntity], seats: Mapping[str, tuple[RunningVgpu, ...]]
) -> int:
    """How much room there is beyond what is reserved and unused; negative = so much is missing."""
    running = [seat for host in hosts for seat in seats[host.moid]]
    remaining = sum(_room(reservation.vgpu, host, seats[host.moid]) for host in hosts)
    return remaining - _unused(reservation, running, hosts)


def _unused(reservation: ReservationState, seats: Iterable[RunningVgpu], hosts: list[HostEntity]) -> int:
    if not hosts:
        return reservation.units
    find = hosts[0].world.find
    vms = (find(seat.vm) for seat in seats if seat.type.name == reservation.vgpu)
    used = sum(vm is not None and reservation.is_for(vm.display_name) for vm in vms)
    return max(0, reservation.units - used)


def _room(vgpu: str, host: HostEntity, seats: tuple[RunningVgpu, ...]) -> int:
    return room(vgpu, host.state.for_admission(tuple(seats))) if host.state.usable else 0
