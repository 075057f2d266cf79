"""Plays the finished plan on the snapshot, to find what may still go wrong.

New VMs are started as listed. Suspended VMs come back after them in any order, since users may log in in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import Tenant, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, VgpuDevice, Vm, pins_of
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.placement.gpu_filters import matches_type
from gpuops.plan.placement.project import take
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.start_orders import Late, States, key_of, starts, too_late
from gpuops.plan.placement.suspended_vms import Claim, claims
from gpuops.plan.placement.vm_demand import WantsDynamic, demands_of
from gpuops.plan.queue.one_workload import Placed, Steering
from gpuops.plan.queue.pinning import competing
from gpuops.plan.queue.workload_vm import running

_FEW: Final = 3


def in_turn(
    placed: Sequence[Placed], waiting: Sequence[Claim], inventory: Inventory, catalog: Catalog
) -> tuple[str, ...]:
    """Return what may go wrong although each VM has its place, one line each.

    `waiting` are suspended VMs that come back; `inventory` is the snapshot as vCenter shows it, without their claims.
    """
    back = [claim for claim in waiting if not claim.lost]
    lines = [*_simulate_starts(placed, back, inventory, catalog), *_taken_away(placed, back)]
    for (ref, model), group in _in_order(placed, catalog).items():
        rivals = [claim.vm for claim in back if claim.host.ref == ref and competing(claim.vm, catalog) == model]
        lines += _Rehearsal(group, rivals, inventory.hosts[ref], inventory, catalog).lines()
    return tuple(dict.fromkeys(lines))


def _simulate_starts(
    placed: Sequence[Placed], back: Sequence[Claim], inventory: Inventory, catalog: Catalog
) -> Iterator[str]:
    """Start the VMs one by one where their hosts are expected to put them, counting memory and whole devices too."""
    world = inventory
    for placed_vm in placed:
        vm = running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa)
        seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), world.hosts[vm.host or ""], world, catalog)
        by_order = placed_vm.steering is Steering.LISTED_ORDER
        if not seating.complete or (by_order and seating.seats != placed_vm.placement.seats):
            yield _elsewhere(placed_vm)
        world = take(vm, world, catalog)
    hosts = {placed_vm.placement.host.ref for placed_vm in placed} if back else set()
    claims_after = claims(world, catalog, sorted(hosts), {claim.vm.ref for claim in back})
    lost = {claim.vm.ref for claim in claims_after if claim.lost or claim.doubts}
    for claim in back:
        if not claim.doubts and claim.vm.ref in lost:
            yield f"{claim.vm.name} (suspended) may find no GPU on {claim.host.name} when it comes back"


def _taken_away(placed: Sequence[Placed], back: Sequence[Claim]) -> Iterator[str]:
    """Yield devices of suspended VMs that a host may give to new VMs, because these only request a type of device."""
    for placed_vm in placed:
        host = placed_vm.placement.host
        kinds = [demand for demand in demands_of(placed_vm.vm.devices or (), {}) if isinstance(demand, WantsDynamic)]
        for claim in back if kinds else ():
            addresses = [device.address for device in claim.vm.devices or () if isinstance(device, DirectPathDevice)]
            gpus = [gpu for gpu in host.gpus if claim.host.ref == host.ref and gpu.address in addresses]
            for gpu in gpus:
                if any(matches_type(gpu, kind) for kind in kinds):
                    planned_addresses = ", ".join(map(str, placed_vm.placement.seats.values()))
                    rule = (
                        f"{host.name} may give {placed_vm.vm.name} the GPU {gpu.address} of {claim.vm.name} (suspended)"
                    )
                    yield f"{rule}: gpuops attach --device names another ({planned_addresses})"


def _in_order(placed: Sequence[Placed], catalog: Catalog) -> dict[tuple[str, str], list[Placed]]:
    """Return the new VMs with vGPUs that must be started in the listed order, by host and GPU model."""
    groups: dict[tuple[str, str], list[Placed]] = {}
    for placed_vm in placed:
        if placed_vm.steering is Steering.LISTED_ORDER and placed_vm.vm.vgpus:
            groups.setdefault((placed_vm.placement.host.ref, competing(placed_vm.vm, catalog)), []).append(placed_vm)
    return groups


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """New VMs of one GPU model on one host, started in turn, and the suspended ones that come back after them."""

    new: Sequence[Placed]
    back: Sequence[Vm]
    host: Host
    inventory: Inventory
    catalog: Catalog

    def lines(self) -> Iterator[str]:
        now = gpu_states(self.host, self.inventory, self.catalog)
        planned = now
        for placed_vm in self.new:
            if placed_vm.placement.doubts:
                return  # a warning tells that already, and what follows is unknown
            vm = running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa)
            ways, certain = starts(vm, planned, self.host, self.catalog)
            planned = _as_planned(planned, placed_vm, self.catalog)
            if not certain or any(key_of(way) != key_of(planned) for way in ways):
                yield _elsewhere(placed_vm)
                return
        if not self.back:
            return
        alone = too_late(self.back, now, self.host, self.catalog)
        late = alone or too_late(self.back, planned, self.host, self.catalog)
        if late is not None:
            yield _late_text(late, self.host, anyway=alone is not None)


def _as_planned(states: States, placed: Placed, catalog: Catalog) -> States:
    seats = placed.placement.seats
    for ordinal, device in with_passthru_numbers(placed.vm.devices or ()):
        if isinstance(device, VgpuDevice):
            tenant = Tenant(placed.vm.ref, placed.vm.name, device.profile)
            seat_of = seats.get(ordinal)
            states = tuple(with_expected(s, tenant, catalog) if s.gpu.address == seat_of else s for s in states)
    return states


def _elsewhere(placed: Placed) -> str:
    names = ", ".join(str(address) for address in sorted(set(placed.placement.seats.values())))
    return f"{placed.placement.host.name} may give {placed.vm.name} other GPUs than {names}: --pin auto binds it"


def _late_text(late: Late, host: Host, *, anyway: bool) -> str:
    which = f"{late.vm.name} (suspended)"
    if late.unproven:
        return f"whether {which} and the others find their GPUs on {host.name} in any order is not worked out"
    names = [vm.name for vm in late.after]
    and_more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    after = f" after {', '.join(names[:_FEW])}{and_more}" if names else ""
    whatever = ", whatever else starts there" if anyway else ""
    return f"{which} may find no GPU on {host.name} when it comes back{after}{whatever}"
