"""Whether VMs that start on one host, each when it likes, all find their vGPUs, whoever comes first.

Problem: the host puts a vGPU on the first GPU that has room for it, and where on a GPU the vGPUs lie vCenter does not
tell, so each start may end in several ways, and each order in others.
Choice: all ways are followed, told apart only by what lies on which GPU; VMs that ask for the same are one kind, so a
hundred desktops are a count and not a hundred names. Beyond `_MOST` ways nothing is proven, and that is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import GpuState, Tenant
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm, pins_of
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.gpu_filters import judge_slots
from gpuops.plan.placement.seating import in_order_of_seating
from gpuops.plan.placement.wanted import WantsVgpu, demands_of

_MOST: Final = 1000
"""Ways that are followed before the question is given up: a quarter of a second or so."""

States = tuple[GpuState, ...]
Kind = tuple[WantsVgpu, ...]


@dataclass(frozen=True, slots=True)
class Late:
    """A VM that may find no GPU, and those that came back before it then; `unproven` = nobody followed all orders."""

    vm: Vm
    after: tuple[Vm, ...] = ()
    unproven: bool = False


def starts(vm: Vm, states: States, host: Host, catalog: Catalog) -> tuple[tuple[States, ...], bool]:
    """Every way in which its vGPUs may come to lie, and whether it starts for certain."""
    return _started(kind_of(vm), vm, states, host, catalog, whichever=False)


def too_late(
    coming: Sequence[Vm],
    states: States,
    host: Host,
    catalog: Catalog,
    most: int | None = None,
    *,
    whichever: bool = False,
) -> Late | None:
    """The VM among those that come to these GPUs, in any order, that may find none left; None = there is none.

    Not more than `most` ways are followed, or `_MOST`. `whichever`: the host may choose any GPU that has room, not the
    one that its policy and the addresses say: then GPUs that are alike, and that nobody is pinned to, are not told
    apart.
    """
    kinds: dict[Kind, list[Vm]] = {}
    for vm in coming:
        kinds.setdefault(kind_of(vm), []).append(vm)
    pins = {demand.pin for kind in kinds for demand in kind}
    gpus: dict[PciAddress, object] = {
        state.gpu.address: state.alike("") if whichever and state.gpu.address not in pins else state.gpu.address
        for state in states
    }
    todo = [(states, Counter[Kind]())]
    seen: set[object] = set()
    while todo:
        states, came = todo.pop()
        for kind, vms in kinds.items():
            if came[kind] == len(vms):
                continue
            vm = vms[came[kind]]
            found, certain = _started(kind, vm, states, host, catalog, whichever)
            if not certain:
                return Late(vm, tuple(_first(kinds, came)))
            after = came + Counter([kind])
            for each in found:
                key = _key(each, after, kinds, gpus)
                if key not in seen:
                    seen.add(key)
                    todo.append((each, after))
        if len(seen) > (_MOST if most is None else most):
            return Late(coming[-1], unproven=True)
    return None


def kind_of(vm: Vm) -> Kind:
    """What decides where its vGPUs may lie: VMs of one kind are as good as each other."""
    demands = demands_of(vm.devices or (), pins_of(vm))
    return tuple(demand for demand in in_order_of_seating(demands) if isinstance(demand, WantsVgpu))


def key_of(states: States) -> object:
    """What the next start depends on: the vGPUs on each GPU, and how many VMs those are."""
    return tuple(map(_load, states))


def _load(state: GpuState) -> tuple[object, int]:
    return tuple(sorted((tenant.profile, str(tenant.start)) for tenant in state.tenants)), len(state.vm_names)


def _started(
    kind: Kind, vm: Vm, states: States, host: Host, catalog: Catalog, whichever: bool
) -> tuple[tuple[States, ...], bool]:
    certain = True
    worlds: dict[object, States] = {(): states}
    for demand in kind:
        after: dict[object, States] = {}
        for each in worlds.values():
            gpus, sure = _may_choose(demand, vm, each, host, catalog, whichever)
            certain = certain and sure
            for gpu in gpus:
                tenant = Tenant(vm.ref, vm.name, demand.profile)
                # Whichever GPU it is, where on it the vGPU starts is the host's choice too.
                then = _with(each, gpu, tenant, None if whichever else catalog)
                after.setdefault(key_of(then), then)
        worlds = after
    return tuple(worlds.values()), certain


def _may_choose(
    demand: WantsVgpu, vm: Vm, states: States, host: Host, catalog: Catalog, whichever: bool
) -> tuple[list[PciAddress], bool]:
    """The GPUs the host may give it: all that may have room, or these up to the first that surely has; and whether one
    has."""
    found: list[PciAddress] = []
    certain = False
    meant = [state for state in states if demand.pin in (None, state.gpu.address)]
    for state, answer in judge_slots(meant, demand.profile, vm, host, catalog):
        if not isinstance(answer, Rejection):
            found.append(state.gpu.address)
        certain = certain or answer == ""
        if certain and not whichever:
            break
    return found, certain


def _with(states: States, address: PciAddress, tenant: Tenant, catalog: Catalog | None) -> States:
    """With the vGPU where it is expected to start, or, without a catalogue, nobody knows where on its GPU."""

    def after(state: GpuState) -> GpuState:
        return state.with_tenants(tenant) if catalog is None else with_expected(state, tenant, catalog)

    return tuple(after(state) if state.gpu.address == address else state for state in states)


def _key(
    states: States, came: Counter[Kind], kinds: Iterable[Kind], gpus: Mapping[PciAddress, object]
) -> tuple[object, ...]:
    """Equal for ways that go on alike; `gpus` is what tells GPUs apart before anybody came."""
    there = Counter((gpus[state.gpu.address], *_load(state)) for state in states)
    return (frozenset(there.items()), tuple(came[kind] for kind in kinds))


def _first(kinds: dict[Kind, list[Vm]], came: Counter[Kind]) -> Iterator[Vm]:
    for kind, vms in kinds.items():
        yield from vms[: came[kind]]
