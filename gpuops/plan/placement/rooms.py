"""Rooms: what every GPU of a host has to say to a VM, one line each, for those who ask why."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.advise.room import room_for
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PhysicalGpu
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.placement.directpath import given
from gpuops.plan.placement.gpus import slot_on
from gpuops.plan.placement.wanted import Demand, Wanted, WantsDirectPath, WantsDynamic, WantsVgpu
from gpuops.plan.plan import Choice, Rejection


def rooms(wanted: Wanted, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Choice]:
    """The room on each GPU of the host for each kind of device wanted, or the refusal with its numbers."""
    kinds = _kinds(wanted)
    for state in gpu_states(host, inventory, catalog):
        for demand in kinds:
            subject = f"{host.name} {state.gpu.address}"
            if isinstance(demand, WantsVgpu):
                answer = slot_on(state.without(wanted.vm.ref), demand, wanted.vm, host, catalog)
                room = f"room for {_slots(state, demand, catalog)} {demand.profile}"
            else:
                answer = _whole(demand, wanted, state.gpu, host, inventory)
                room = "free as a whole"
            yield _line(subject, answer, room)


def _kinds(wanted: Wanted) -> tuple[Demand, ...]:
    """One demand of each kind: a VM with eight equal vGPUs asks each GPU once."""
    kinds: dict[object, Demand] = {}
    for demand in wanted.demands:
        match demand:
            case WantsVgpu(profile=profile):
                kinds.setdefault(profile, demand)
            case WantsDirectPath(address=address):
                kinds.setdefault(address, demand)
            case WantsDynamic(allowed=allowed, label=label):
                kinds.setdefault((allowed, label), demand)
    return tuple(kinds.values())


def _whole(
    demand: WantsDirectPath | WantsDynamic, wanted: Wanted, gpu: PhysicalGpu, host: Host, inventory: Inventory
) -> Rejection | str:
    if isinstance(demand, WantsDynamic) and (gpu.vendor_id, gpu.device_id) not in demand.allowed:
        return Rejection(f"{host.name} {gpu.address}", f"is another model ({gpu.name})")
    return given(WantsDirectPath(demand.ordinal, gpu.address), wanted.vm, host, inventory)


def _line(subject: str, answer: Rejection | str, room: str) -> Choice:
    if isinstance(answer, Rejection):
        return Choice(subject, chosen=False, reason=str(answer).removeprefix(f"{subject}: "))
    doubt = f", but {answer.removeprefix(f'{subject}: ')}" if answer else ""
    return Choice(subject, chosen=False, reason=f"{room}{doubt}", feasible=True)


def _slots(state: GpuState, demand: WantsVgpu, catalog: Catalog) -> str:
    slots = room_for(state, demand.profile, catalog)
    if slots.at_most is None:
        return "an unknown number of"
    return str(slots.at_most) if slots.exact else f"{slots.at_least} to {slots.at_most}"
