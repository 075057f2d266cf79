"""Plans with where hosts are expected to start vGPUs on GPUs that are empty now, and with the order of starting.

`place_all.py` tries this where what is certain in any way to lie leaves something without a place. The VMs are bound to
their GPUs and started in turn, so that what a GPU holds at each start is known; where the host lets a vGPU start is its
documented rule (`advise/expected_start.py`), and of Ampere an expectation.

Example: a 3g instance goes to slice 4 of an H100, and four 1g fit beside it; wherever it may lie, only three do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import GpuState, Tenant, gpu_states
from gpuops.advise.room import room_for
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.queue.batch.request_kinds import RequestKind

_WITH_STARTS = (VgpuMode.MULTI_INSTANCE, VgpuMode.MIXED_SIZE)


def expecting_starts(inventory: Inventory, claimed: Inventory) -> Inventory:
    """Return the snapshot in which GPUs that are empty, also of claims, count as GPUs whose vGPUs are known.

    `claimed` is the same snapshot with the claims of suspended VMs.
    """
    hosts = []
    for host in inventory.hosts.values():
        pairs = list(zip(host.gpus, claimed.hosts[host.ref].gpus, strict=True))
        if any(_is_empty(gpu) for pair in pairs for gpu in pair):
            hosts.append(replace(host, gpus=tuple(_as_empty(gpu, with_claims) for gpu, with_claims in pairs)))
    return inventory.with_hosts(hosts) if hosts else inventory


def _as_empty(gpu: PhysicalGpu, claimed: PhysicalGpu) -> PhysicalGpu:
    return replace(gpu, vgpus=()) if _is_empty(gpu) and _is_empty(claimed) else gpu


def _is_empty(gpu: PhysicalGpu) -> bool:
    return gpu.vms == () and gpu.vgpus is None and gpu.vgpu_mode in _WITH_STARTS


def order_of_starting(
    kinds: Sequence[RequestKind],
    gpus: Sequence[tuple[PciAddress, ...]],
    host: Host,
    inventory: Inventory,
    catalog: Catalog,
) -> list[int]:
    """Return the numbers of these VMs, planned for these GPUs, in an order of starting in which they all fit.

    The largest come first. VMs on GPUs where that fails come last, and smallest first.
    """
    states = {state.gpu.address: state for state in gpu_states(host, inventory, catalog)}
    profiles_by_gpu: dict[PciAddress, list[str]] = {}
    for kind, seats in zip(kinds, gpus, strict=True):
        if isinstance(kind.device, str):
            for seat in seats:
                profiles_by_gpu.setdefault(seat, []).append(kind.device)
    reverse = {
        address
        for address, profiles in profiles_by_gpu.items()
        if states[address].gpu.vgpus is not None
        and not _start(states[address], profiles, catalog)
        and _start(states[address], profiles[::-1], catalog)
    }
    last = [number for number, seats in enumerate(gpus) if seats and reverse.issuperset(seats)]
    return [*(number for number in range(len(gpus)) if number not in set(last)), *last[::-1]]


def _start(state: GpuState, profiles: Sequence[str], catalog: Catalog) -> bool:
    """Whether vGPUs of these profiles start one after another."""
    for profile in profiles:
        if not room_for(state, profile, catalog).at_least:
            return False
        state = with_expected(state, Tenant("", "", profile), catalog)
    return True
