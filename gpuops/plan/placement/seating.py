"""Which GPU each device of a VM gets on one host, and whether the VM can start there (`Room`).

The host is expected to choose GPUs at power-on as `gpu_filters.py` describes. A seat is the GPU of one device.
`select.py` and `multi_node.py` seat VMs; nights and rolling changes ask `Room`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import assert_never

from gpuops.advise.occupancy import GpuState, Tenant, gpu_states, with_expected
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, Vm, pin_key, pins_of
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.gpu_filters import (
    find_free_device,
    judge_device,
    judge_slots,
    range_beside,
    slots_in_turn,
)
from gpuops.plan.placement.host_filters import memory_doubt, refusals
from gpuops.plan.placement.vm_demand import Demand, Wanted, WantsDirectPath, WantsDynamic, WantsVgpu, demands_of


@dataclass(frozen=True, slots=True)
class Seating:
    """A seat for every demand, or every reason why some demands have no seat."""

    seats: Mapping[int, PciAddress] = field(default_factory=dict)
    """By ordinal of the device."""
    rejections: tuple[Rejection, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.rejections


def seat(
    vm: Vm, demands: Sequence[Demand], host: Host, inventory: Inventory, catalog: Catalog, node: int | None = None
) -> Seating:
    """Return the seats of the VM's devices on this host; with `node`, only GPUs of that NUMA node count.

    Pinned vGPUs are seated first, then the others in the VM's order, each where the host would put it. If one device
    finds no seat, the seating is refused.
    """
    # 1. The GPUs without what the VM itself holds, since it is placed anew.
    states = {
        state.gpu.address: state.without(vm.ref)
        for state in gpu_states(host, inventory, catalog)
        if node is None or state.gpu.numa_node == node
    }
    attempt = _SeatingAttempt(vm, demands, host, inventory, catalog, node, states)
    # 2. Device by device; each vGPU that got a GPU takes its slot before the next one is asked.
    for _, equal_demands in groupby(in_order_of_seating(demands), _seating_key):
        attempt.seat_equal(tuple(equal_demands))
    # 3. If not all are seated: first how many of several equal devices got a seat, then the reasons of single GPUs.
    rejections = [*attempt.shortfalls(), *attempt.rejections]
    doubts = (memory_doubt(vm, host, inventory), *attempt.doubts)
    return Seating(attempt.seats, tuple(dict.fromkeys(rejections)), tuple(dict.fromkeys(filter(None, doubts))))


@dataclass(slots=True)
class _SeatingAttempt:
    """The devices of a VM that are seated so far on a host, and why others are not."""

    vm: Vm
    demands: Sequence[Demand]
    host: Host
    inventory: Inventory
    catalog: Catalog
    node: int | None
    states: dict[PciAddress, GpuState]
    seats: dict[int, PciAddress] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    """Ordinals of the devices whose seats are in doubt."""
    rejections: list[Rejection] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def subject(self) -> str:
        return self.host.name if self.node is None else f"{self.host.name} numa{self.node}"

    def seat_equal(self, demands: Sequence[Demand]) -> None:
        """Seat equal devices one after another. If one vGPU is refused, the next would be for the same reasons."""
        count_seated = self._fill_all_gpus(demands)
        for demand in demands[count_seated:]:
            seat_or_reasons, doubt = self._seat_one(demand)
            if not isinstance(seat_or_reasons, PciAddress):
                self.rejections += seat_or_reasons
                if isinstance(demand, WantsVgpu):
                    return
                continue
            self.seats[demand.ordinal] = seat_or_reasons
            if isinstance(demand, WantsVgpu):
                self._take(seat_or_reasons, demand.profile)
            if doubt:
                self.doubts.append(doubt)
                self.unsure.add(demand.ordinal)

    def _fill_all_gpus(self, demands: Sequence[Demand]) -> int:
        """Fill all GPUs if they have fewer slots than these equal vGPUs need, and return how many were seated.

        The host's order does not matter then, since each GPU gets as many as it takes. Example: four vGPUs and two GPUs
        with one slot each: the first two vGPUs are seated, and 2 is returned.
        """
        vgpu = demands[0]
        if not isinstance(vgpu, WantsVgpu) or vgpu.pin is not None or len(demands) == 1:
            return 0
        # for each GPU: (slots that surely exist, all slots that may exist)
        slots = {
            address: slots_in_turn(state, vgpu.profile, self.vm.ref, self.catalog)
            for address, state in self.states.items()
        }
        if sum(count for _, count in slots.values()) >= len(demands):
            return 0
        sure_count = sum(sure for sure, _ in slots.values())
        gpu_of_slot = [address for address, (_, count) in slots.items() for _ in range(count)]
        for number, (demand, address) in enumerate(zip(demands, gpu_of_slot, strict=False)):
            self.seats[demand.ordinal] = address
            self._take(address, vgpu.profile)
            if number >= sure_count:
                self.unsure.add(demand.ordinal)
        return len(gpu_of_slot)

    def _take(self, address: PciAddress, profile: str) -> None:
        """Count a vGPU of this VM on the GPU, where the host is expected to start it."""
        tenant = Tenant(self.vm.ref, self.vm.name, profile)
        self.states[address] = with_expected(self.states[address], tenant, self.catalog)

    def _seat_one(self, demand: Demand) -> tuple[PciAddress | tuple[Rejection, ...], str]:
        """Return the device's GPU and a doubt about it ("" = none), or why no GPU can be given to it."""
        match demand:
            case WantsVgpu():
                return _seat_vgpu(demand, self.vm, self.states, self.host, self.subject, self.catalog)
            case WantsDirectPath():
                subject = f"{self.host.name} {demand.address}"
                device = self.host.device(demand.address)
                if self.node is not None and device is not None and device.numa_node != self.node:
                    actual_node = "unknown" if device.numa_node is None else device.numa_node
                    return (Rejection(subject, f"is not on NUMA node {self.node}", self.node, actual_node),), ""
                verdict = judge_device(demand, self.vm, self.host, self.inventory)
                if isinstance(verdict, Rejection):
                    return (verdict,), ""
                return demand.address, f"{subject}: {verdict}" if verdict else ""
            case WantsDynamic():
                unseated = [other for other in self.demands if other.ordinal not in self.seats]
                # equal demands differ only in their ordinals
                still_needed = sum(replace(other, ordinal=demand.ordinal) == demand for other in unseated)
                taken_addresses = self.seats.values()
                device_or_rejection = find_free_device(
                    demand, self.vm, taken_addresses, self.host, self.inventory, self.node, still_needed
                )
                if isinstance(device_or_rejection, Rejection):
                    return (device_or_rejection,), ""
                return device_or_rejection, ""
            case _:
                assert_never(demand)

    def shortfalls(self) -> Iterator[Rejection]:
        """Yield, for each profile of several vGPUs that did not all get a seat, how many did and what else takes
        room."""
        vgpus = [demand for demand in self.demands if isinstance(demand, WantsVgpu)]
        seated = self.seats.keys()
        for profile in dict.fromkeys(demand.profile for demand in vgpus):
            ordinals = {demand.ordinal for demand in vgpus if demand.profile == profile}
            if len(ordinals) == 1 or ordinals <= seated:
                continue
            rooms = [(state, range_beside(state, profile, self.vm.ref, self.catalog)) for state in self.states.values()]
            further_slots = [room.at_most for _, room in rooms if room is not None]
            slots_text = _format_slots(len(ordinals & seated - self.unsure), len(ordinals & seated), further_slots)
            tenants = [tenant for state, room in rooms if room is not None for tenant in state.tenants]
            others = [awaited.value for awaited in Awaited if any(t.awaited is awaited for t in tenants)]
            if any(t.vm == self.vm.ref and t.profile != profile for t in tenants):
                others.append("its other vGPUs")
            beside = f" beside {' and '.join(others)}" if others else ""
            yield Rejection(self.subject, f"room for {profile}{beside}", len(ordinals), slots_text, "slots")


