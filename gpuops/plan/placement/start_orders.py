"""Whether VMs that start on one host, each when it likes, all find their vGPUs, whoever comes first.

Problem: the host puts a vGPU on the first GPU that has room for it, and where on a GPU the vGPUs lie vCenter does not
tell, so each start may end in several ways, and each order in others.
Choice: all ways are followed, told apart only by what lies on which GPU; VMs that ask for the same are one kind, so a
hundred desktops are a count and not a hundred names. Beyond `_MOST` ways nothing is proven, and that is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_STARTS_A_WAY: Final = 8
"""Starts of one vGPU on one GPU that are tried for each way: eight vGPUs on eight GPUs may lie in thousands of ways."""

States = tuple[GpuState, ...]
Kind = tuple[WantsVgpu, ...]


@dataclass(slots=True)
class _Work:
    """How many starts of one vGPU on one GPU may still be tried. Counted, so that every machine gives one answer."""

    remaining: int

    def spend(self) -> bool:
        """Count one more; False = there is none left."""
        self.remaining -= 1
        return self.remaining >= 0


@dataclass(frozen=True, slots=True)
class Late:
    """A VM that may find no GPU, and those that came back before it then; `unproven` = nobody followed all orders."""

    vm: Vm
    after: tuple[Vm, ...] = ()
    unproven: bool = False


def starts(vm: Vm, states: States, host: Host, catalog: Catalog) -> tuple[tuple[States, ...], bool]:
    """Every way in which its vGPUs may come to lie, and whether it starts for certain; of more ways than are followed
    none, and not for certain."""
    work = _Work(_STARTS_A_WAY * _MOST)
    followed = _started(kind_of(vm), vm, states, host, catalog, key=key_of, whichever=False, work=work)
    return ((), False) if followed is None else (tuple(followed[0].values()), followed[1])


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

    Not more than `most` ways are followed, or `_MOST`, and what comes of more is not proven. `whichever`: the host may
    choose any GPU that has room, not the one that its policy and the addresses say: then GPUs that are alike, and that
    nobody is pinned to, are not told apart.
    """
    kinds: dict[Kind, list[Vm]] = {}
    for vm in coming:
        kinds.setdefault(kind_of(vm), []).append(vm)
    pins = {demand.pin for kind in kinds for demand in kind}
    gpus: dict[PciAddress, object] = {
        state.gpu.address: state.alike("") if whichever and state.gpu.address not in pins else state.gpu.address
        for state in states
    }
    most = _MOST if most is None else most
    work = _Work(_STARTS_A_WAY * most)

    def loads(states: States) -> object:
        """Equal for states that differ in which of alike GPUs has what."""
        return frozenset(Counter((gpus[state.gpu.address], *_load(state)) for state in states).items())

    todo = [(states, Counter[Kind]())]
    seen: set[object] = set()
    while todo:
        states, came = todo.pop()
        for kind, vms in kinds.items():
            if came[kind] == len(vms):
                continue
            vm = vms[came[kind]]
            followed = _started(kind, vm, states, host, catalog, key=loads, whichever=whichever, work=work)
            if followed is None:
                return Late(coming[-1], unproven=True)
            ways, certain = followed
            if not certain:
                return Late(vm, tuple(_first(kinds, came)))
            after = came + Counter([kind])
            counts = tuple(after[each] for each in kinds)
            new = {(key, counts): way for key, way in ways.items() if (key, counts) not in seen}
            seen.update(new)
            todo += [(way, after) for way in new.values()]
        if len(seen) > most:
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
    kind: Kind,
    vm: Vm,
    states: States,
    host: Host,
    catalog: Catalog,
    *,
    key: Callable[[States], object],
    whichever: bool,
    work: _Work,
) -> tuple[Mapping[object, States], bool] | None:
    """Every way in which the vGPUs of the VM may come to lie, by `key`, which tells apart what matters, and whether all
    of them find room; None = there are more ways than may be followed."""
    certain = True
    worlds: dict[object, States] = {(): states}
    for demand in kind:
        after: dict[object, States] = {}
        for each in worlds.values():
            gpus, sure = _may_choose(demand, vm, each, host, catalog, whichever)
            certain = certain and sure
            for gpu in gpus:
                if not work.spend():
                    return None
                tenant = Tenant(vm.ref, vm.name, demand.profile)
                # Whichever GPU it is, where on it the vGPU starts is the host's choice too.
                then = _with(each, gpu, tenant, None if whichever else catalog)
                after.setdefault(key(then), then)
        worlds = after
    return worlds, certain


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


def _first(kinds: dict[Kind, list[Vm]], came: Counter[Kind]) -> Iterator[Vm]:
    for kind, vms in kinds.items():
        yield from vms[: came[kind]]
