"""Which GPU each device of a VM gets on one host, as that host is expected to choose at power-on.

`candidates.py`, `select.py`, `multi_node.py` and other plans call it. A seat is the GPU of one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import assert_never

from gpuops.advise.occupancy import GpuState, Tenant, gpu_states, may_run
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Awaited, Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.gpu_filters import find_free_device, host_order, judge_device, judge_slot, range_beside
from gpuops.plan.placement.nodes import memory_doubt
from gpuops.plan.placement.wanted import Demand, WantsDirectPath, WantsDynamic, WantsVgpu


@dataclass(frozen=True, slots=True)
class Seating:
    """A seat for every demand, or every reason why there is not one for each."""

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
    """Where the VM's devices go on this host; with `node`, only GPUs of that NUMA node count.

    Pinned vGPUs are seated first, then the others in the VM's order, each where the host would put it. All or none:
    one that finds no seat refuses the whole.
    """
    # 1. The GPUs without what the VM itself holds, for it is placed anew.
    states = {
        state.gpu.address: state.without(vm.ref)
        for state in gpu_states(host, inventory, catalog)
        if node is None or state.gpu.numa_node == node
    }
    subject = host.name if node is None else f"{host.name} numa{node}"
    seats: dict[int, PciAddress] = {}
    rejections: list[Rejection] = []
    doubts = [doubt for doubt in (memory_doubt(vm, host, inventory),) if doubt]
    unsure: set[int] = set()
    """Ordinals of the devices whose seats are in doubt."""
    refused: set[tuple[str, PciAddress | None]] = set()
    """Profile and pin of the vGPUs that found no GPU since the last one that did: an equal one has the same reasons."""
    # 2. Device by device; each vGPU that got a GPU takes its slot before the next one is asked.
    for demand in in_order_of_seating(demands):
        seat_or_reasons: PciAddress | tuple[Rejection, ...]
        match demand:
            case WantsVgpu():
                if (demand.profile, demand.pin) in refused:
                    continue
                seat_or_reasons, doubt = _seat_vgpu(demand, vm, states, host, subject, catalog)
                if isinstance(seat_or_reasons, PciAddress):
                    tenant = Tenant(vm.ref, vm.name, demand.profile)
                    states[seat_or_reasons] = states[seat_or_reasons].with_tenants(tenant)
                    refused.clear()
                else:
                    refused.add((demand.profile, demand.pin))
            case WantsDirectPath():
                seat_or_reasons, doubt = _seat_device(demand, vm, host, inventory, node)
            case WantsDynamic():
                alike = (each for each in demands if isinstance(each, WantsDynamic) and _kind(each) == _kind(demand))
                missing = sum(each.ordinal not in seats for each in alike)
                device = find_free_device(demand, vm, seats.values(), host, inventory, node, missing)
                seat_or_reasons, doubt = (device, "") if isinstance(device, PciAddress) else ((device,), "")
            case _:
                assert_never(demand)
        if isinstance(seat_or_reasons, PciAddress):
            seats[demand.ordinal] = seat_or_reasons
            if doubt:
                doubts.append(doubt)
                unsure.add(demand.ordinal)
        else:
            rejections += seat_or_reasons
    # 3. All or none: how many of several were seated stands before the reasons of the single GPUs.
    sure = seats.keys() - unsure
    rejections = [*_too_few(vm, demands, seats.keys(), sure, states.values(), subject, catalog), *rejections]
    return Seating(seats, tuple(dict.fromkeys(rejections)), tuple(dict.fromkeys(doubts)))


def in_order_of_seating(demands: Iterable[Demand]) -> list[Demand]:
    """The demands, those first that fit one GPU only or take one whole, then the others in the VM's order."""
    return sorted(demands, key=lambda demand: (isinstance(demand, WantsVgpu) and demand.pin is None, demand.ordinal))