def in_order_of_seating(demands: Iterable[Demand]) -> list[Demand]:
    """Sort the demands: first pinned vGPUs and whole devices, then the other vGPUs in the VM's order."""
    return sorted(demands, key=lambda demand: (isinstance(demand, WantsVgpu) and demand.pin is None, demand.ordinal))


def _format_slots(sure_seats: int, all_seats: int, further_slots: Sequence[int | None]) -> int | str:
    """Return the number of slots, as a figure or a range: from the sure seats to all seats and the most further slots
    that each GPU may have (None = unknown)."""
    known_slots = [slots for slots in further_slots if slots is not None]
    if len(known_slots) < len(further_slots):
        return f"{sure_seats} or more"
    most = all_seats + sum(known_slots)
    return sure_seats if most == sure_seats else f"{sure_seats} to {most}"


def _seating_key(demand: Demand) -> object:
    """Return a key that is equal for vGPUs with the same profile and pin."""
    return (demand.profile, demand.pin) if isinstance(demand, WantsVgpu) else demand.ordinal


def _seat_vgpu(
    demand: WantsVgpu, vm: Vm, states: Mapping[PciAddress, GpuState], host: Host, subject: str, catalog: Catalog
) -> tuple[PciAddress | tuple[Rejection, ...], str]:
    """Return the first GPU in the host's order that surely has a slot, else the first that may have one, and the doubt
    about it. Without such a GPU, return the reasons.

    GPUs of other models are not reported: a host may have many of them, and they could not help.
    """
    rejections = []
    unsure_seat: tuple[PciAddress, str] | None = None
    candidates = [state for state in states.values() if demand.pin in (None, state.gpu.address)]
    for state, verdict in judge_slots(candidates, demand.profile, vm, host, catalog):
        if verdict == "":
            return state.gpu.address, ""
        if isinstance(verdict, Rejection):
            rejections.append(verdict)
        elif unsure_seat is None:
            unsure_seat = (state.gpu.address, f"{host.name} {state.gpu.address}: {verdict}")
    if unsure_seat is not None:
        return unsure_seat
    if candidates and not rejections:
        models = ", ".join(sorted({state.gpu.name for state in candidates}))
        return (Rejection(subject, f"has no GPU that runs {demand.profile} (it has: {models})"),), ""
    if rejections or demand.pin is None:
        return tuple(rejections) or (Rejection(subject, "has no GPU"),), ""
    hint = f"remove {pin_key(demand.ordinal)} from its settings, or set it to the address of a GPU of that host"
    return (Rejection(subject, f"has no GPU {demand.pin}, which {vm.name} is pinned to", hint=hint),), ""


