"""The claims of suspended VMs: a suspended VM resumes on its host and then needs its GPUs and its memory there.

vCenter reserves nothing for it: the first VM that starts gets its slots (vSphere API, VirtualMachine.SuspendVM_Task
and PowerOnVM_Task; a suspended VM holds no device). Without claims that would show only when it cannot resume.
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
from gpuops.plan.placement.nodes import unreserved_mhz, unreserved_mib
from gpuops.plan.placement.project import take
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import demands_of

RETURN_ATTRIBUTE: Final = "gpuops.return"
"""Custom attribute of a suspended VM: the moment when it must be back."""


class SuspendedPolicy(StrEnum):
    """What happens to the GPUs that suspended VMs had."""

    CLAIM = "claim"
    """They are kept for these VMs. A plan gives them only to VMs that end before the suspended VMs come back."""
    IGNORE = "ignore"
    """They are free: use it for VMs that end before the suspended VMs must be back."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A suspended VM and the GPUs it is expected on when it resumes; `lost` = why it could not resume even now."""

    vm: Vm
    host: Host
    gpus: tuple[PciAddress, ...] = ()
    lost: tuple[Rejection, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why it may find no GPU although one seems free: vCenter does not show where the vGPUs on it start."""


@dataclass(frozen=True, slots=True)
class Return:
    """A suspended VM that must be back only after the requested VMs have ended."""

    vm: Vm
    at: datetime


def later_returns(inventory: Inventory, until: datetime | None) -> tuple[tuple[Return, ...], tuple[str, ...]]:
    """Return the VMs that must be back at `until` or later, by name, and a line for each VM whose attribute holds no
    valid moment."""
    later: list[Return] = []
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
            later.append(Return(vm, at))
    return tuple(later), tuple(unclear)


def with_claims(
    inventory: Inventory, catalog: Catalog, without: Collection[str] = ()
) -> tuple[Inventory, tuple[Claim, ...]]:
    """Return the snapshot as if all suspended VMs that find their GPUs ran, and the claim of each, by host and name.

    Each VM is seated next to the earlier ones, and "(suspended)" is added to its name. VMs whose refs are in `without`
    claim nothing.
    """
    claims_so_far = []
    for after, claim in _seat_suspended(inventory, catalog, without=without):
        inventory = after
        claims_so_far.append(claim)
    return inventory, tuple(claims_so_far)


def host_with_claims(host: Host, inventory: Inventory, catalog: Catalog) -> Inventory:
    """Return the snapshot as if the suspended VMs of this host that find their GPUs ran."""
    *_, world = (inventory, *(world for world, _ in _seat_suspended(inventory, catalog, [host.ref])))
    return world


def claims(
    inventory: Inventory, catalog: Catalog, hosts: Collection[str], only: Collection[str] | None = None
) -> tuple[Claim, ...]:
    """Return the claims on these hosts, and only those of the VMs in `only` if it is given (all are refs)."""
    refs_on_hosts = () if only is None else [vm.ref for ref in hosts for vm in inventory.vms_by_host.get(ref, ())]
    other_refs = [ref for ref in refs_on_hosts if ref not in (only or ())]
    return tuple(claim for _, claim in _seat_suspended(inventory, catalog, hosts, other_refs))


def _seat_suspended(
    inventory: Inventory, catalog: Catalog, hosts: Collection[str] | None = None, without: Collection[str] = ()
) -> Iterator[tuple[Inventory, Claim]]:
    listed_vms = (
        inventory.vms.values() if hosts is None else [vm for ref in hosts for vm in inventory.vms_by_host.get(ref, ())]
    )
    waiting = [vm for vm in listed_vms if vm.power is PowerState.SUSPENDED and vm.devices and vm.ref not in without]
    world = inventory
    for vm in sorted(waiting, key=lambda vm: (vm.host or "", vm.name, vm.ref)):
        host = world.hosts.get(vm.host or "")
        if host is None:
            continue
        claim = _claim(vm, host, world, catalog)
        if not claim.lost:
            returned_vm = replace(vm, name=f"{vm.name} (suspended)", power=PowerState.ON, awaited=Awaited.RETURN)
            world = take(returned_vm, world, catalog)
        yield world, claim


def _claim(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Claim:
    free_mib = unreserved_mib(host, vm, inventory)
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
