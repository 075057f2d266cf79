"""A suspended VM comes back, to the host it is on, and needs its GPUs and its memory there then.

vCenter reserves nothing for it: its slots are free for whoever starts first (vSphere API, VirtualMachine.SuspendVM_Task
and PowerOnVM_Task; a suspended VM holds no device). Whoever gives them away finds out in the morning.
(assumption: suspended-vm-host, assumption: ha-suspended-vms, assumption: suspend-frees-slot)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, PowerState, Vm, pins_of
from gpuops.model.workloads.workload import moment
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.nodes import unreserved, unreserved_mhz
from gpuops.plan.placement.project import take
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import demands_of

RETURN_ATTRIBUTE: Final = "gpuops.return"
"""Custom attribute of a VM that is suspended: the moment when it is wanted back."""


class SuspendedPolicy(StrEnum):
    """What becomes of the GPUs that suspended VMs had."""

    CLAIM = "claim"
    """They are kept for them: no plan gives them away but to what is gone before they come back."""
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


@dataclass(frozen=True, slots=True)
class Return:
    """A suspended VM that is not wanted back before all that is asked for is gone."""

    vm: Vm
    at: datetime


def later_returns(inventory: Inventory, until: datetime | None) -> tuple[tuple[Return, ...], tuple[str, ...]]:
    """Who comes back no earlier than `until`, by name; and a line for each whose attribute names no moment."""
    found: list[Return] = []
    unclear: list[str] = []
    for vm in sorted(inventory.vms.values(), key=lambda vm: (vm.name, vm.ref)):
        text = vm.attributes.get(RETURN_ATTRIBUTE, "")
        if until is None or vm.power is not PowerState.SUSPENDED or not vm.devices or not text:
            continue
        try:
            at = moment(text)
        except UsageError as error:
            unclear.append(f"{vm.name} (suspended) keeps its GPUs: {RETURN_ATTRIBUTE}: {error.message}")
            continue
        if at >= until:
            found.append(Return(vm, at))
    return tuple(found), tuple(unclear)


def with_claims(
    inventory: Inventory, catalog: Catalog, but: Collection[str] = ()
) -> tuple[Inventory, tuple[Claim, ...]]:
    """The snapshot as if the suspended VMs ran that find their GPUs, and the claim of each, by host and name.

    Each is seated beside the earlier ones. The names of those that do not really run say so. `but` are refs of VMs that
    claim nothing.
    """
    found = []
    for after, claim in _claimed(inventory, catalog, but=but):
        inventory = after
        found.append(claim)
    return inventory, tuple(found)


def host_with_claims(host: Host, inventory: Inventory, catalog: Catalog) -> Inventory:
    """The snapshot as if the suspended VMs of this one host ran that find their GPUs."""
    *_, world = (inventory, *(world for world, _ in _claimed(inventory, catalog, [host.ref])))
    return world


def claims(
    inventory: Inventory, catalog: Catalog, hosts: Collection[str], of: Collection[str] | None = None
) -> tuple[Claim, ...]:
    """The claims on these hosts alone; `of` these VMs alone where some are said. All by ref."""
    there = () if of is None else [vm.ref for ref in hosts for vm in inventory.vms_by_host.get(ref, ())]
    others = [ref for ref in there if ref not in (of or ())]
    return tuple(claim for _, claim in _claimed(inventory, catalog, hosts, others))


def _claimed(
    inventory: Inventory, catalog: Catalog, hosts: Collection[str] | None = None, but: Collection[str] = ()
) -> Iterator[tuple[Inventory, Claim]]:
    asked = (
        inventory.vms.values() if hosts is None else [vm for ref in hosts for vm in inventory.vms_by_host.get(ref, ())]
    )
    waiting = [vm for vm in asked if vm.power is PowerState.SUSPENDED and vm.devices and vm.ref not in but]
    world = inventory
    for vm in sorted(waiting, key=lambda vm: (vm.host or "", vm.name, vm.ref)):
        host = world.hosts.get(vm.host or "")
        if host is None:
            continue
        claim = _claim(vm, host, world, catalog)
        if not claim.lost:
            back = replace(vm, name=f"{vm.name} (suspended)", power=PowerState.ON, awaited=Awaited.RETURN)
            world = take(back, world, catalog)
        yield world, claim


def _claim(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Claim:
    free_mib = unreserved(host, vm, inventory)
    needed_mib = vm.memory_reservation_mib or 0
    if free_mib is not None and needed_mib > free_mib:
        short = Rejection(host.name, f"memory for {vm.name} to come back", needed_mib, free_mib, "MiB")
        return Claim(vm, host, lost=(short,))
    asked_mhz, left_mhz = vm.cpu_reservation_mhz or 0, unreserved_mhz(host, vm, inventory)
    if left_mhz is not None and asked_mhz > left_mhz:
        return Claim(
            vm, host, lost=(Rejection(host.name, f"CPU for {vm.name} to come back", asked_mhz, left_mhz, "MHz"),)
        )
    seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), host, inventory, catalog)
    if not seating.complete:
        return Claim(vm, host, lost=seating.rejections)
    return Claim(vm, host, tuple(sorted(set(seating.seats.values()))), doubts=seating.doubts)
