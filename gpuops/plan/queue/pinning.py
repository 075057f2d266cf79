"""How the host is brought to give each new VM the GPU that its place counts on.

Problem: the host chooses the GPU of a vGPU at power-on, by its assignment policy and by what runs then, so the same VMs
started in another order may end on other GPUs, and the last one on none.
Choice: per host, the first that is proven. Every order ends well, because all that may compete have one size. Each vGPU
is pinned to its GPU, and on every GPU what is meant for it fits in any order. Every order was followed, of the pinned
VMs and then of them as they are, on any GPU with room that the host may choose, and none ends badly; as far as `_WAYS`
goes, shared among the hosts. Else the VMs are started in the order of the answer, which is how their places were found;
of pinned ones only those on GPUs where an order may end badly. Where slots of the cluster are reserved for others, it
also matters which GPU the host takes if every VM finds one: they are pinned, or started in the order of the answer.
Source: NVIDIA vGPU docs, "vGPU types" (one size per GPU in same-size mode); see `placement/vm_demand.py` for the pin.
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
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.placement.reserved_slots import is_reserved_in
from gpuops.plan.placement.start_orders import too_late
from gpuops.plan.placement.suspended_vms import Claim
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_workload import Placed, Steering
from gpuops.plan.queue.workload import running


def steer(
    placed: Sequence[Placed], waiting: Sequence[Claim], pin: PinPolicy, inventory: Inventory, catalog: Catalog
) -> tuple[Placed, ...]:
    """Return the same places, each with its steering. `waiting`: suspended VMs that come back to these hosts.

    `inventory` is the snapshot as vCenter shows it, without the claims.
    """
    groups: dict[tuple[str, str], list[Placed]] = {}
    for placed_vm in placed:
        groups.setdefault((placed_vm.placement.host.ref, competing(placed_vm.vm, catalog)), []).append(placed_vm)
    steered_by_name: dict[str, Placed] = {}
    ways = max(_FEW_WAYS, _WAYS // max(1, len(groups)))
    for (ref, model), group in groups.items():
        returning = [claim.vm for claim in waiting if claim.host.ref == ref and not claim.lost]
        rivals = tuple(vm for vm in returning if vm.devices and competing(vm, catalog) == model)
        host = inventory.hosts[ref]
        host_states = tuple(state for state in gpu_states(host, inventory, catalog) if _may_run(state, group, catalog))
        is_reserved = is_reserved_in(host, inventory)
        rivalry = _Rivalry(tuple(group), rivals, host_states, host, ways, catalog, is_reserved)
        steered_by_name |= {placed_vm.workload.name: placed_vm for placed_vm in rivalry.with_steering(pin)}
    return tuple(steered_by_name[placed_vm.workload.name] for placed_vm in placed)


@dataclass(frozen=True, slots=True)
class _Rivalry:
    """VMs that may take GPUs from each other: new and suspended VMs of one GPU model on one host."""

    new: tuple[Placed, ...]
    back: tuple[Vm, ...]
    states: tuple[GpuState, ...]
    host: Host
    ways: int
    """How many ways in which the starts may end are followed at most."""
    catalog: Catalog
    is_reserved: bool
    """Whether slots of the cluster are reserved for others: then it matters which GPU the host takes, even where every
    VM finds one, for the slots that another GPU has left may be those that are reserved."""

    def with_steering(self, pin: PinPolicy) -> tuple[Placed, ...]:
        if len(self.new) == 1 and not self.back:
            return tuple(replace(placed_vm, steering=_steering_of(placed_vm)) for placed_vm in self.new)
        if not self.is_reserved and self._any_whole() and self._any_vgpu():
            return tuple(replace(placed_vm, steering=Steering.ANY_ORDER) for placed_vm in self.new)
        with_pins = self.new if pin is PinPolicy.NEVER else tuple(map(_pin_all, self.new))
        if not (self.is_reserved and any(map(_has_unpinned, with_pins))) and (
            (not self.back and self._any_pinned(with_pins)) or self._any_followed(with_pins)
        ):
            return tuple(replace(placed_vm, steering=_steering_of(placed_vm)) for placed_vm in with_pins)
        if not self.is_reserved and pin is not PinPolicy.NEVER and self._any_followed(self.new):
            return tuple(replace(placed_vm, steering=_steering_of(placed_vm)) for placed_vm in self.new)
        return tuple(self._in_turn(with_pins))

    def _in_turn(self, new: Sequence[Placed]) -> Iterator[Placed]:
        """In the order of the answer; not those that are alone in it with vGPUs that any order leaves room for.

        If all are pinned and no other VM comes, no VM on one GPU takes anything from another GPU.
        """
        apart = not self.back and self._any_whole() and not any(map(_has_unpinned, new))
        profiles_by_gpu = _profiles_by_gpu(new)
        tight = {s.gpu.address for s in self.states if not self._fit(s, profiles_by_gpu.get(s.gpu.address, []))}
        for placed_vm in new:
            in_any_order = apart and tight.isdisjoint(placed_vm.placement.seats.values())
            yield replace(placed_vm, steering=_steering_of(placed_vm) if in_any_order else Steering.LISTED_ORDER)

    def _any_whole(self) -> bool:
        """Whether whole devices requested by type cannot take a device that is meant for another VM."""
        kinds = {
            (device.allowed, device.label)
            for vm in (*(placed_vm.vm for placed_vm in self.new), *self.back)
            for device in vm.devices or ()
            if isinstance(device, DynamicDevice)
        }
        return len(kinds) + any(placed_vm.workload.device for placed_vm in self.new) <= 1

    def _any_vgpu(self) -> bool:
        """Whether all vGPUs are alike, and together have room: then any GPU that the host gives to any of them will do.

        Alike is one size, with one count per GPU, and the same starts where a mode has any: such vGPUs never lie across
        each other's places, whatever else runs there already.
        """
        if any(placed_vm.placement.pins or placed_vm.workload.device_group is not None for placed_vm in self.new):
            return False
        if any(pins_of(vm) for vm in self.back):
            return False
        profiles = [name for vm in (*(placed_vm.vm for placed_vm in self.new), *self.back) for name in vm.profiles]
        if len({_shape(name, self.catalog) for name in profiles}) > 1:
            return False
        room = sum(
            free_slots(s.gpu, s.holders, name, self.catalog, s.starts).at_least
            for s in self.states
            for name in profiles[:1]
        )
        return room >= len(profiles)

    def _any_followed(self, new: Sequence[Placed]) -> bool:
        """Whether all find their vGPUs in every order, on whichever GPU with room the host starts each; False = not
        proven.

        Members of a device group get joined GPUs, which cannot be predicted here.
        """
        if not self._any_whole() or any(placed_vm.workload.device_group is not None for placed_vm in new):
            return False
        coming = [
            *(running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa) for placed_vm in new),
            *self.back,
        ]
        return too_late(coming, self.states, self.host, self.catalog, self.ways, whichever=True) is None

    def _any_pinned(self, pinned: Sequence[Placed]) -> bool:
        """Whether on each GPU every vGPU meant for it fits beside all the others meant for it, however they lie."""
        if not self._any_whole() or any(_has_unpinned(placed_vm) for placed_vm in pinned):
            return False
        profiles_by_gpu = _profiles_by_gpu(pinned)
        return all(self._fit(state, profiles_by_gpu.get(state.gpu.address, [])) for state in self.states)

    def _fit(self, state: GpuState, profiles: Sequence[str]) -> bool:
        if state.holders is None:
            return not profiles
        neighbours_of = [(*state.holders, *profiles[:n], *profiles[n + 1 :]) for n in range(len(profiles))]
        unknown = (None,) * (len(profiles) - 1)
        return all(
            free_slots(state.gpu, beside, name, self.catalog, (*state.starts, *unknown)).at_least
            for beside, name in zip(neighbours_of, profiles, strict=True)
        )


_WAYS: Final = 4000
"""How many ways in which starts may end are followed for one plan: about a second."""
_FEW_WAYS: Final = 20


def competing(vm: Vm, catalog: Catalog) -> str:
    """Return the GPU model that the VM competes for on its host; all whole GPUs count as one model."""
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
    names = {name for placed_vm in group for name in placed_vm.vm.profiles}
    return any(may_run(state.gpu, name, catalog) is not False for name in names)


def _pin_all(placed: Placed) -> Placed:
    """Pin each vGPU to its seat; the host chooses the GPUs of a device group."""
    if placed.workload.device_group is not None:
        return placed
    placement = placed.placement
    pins = {
        ordinal: placement.seats[ordinal]
        for ordinal, device in with_passthru_numbers(placed.vm.devices or ())
        if isinstance(device, VgpuDevice)
    }
    return replace(placed, placement=replace(placement, pins=pins))


def _profiles_by_gpu(placed: Sequence[Placed]) -> dict[PciAddress, list[str]]:
    """Return the profiles of the vGPUs that the plan puts on each GPU."""
    profiles_by_gpu: dict[PciAddress, list[str]] = {}
    for placed_vm in placed:
        for ordinal, device in with_passthru_numbers(placed_vm.vm.devices or ()):
            if isinstance(device, VgpuDevice):
                profiles_by_gpu.setdefault(placed_vm.placement.seats[ordinal], []).append(device.profile)
    return profiles_by_gpu


def _has_unpinned(placed: Placed) -> bool:
    return any(
        isinstance(device, VgpuDevice) and ordinal not in placed.placement.pins
        for ordinal, device in with_passthru_numbers(placed.vm.devices or ())
    )


def _steering_of(placed: Placed) -> Steering:
    return Steering.PINNED if placed.placement.pins else Steering.ANY_ORDER