@dataclass(frozen=True, slots=True)
class Room:
    """Checks whether hosts have room for VMs. If `certain`, a doubt counts as a refusal: desktops are never suspended
    on a guess."""

    catalog: Catalog
    certain: bool

    def refusals(self, vm: Vm, host: Host, snapshot: Inventory) -> tuple[Rejection, ...]:
        """Return every reason why the VM cannot start on the host in this snapshot; empty if it can."""
        needs = Wanted(vm=vm, demands=demands_of(vm.devices or (), pins_of(vm)), hosts=(host.ref,))
        host_refusals = refusals(needs, host, snapshot)
        if host_refusals:
            return host_refusals
        seating = seat(vm, needs.demands, host, snapshot, self.catalog)
        doubts = tuple(Rejection(host.name, doubt) for doubt in seating.doubts) if self.certain else ()
        return seating.rejections or doubts


def reduced_to_host(host: Host, snapshot: Inventory, *extra_vms: Vm) -> Inventory:
    """Return the snapshot reduced to one host, its VMs and the extra VMs.

    Each projected step copies the VMs of the snapshot, and the plan of a night tries thousands of steps on ten thousand
    VMs: with the small snapshot that stays fast.
    """
    near = {vm.ref: vm for vm in (*snapshot.vms_on(host), *extra_vms)}
    return replace(snapshot, vms=near, hosts={host.ref: snapshot.hosts[host.ref]})