def _too_few(
    vm: Vm,
    demands: Iterable[Demand],
    seated: Set[int],
    sure: Set[int],
    states: Iterable[GpuState],
    subject: str,
    catalog: Catalog,
) -> Iterator[Rejection]:
    """How many vGPUs of a profile got a GPU, where several were wanted and not all did; and what else takes room.

    `seated` are the ordinals of those that got one, `sure` of those without doubt.
    """
    vgpus = [demand for demand in demands if isinstance(demand, WantsVgpu)]
    there = tuple(states)
    for profile in dict.fromkeys(demand.profile for demand in vgpus):
        wanted = {demand.ordinal for demand in vgpus if demand.profile == profile}
        if len(wanted) > 1 and not wanted <= seated:
            able = [state for state in there if may_run(state.gpu, profile, catalog) is not False]
            more = [range_beside(state, profile, vm.ref, catalog).at_most for state in able]
            found = _from_to(len(wanted & sure), len(wanted & seated), more)
            tenants = [tenant for state in able for tenant in state.tenants]
            others = [awaited.value for awaited in Awaited if any(t.awaited is awaited for t in tenants)]
            if any(t.vm == vm.ref and t.profile != profile for t in tenants):
                others.append("its other vGPUs")
            beside = f" beside {' and '.join(others)}" if others else ""
            yield Rejection(subject, f"room for {profile}{beside}", len(wanted), found, "slots")


def _from_to(least: int, seated: int, more: Sequence[int | None]) -> int | str:
    """How many slots there are: what is sure, and what GPUs on which it is not told what lies where may have beside."""
    known = [room for room in more if room is not None]
    if len(known) < len(more):
        return f"{least} or more"
    most = seated + sum(known)
    return least if most == least else f"{least} to {most}"


def _kind(demand: WantsDynamic) -> tuple[object, ...]:
    return (demand.allowed, demand.label)


def _seat_vgpu(
    demand: WantsVgpu, vm: Vm, states: Mapping[PciAddress, GpuState], host: Host, subject: str, catalog: Catalog
) -> tuple[PciAddress | tuple[Rejection, ...], str]:
    """The first GPU in the host's order that surely has a slot, else the first that may have one.

    A GPU of another model is no reason: a host has many of them, and none of them could help.
    """
    rejections = []
    doubtful: tuple[PciAddress, str] | None = None
    candidates = [state for state in states.values() if demand.pin in (None, state.gpu.address)]
    able = [state for state in candidates if may_run(state.gpu, demand.profile, catalog) is not False]
    if candidates and not able:
        models = ", ".join(sorted({state.gpu.name for state in candidates}))
        return (Rejection(subject, f"has no GPU that runs {demand.profile} (it has: {models})"),), ""
    for state in host_order(able, host, catalog):
        answer = judge_slot(state, demand, vm, host, catalog)
        if answer == "":
            return state.gpu.address, ""
        if isinstance(answer, Rejection):
            rejections.append(answer)
        elif doubtful is None:
            doubtful = (state.gpu.address, f"{host.name} {state.gpu.address}: {answer}")
    if doubtful is not None:
        return doubtful
    nothing = f"has no GPU {demand.pin}, which {vm.name} is pinned to" if demand.pin else "has no GPU"
    return tuple(rejections) or (Rejection(subject, nothing),), ""


def _seat_device(
    demand: WantsDirectPath, vm: Vm, host: Host, inventory: Inventory, node: int | None
) -> tuple[PciAddress | tuple[Rejection, ...], str]:
    gpu = host.gpu(demand.address)
    if node is not None and gpu is not None and gpu.numa_node != node:
        rule = f"is not on NUMA node {node}"
        return (Rejection(f"{host.name} {demand.address}", rule, node, _node(gpu.numa_node)),), ""
    answer = judge_device(demand, vm, host, inventory)
    if isinstance(answer, Rejection):
        return (answer,), ""
    return demand.address, f"{host.name} {demand.address}: {answer}" if answer else ""


def _node(number: int | None) -> int | str:
    return "unknown" if number is None else number
