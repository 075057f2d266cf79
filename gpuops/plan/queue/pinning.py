"""How the host is brought to give each new VM the GPU that its place counts on.

Problem: the host chooses the GPU of a vGPU at power-on, by its assignment policy and by what runs then, so the same VMs
started in another order may end on other GPUs, and the last one on none.
Choice: per host, the first that is proven. Every order ends well, because all that may compete have one size. Each vGPU
is pinned to its GPU, and on every GPU what is meant for it fits in any order. Every order was followed, of the pinned
VMs and then of them as they are, on any GPU with room that the host may choose, and none ends badly; as far as `_WAYS`
goes, shared among the hosts. Else the VMs are started in the order of the answer, which is how their places were found;
of pinned ones only those on GPUs where an order may end badly. Where slots of the cluster are reserved for others, it
also matters which GPU the host takes if every VM finds one: they are pinned, or started in the order of the answer.
Source: NVIDIA vGPU docs, "vGPU types" (one size per GPU in same-size mode); see `placement/wanted.py` for the pin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import GpuState, gpu_states, may_run
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, VgpuDevice, Vm, pins_of
from gpuops.plan.core.device_numbers import with_passthru_numbers
from gpuops.plan.placement.reserved import is_reserved_in
from gpuops.plan.placement.start_orders import too_late
from gpuops.plan.placement.suspended_vms import Claim
from gpuops.plan.placement.wanted import PinPolicy
from gpuops.plan.queue.one_workload import Placed, Steering
from gpuops.plan.queue.workload_vm import running


def steered(
    placed: Sequence[Placed], waiting: Sequence[Claim], pin: PinPolicy, inventory: Inventory, catalog: Catalog
) -> tuple[Placed, ...]:
    """The same places, each with how it is come by. `waiting` are suspended VMs that come back among them.

    `inventory` is the snapshot as vCenter shows it, without the claims.
    """
    groups: dict[tuple[str, str], list[Placed]] = {}
    for each in placed:
        groups.setdefault((each.placement.host.ref, competing(each.vm, catalog)), []).append(each)
    found: dict[str, Placed] = {}
    ways = max(_FEW_WAYS, _WAYS // max(1, len(groups)))
    for (ref, model), group in groups.items():
        back = [claim.vm for claim in waiting if claim.host.ref == ref and not claim.lost]
        rivals = tuple(vm for vm in back if vm.devices and competing(vm, catalog) == model)
        host = inventory.hosts[ref]
        there = tuple(state for state in gpu_states(host, inventory, catalog) if _may_run(state, group, catalog))
        is_reserved = is_reserved_in(host, inventory)
        rivalry = _Rivalry(tuple(group), rivals, there, host, ways, catalog, is_reserved)
        found |= {each.workload.name: each for each in rivalry.settled(pin)}
    return tuple(found[each.workload.name] for each in placed)


@dataclass(frozen=True, slots=True)
class _Rivalry:
    """Those that may take a GPU from each other: new VMs of one GPU model on one host, and suspended ones of it."""

    new: tuple[Placed, ...]
    back: tuple[Vm, ...]
    states: tuple[GpuState, ...]
    host: Host
    ways: int
    """In which starts may end that are followed."""
    catalog: Catalog
    is_reserved: bool
    """Whether slots of the cluster are reserved for others: then it matters which GPU the host takes, even where every
    VM finds one, for the slots that another GPU has left may be those that are reserved."""

    def settled(self, pin: PinPolicy) -> tuple[Placed, ...]:
        if len(self.new) == 1 and not self.back:
            return tuple(replace(each, steering=_how(each)) for each in self.new)
        if not self.is_reserved and self._any_whole() and self._any_vgpu():
            return tuple(replace(each, steering=Steering.ANY_ORDER) for each in self.new)
        pinned = self.new if pin is PinPolicy.NEVER else tuple(map(_pinned, self.new))
        if not (self.is_reserved and any(map(_unpinned, pinned))) and (
            (not self.back and self._any_pinned(pinned)) or self._any_followed(pinned)
        ):
            return tuple(replace(each, steering=_how(each)) for each in pinned)
        if not self.is_reserved and pin is not PinPolicy.NEVER and self._any_followed(self.new):
            return tuple(replace(each, steering=_how(each)) for each in self.new)
        return tuple(self._in_turn(pinned))

    def _in_turn(self, new: Sequence[Placed]) -> Iterator[Placed]:
        """In the order of the answer; not those that are alone in it with vGPUs that any order leaves room for.

        Where all are pinned and nobody else comes, no GPU takes anything from another one.
        """
        apart = not self.back and self._any_whole() and not any(map(_unpinned, new))
        meant = _meant(new)
        tight = {s.gpu.address for s in self.states if not self._fit(s, meant.get(s.gpu.address, []))}
        for each in new:
            anyhow = apart and tight.isdisjoint(each.placement.seats.values())
            yield replace(each, steering=_how(each) if anyhow else Steering.LISTED_ORDER)

    def _any_whole(self) -> bool:
        """Whether whole devices given by kind do not take what another is meant to have."""
        kinds = {
            (device.allowed, device.label)
            for vm in (*(each.vm for each in self.new), *self.back)
            for device in vm.devices or ()
            if isinstance(device, DynamicDevice)
        }
        return len(kinds) + any(each.workload.device for each in self.new) <= 1

    def _any_vgpu(self) -> bool:
        """Whether all vGPUs are alike, and together have room: then any GPU that the host gives to any of them will do.

        Alike is one size, with one count per GPU, and the same starts where a mode has any: such vGPUs never lie across
        each other's places, whatever else runs there already.
        """
        if any(each.placement.pins or each.workload.device_group is not None for each in self.new):
            return False
        if any(pins_of(vm) for vm in self.back):
            return False
        wanted = [name for vm in (*(each.vm for each in self.new), *self.back) for name in vm.profiles]
        if len({_shape(name, self.catalog) for name in wanted}) > 1:
            return False
        room = sum(
            free_slots(s.gpu, s.holders, name, self.catalog, s.starts).at_least
            for s in self.states
            for name in wanted[:1]
        )
        return room >= len(wanted)

    def _any_followed(self, new: Sequence[Placed]) -> bool:
        """Whether all find their vGPUs in every order, on whichever GPU with room the host starts each; False = not
        proven.

        Members of a device group are given joined GPUs, which nobody here can foresee.
        """
        if not self._any_whole() or any(each.workload.device_group is not None for each in new):
            return False
        coming = [*(running(each.vm, each.placement, each.workload.numa) for each in new), *self.back]
        return too_late(coming, self.states, self.host, self.catalog, self.ways, whichever=True) is None

    def _any_pinned(self, pinned: Sequence[Placed]) -> bool:
        """Whether on each GPU every vGPU meant for it fits beside all the others meant for it, however they lie."""
        if not self._any_whole() or any(_unpinned(each) for each in pinned):
            return False
        meant = _meant(pinned)
        return all(self._fit(state, meant.get(state.gpu.address, [])) for state in self.states)

    def _fit(self, state: GpuState, meant: Sequence[str]) -> bool:
        if state.holders is None:
            return not meant
        others = [(*state.holders, *meant[:n], *meant[n + 1 :]) for n in range(len(meant))]
        unknown = (None,) * (len(meant) - 1)
        return all(
            free_slots(state.gpu, beside, name, self.catalog, (*state.starts, *unknown)).at_least
            for beside, name in zip(others, meant, strict=True)
        )


_WAYS: Final = 4000
"""In which starts may end that are followed for one plan: about a second."""
_FEW_WAYS: Final = 20


def competing(vm: Vm, catalog: Catalog) -> str:
    """The GPU model whose GPUs it may take from others on its host; whole GPUs are one kind."""
    return next((_model(name, catalog) for name in vm.profiles), "whole")


def _shape(profile: str, catalog: Catalog) -> tuple[object, ...]:
    facts = catalog.profile(profile)
    if facts is None:
        return (profile,)
    return (facts.framebuffer_mib, facts.max_per_gpu, facts.placement_ids_mixed, facts.mig_profile)


def _model(profile: str, catalog: Catalog) -> str:
    board = catalog.board_of(profile)
    return board.key if board else "unknown"


def _may_run(state: GpuState, group: Sequence[Placed], catalog: Catalog) -> bool:
    names = {name for each in group for name in each.vm.profiles}
    return any(may_run(state.gpu, name, catalog) is not False for name in names)


def _pinned(placed: Placed) -> Placed:
    """Each vGPU bound to its seat; members of a device group are the host's to choose."""
    if placed.workload.device_group is not None:
        return placed
    placement = placed.placement
    pins = {
        ordinal: placement.seats[ordinal]
        for ordinal, device in with_passthru_numbers(placed.vm.devices or ())
        if isinstance(device, VgpuDevice)
    }
    return replace(placed, placement=replace(placement, pins=pins))


def _meant(placed: Sequence[Placed]) -> dict[PciAddress, list[str]]:
    """The profiles of the vGPUs that are meant for each GPU."""
    meant: dict[PciAddress, list[str]] = {}
    for each in placed:
        for ordinal, device in with_passthru_numbers(each.vm.devices or ()):
            if isinstance(device, VgpuDevice):
                meant.setdefault(each.placement.seats[ordinal], []).append(device.profile)
    return meant


def _unpinned(placed: Placed) -> bool:
    return any(
        isinstance(device, VgpuDevice) and ordinal not in placed.placement.pins
        for ordinal, device in with_passthru_numbers(placed.vm.devices or ())
    )


def _how(placed: Placed) -> Steering:
    return Steering.PINNED if placed.placement.pins else Steering.ANY_ORDER
