"""Rotation, the proof of return: in which order the desktops of each host come back, and which place each then has.

A slot is a number where all vGPUs of a GPU are of one size. On a mixed-size or MIG GPU it is the start of a placement:
the ids shown lie beside each other, and beside what runs there all night; the host may choose others that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.mig import arrangements
from gpuops.model.vgpu import VgpuProfile
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.project import project
from gpuops.plan.placement.return_order import resume_or_power_on, return_order, stranded, suspend_or_shut_down
from gpuops.plan.placement.room import Room, around

_GB = 1024


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one desktop is on one GPU, once it is back."""

    gpu: PciAddress
    place: str
    """`slot 2 of 4`, `placement id 8`, or `whole`."""

    def __str__(self) -> str:
        return f"{self.gpu} {self.place}"


@dataclass(frozen=True, slots=True)
class Comeback:
    """One desktop, back."""

    vm: Vm
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class HostProof:
    """The way back of one host's desktops."""

    host: Host
    order: tuple[Comeback, ...]
    instants: int
    """After each of so many takings, what was taken until then fits back."""
    refusals: tuple[Rejection, ...] = ()
    """What speaks against it; empty = proved."""


def prove(desktops: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> tuple[HostProof, ...]:
    """The proof of each host, by name. `inventory` has no ML VM of the night running."""
    hosts = {vm.host for vm in desktops} & inventory.hosts.keys()
    by_name = sorted((inventory.hosts[ref] for ref in hosts if ref), key=lambda host: host.name)
    return tuple(_prove(host, [vm for vm in desktops if vm.host == host.ref], inventory, catalog) for host in by_name)


def _prove(host: Host, desktops: list[Vm], inventory: Inventory, catalog: Catalog) -> HostProof:
    room = Room(catalog, certain=False)
    instants = range(1, len(desktops) + 1)
    refusals = [each for number in instants for each in stranded(desktops[:number], inventory, catalog, room)]
    world = around(host, inventory)
    for vm in desktops:
        world = project(suspend_or_shut_down(vm), world)
    order = [vm for part in return_order(desktops, world, catalog) for vm in part]
    for vm in order:
        world = project(resume_or_power_on(world.vm(vm.ref)), world, catalog)
    seats = {vm.ref: tuple(_seats(vm, order, world, catalog)) for vm in order}
    comebacks = tuple(Comeback(vm, seats[vm.ref]) for vm in order)
    return HostProof(host, comebacks, len(instants), tuple(dict.fromkeys(refusals)))


def _seats(vm: Vm, order: Sequence[Vm], world: Inventory, catalog: Catalog) -> Iterator[Seat]:
    host = world.hosts[vm.host or ""]
    for gpu in host.gpus:
        if vm.ref in (gpu.vms or ()):
            yield Seat(gpu.address, _places(gpu, order, world, catalog).get(vm.ref, "a slot"))
    yield from (Seat(binding.address, "whole") for binding in host.bindings if binding.vm == vm.ref)


def _places(gpu: PhysicalGpu, order: Sequence[Vm], world: Inventory, catalog: Catalog) -> dict[str, str]:
    """VM ref -> its place on the GPU: first what runs there all night, then in the order of return."""
    returned = [vm.ref for vm in order]
    there = sorted(gpu.vms or (), key=lambda ref: (ref in returned, returned.index(ref) if ref in returned else 0))
    running = [ref for ref in there if ref in world.vms and world.vms[ref].power is PowerState.ON]
    tenants = [(ref, profile) for ref in running for profile in _profiles(world.vms[ref], catalog)]
    if gpu.vgpu_mode in (VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE):
        return {ref: f"placement id {start}" for ref, start in _starts(gpu, tenants, catalog).items()}
    slots = {ref: number for number, (ref, _) in reversed([*enumerate(tenants, 1)])}
    at_most = min((profile.max_per_gpu for _, profile in tenants), default=len(tenants))
    return {ref: f"slot {number} of {at_most}" for ref, number in slots.items()}


def _profiles(vm: Vm, catalog: Catalog) -> list[VgpuProfile]:
    found = (catalog.profile(name) for name in vm.profiles)
    return [profile for profile in found if profile is not None]


def _starts(gpu: PhysicalGpu, tenants: Sequence[tuple[str, VgpuProfile]], catalog: Catalog) -> dict[str, int]:
    """VM ref -> a start at which all of them lie beside each other; empty when the catalogue does not know."""
    largest_first = sorted(tenants, key=lambda tenant: -tenant[1].framebuffer_mib)
    if gpu.vgpu_mode is VgpuMode.MIXED_SIZE:
        found = next(_side_by_side([profile for _, profile in largest_first], ()), ())
        return {ref: start for (ref, _), start in zip(largest_first, found, strict=False)}
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None or board.mig is None:
        return {}
    kinds = [(ref, board.mig.profile(profile.mig_profile or "")) for ref, profile in largest_first]
    wanted = [kind for _, kind in kinds if kind is not None]
    placed = list(next(arrangements(wanted, board.mig), ()))
    starts: dict[str, int] = {}
    for ref, kind in kinds:
        at = next((each for each in placed if each.profile == kind), None)
        if at is not None:
            placed.remove(at)
            starts[ref] = at.start
    return starts


def _side_by_side(profiles: Sequence[VgpuProfile], placed: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, ...]]:
    """Every way to give each of the profiles a start of its own, in GB, so that none lies over another."""
    if not profiles:
        yield tuple(start for start, _ in placed)
        return
    size = -(-profiles[0].framebuffer_mib // _GB)
    for start in profiles[0].placement_ids_mixed:
        if _free(start, start + size, placed):
            yield from _side_by_side(profiles[1:], (*placed, (start, start + size)))


def _free(start: int, end: int, placed: Iterable[tuple[int, int]]) -> bool:
    return all(end <= begun or ended <= start for begun, ended in placed)
