"""Claims: a suspended VM comes back, to the host it is on, and needs its GPUs and its memory there then.

vCenter reserves nothing for it: its slots are free for whoever starts first (vSphere API, VirtualMachine.SuspendVM_Task
and PowerOnVM_Task; a suspended VM holds no device). Whoever gives them away finds out in the morning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.holding import take
from gpuops.plan.placement.nodes import unreserved
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import demands_of, pins_of
from gpuops.plan.plan import Rejection


class SuspendedPolicy(StrEnum):
    """What becomes of the GPUs that suspended VMs had."""

    CLAIM = "claim"
    """They are kept for them: no plan gives them away."""
    IGNORE = "ignore"
    """They are free: for what ends before the suspended VMs are wanted back."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A suspended VM and the GPUs it is expected on when it comes back; `lost` = it would find none even now."""

    vm: Vm
    host: Host
    gpus: tuple[PciAddress, ...] = ()
    lost: tuple[Rejection, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why it may find none although it seems to: how others lie on the GPU vCenter does not tell."""


def with_claims(inventory: Inventory, catalog: Catalog) -> tuple[Inventory, tuple[Claim, ...]]:
    """The snapshot as if the suspended VMs ran that find their GPUs, and the claim of each, by host and name.

    Each is seated beside the earlier ones. The names of those that do not really run say so.
    """
    found = []
    for after, claim in _claimed(inventory, catalog):
        inventory = after
        found.append(claim)
    return inventory, tuple(found)


def claims(inventory: Inventory, catalog: Catalog, hosts: Collection[str]) -> tuple[Claim, ...]:
    """The claims on these hosts alone, by ref."""
    return tuple(claim for _, claim in _claimed(inventory, catalog, hosts))


def _claimed(
    inventory: Inventory, catalog: Catalog, hosts: Collection[str] | None = None
) -> Iterator[tuple[Inventory, Claim]]:
    asked = (
        inventory.vms.values() if hosts is None else [vm for ref in hosts for vm in inventory.vms_by_host.get(ref, ())]
    )
    waiting = [vm for vm in asked if vm.power is PowerState.SUSPENDED and vm.devices]
    world = inventory
    for vm in sorted(waiting, key=lambda vm: (vm.host or "", vm.name, vm.ref)):
        host = world.hosts.get(vm.host or "")
        if host is None:
            continue
        claim = _claim(vm, host, world, catalog)
        if not claim.lost:
            world = take(replace(vm, name=f"{vm.name} (suspended)", power=PowerState.ON), world, catalog)
        yield world, claim


def _claim(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Claim:
    free_mib = unreserved(host, vm, inventory)
    needed_mib = vm.memory_reservation_mib or 0
    if free_mib is not None and needed_mib > free_mib:
        short = Rejection(host.name, f"memory for {vm.name} to come back", needed_mib, free_mib, "MiB")
        return Claim(vm, host, lost=(short,))
    seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), host, inventory, catalog)
    if not seating.complete:
        return Claim(vm, host, lost=seating.rejections)
    return Claim(vm, host, tuple(sorted(set(seating.seats.values()))), doubts=seating.doubts)
