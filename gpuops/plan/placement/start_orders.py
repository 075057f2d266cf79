"""Whether VMs that start on one host at any time, in any order, all find their vGPUs.

Problem: the host puts a vGPU on the first GPU that has room for it, and vCenter does not show where on a GPU the vGPUs
start. So each start may end in several ways, and each order of starts in others.
Choice: all ways are followed, and ways that leave the same vGPUs on the GPUs count as one. VMs with the same demands
are one kind, so that a hundred equal desktops are a count. Beyond `_MAX_WAYS` ways the result is reported as unproven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.occupancy import GpuState, Tenant, with_expected
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm, pins_of
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.gpu_filters import judge_slots
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.vm_demand import WantsVgpu, demands_of

_MAX_WAYS: Final = 1000
"""Ways that are followed before the search is given up: a quarter of a second or so."""

_STARTS_PER_WAY: Final = 8
"""Starts of one vGPU on one GPU that are tried for each way: eight vGPUs on eight GPUs may lie in thousands of ways."""

States = tuple[GpuState, ...]
Kind = tuple[WantsVgpu, ...]


@dataclass(slots=True)
class _Work:
    """How many starts of one vGPU on one GPU may still be tried. Counted, so that every machine gives one answer."""

    remaining: int

    def spend(self) -> bool:
        """Count one more start; False if the limit is reached."""
        self.remaining -= 1
        return self.remaining >= 0


@dataclass(frozen=True, slots=True)
class LateVm:
    """A VM that may find no GPU, and the VMs that come back before it in that case; `unproven` = not all orders were
    tried."""

    vm: Vm
    after: tuple[Vm, ...] = ()
    unproven: bool = False


def possible_starts(vm: Vm, states: States, host: Host, catalog: Catalog) -> tuple[tuple[States, ...], bool]:
    """Return every way in which the VM's vGPUs may be placed, and whether the VM starts for certain; ((), False) if
    there are more ways than may be followed."""
    work = _Work(_STARTS_PER_WAY * _MAX_WAYS)
    ways_and_certainty = _start_ways(kind_of(vm), vm, states, host, catalog, key=key_of, any_gpu=False, work=work)
    if ways_and_certainty is None:
        return (), False
    ways, certain = ways_and_certainty
    return tuple(ways.values()), certain


def find_late_vm(
    coming_vms: Sequence[Vm],
    states: States,
    host: Host,
    catalog: Catalog,
    max_ways: int | None = None,
    *,
    any_gpu: bool = False,
) -> LateVm | None:
    """Return a VM that may find no GPU if these VMs come to the GPUs in any order; None if all always find one.

    At most `max_ways` ways (by default `_MAX_WAYS`) are followed; with more ways the result is unproven. `any_gpu`: the
    host may choose any GPU with room, not only the one that follows from its policy and the addresses. GPUs that are
    alike, and that no vGPU is pinned to, then count as the same.

    Example: an empty same-size GPU, two VMs with 8q and one with 24q. After an 8q the GPU takes only 8q, so the VM with
    24q is late in the order 8q, 24q, 8q.
    """
    vms_by_kind: dict[Kind, list[Vm]] = {}
    for vm in coming_vms:
        vms_by_kind.setdefault(kind_of(vm), []).append(vm)
    pins = {demand.pin for kind in vms_by_kind for demand in kind}
    # What distinguishes a GPU from others: its address, or what equal GPUs have in common.
    identity_of: dict[PciAddress, object] = {
        state.gpu.address: state.placement_key("") if any_gpu and state.gpu.address not in pins else state.gpu.address
        for state in states
    }
    max_ways = _MAX_WAYS if max_ways is None else max_ways
    work = _Work(_STARTS_PER_WAY * max_ways)

    def loads(states: States) -> object:
        """Return a key that is equal for states that differ only in which of several like GPUs has which vGPUs."""
        return frozenset(Counter((identity_of[state.gpu.address], *_load(state)) for state in states).items())

    # A depth-first search. A node is the content of the GPUs and how many VMs of each kind have started; VMs of one
    # kind are interchangeable, so their order among each other does not matter.
    open_nodes = [(states, Counter[Kind]())]
    visited: set[object] = set()
    while open_nodes:
        states, started = open_nodes.pop()
        for kind, vms in vms_by_kind.items():
            if started[kind] == len(vms):
                continue
            vm = vms[started[kind]]
            ways_and_certainty = _start_ways(kind, vm, states, host, catalog, key=loads, any_gpu=any_gpu, work=work)
            if ways_and_certainty is None:
                # The search is given up. No VM is known to be late, and the last one stands for all.
                return LateVm(coming_vms[-1], unproven=True)
            ways, certain = ways_and_certainty
            if not certain:
                earlier_vms = (vm for kind, vms in vms_by_kind.items() for vm in vms[: started[kind]])
                return LateVm(vm, tuple(earlier_vms))
            now_started = started + Counter([kind])
            counts = tuple(now_started[other_kind] for other_kind in vms_by_kind)
            new_ways = {(key, counts): way for key, way in ways.items() if (key, counts) not in visited}
            visited.update(new_ways)
            open_nodes += [(way, now_started) for way in new_ways.values()]
        if len(visited) > max_ways:
            return LateVm(coming_vms[-1], unproven=True)
    return None


def kind_of(vm: Vm) -> Kind:
    """Return the vGPU demands of the VM in the order of seating. VMs with equal demands are interchangeable."""
    demands = demands_of(vm.devices or (), pins_of(vm))
    return tuple(demand for demand in in_order_of_seating(demands) if isinstance(demand, WantsVgpu))


def key_of(states: States) -> object:
    """Return what the next start depends on: the vGPUs on each GPU, and how many VMs have them."""
    return tuple(map(_load, states))


def _load(state: GpuState) -> tuple[object, int]:
    """Return the vGPUs on the GPU, each as (profile, start), and how many VMs have them."""
    return tuple(sorted((tenant.profile, str(tenant.start)) for tenant in state.tenants)), len(state.vm_names)


def _start_ways(
    kind: Kind,
    vm: Vm,
    states: States,
    host: Host,
    catalog: Catalog,
    *,
    key: Callable[[States], object],
    any_gpu: bool,
    work: _Work,
) -> tuple[Mapping[object, States], bool] | None:
    """Return every way in which the VM's vGPUs may be placed, by `key`, and whether all of them find room; None if
    there are more ways than may be followed. Ways with an equal `key` count as one."""
    certain = True
    ways: dict[object, States] = {(): states}  # one way so far: none of the VM's vGPUs is placed
    for demand in kind:
        tenant = Tenant(vm.ref, vm.name, demand.profile)
        longer_ways: dict[object, States] = {}
        for way in ways.values():
            addresses, sure = _choosable_gpus(demand, vm, way, host, catalog, any_gpu)
            certain = certain and sure
            for address in addresses:
                if not work.spend():
                    return None
                # If the host may choose any GPU, it also chooses where on the GPU the vGPU starts.
                longer_way = _with_vgpu(way, address, tenant, None if any_gpu else catalog)
                longer_ways.setdefault(key(longer_way), longer_way)
        ways = longer_ways
    return ways, certain


def _with_vgpu(states: States, address: PciAddress, tenant: Tenant, catalog: Catalog | None) -> States:
    """Add the vGPU to the GPU at `address`, where it is expected to start; without a catalogue, at an unknown place."""
    states_with_vgpu = []
    for state in states:
        if state.gpu.address == address:
            state = state.with_tenants(tenant) if catalog is None else with_expected(state, tenant, catalog)
        states_with_vgpu.append(state)
    return tuple(states_with_vgpu)


def _choosable_gpus(
    demand: WantsVgpu, vm: Vm, states: States, host: Host, catalog: Catalog, any_gpu: bool
) -> tuple[list[PciAddress], bool]:
    """Return the GPUs that the host may choose for the vGPU, and whether one of them certainly has room.

    With `any_gpu` these are all GPUs that may have room. Otherwise the list ends with the first that
    certainly has."""
    possible_gpus: list[PciAddress] = []
    certain = False
    allowed_states = [state for state in states if demand.pin in (None, state.gpu.address)]
    for state, answer in judge_slots(allowed_states, demand.profile, vm, host, catalog):
        if not isinstance(answer, Rejection):
            possible_gpus.append(state.gpu.address)
        certain = certain or answer == ""
        if certain and not any_gpu:
            break
    return possible_gpus, certain
