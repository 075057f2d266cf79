"""The VMs of a host that is back, in an order in which all of them find their GPUs again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, pins_of
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, RelocateVm, ShutDownGuest, Step
from gpuops.plan.hosts.change.emptying import Away, Leaving
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.suspended_vms import return_order
from gpuops.plan.placement.vm_demand import demands_of

GUEST_GRACE_S = 300
"""So long a guest has for its shutdown (the default of ShutDownGuest)."""


def leaving(away: Iterable[Away]) -> Plan:
    """The VMs leave: each guest shut down at once, and one VM after another to each host, as it was planned."""
    waves: list[list[Step]] = [[]]
    arrivals: dict[str, int] = {}
    for each in away:
        if each.leaving is Leaving.VMOTION and each.target is not None:
            number = arrivals.get(each.target.ref, 0)
            arrivals[each.target.ref] = number + 1
            waves += [[] for _ in range(number + 1 - len(waves))]
            waves[number].append(RelocateVm(each.vm.ref, each.target.ref))
        elif each.leaving in (Leaving.SHUT_DOWN, Leaving.POWER_OFF):
            then_off = each.leaving is Leaving.POWER_OFF
            waves[0].append(ShutDownGuest(each.vm.ref, GUEST_GRACE_S, then_off))
    return Plan(tuple(Wave("empty the hosts", tuple(steps)) for steps in waves if steps), disruptive=True)


def returning(
    host: Host, stopped: Iterable[Vm], moved: Iterable[Vm], inventory: Inventory, catalog: Catalog
) -> tuple[Plan, tuple[str, ...]]:
    """The VMs come back, and a line for each that does not: what somebody did with it meanwhile is not undone."""
    coming: dict[str, tuple[Vm, Step]] = {}
    left: list[str] = []
    for vm in stopped:
        if vm.power is PowerState.OFF and (managed := managed_elsewhere(vm)) is not None:
            left.append(f"{vm.name} {managed}; left off")
        elif vm.power is PowerState.OFF:
            coming[vm.ref] = vm, PowerOnVm(vm.ref, host.ref)
        elif vm.power is not PowerState.ON:
            left.append(f"{vm.name} is {vm.power or 'in no state that can be read'}: left so")
    for vm in moved:
        if vm.host != host.ref and (managed := managed_elsewhere(vm)) is not None:
            left.append(f"{vm.name} {managed}; left where it is")
        elif vm.power is PowerState.ON and vm.host != host.ref:
            coming[vm.ref] = vm, RelocateVm(vm.ref, host.ref)
        elif vm.power is not PowerState.ON:
            left.append(f"{vm.name} is {vm.power or 'in no state that can be read'} by now: left where it is")
    plain = [step for vm, step in coming.values() if not vm.profiles]
    first, rest = _in_order([vm for vm, _ in coming.values() if vm.profiles], host, inventory, catalog)
    waves = [Wave("bring the VMs back", (coming[vm.ref][1],)) for vm in first]
    others = (*(coming[vm.ref][1] for vm in rest), *plain)
    return Plan((*waves, Wave("bring the VMs back", others)) if others else tuple(waves)), tuple(left)


def doubtful(host: Host, away: Iterable[Away], inventory: Inventory, catalog: Catalog) -> tuple[str, ...]:
    """Names of those who may find no GPU when they come back to a host that nobody else came to meanwhile."""
    vms = [each.vm for each in away if each.leaving is not Leaving.DRS and each.vm.profiles]
    first, rest = _in_order(vms, host, inventory, catalog)
    for vm in vms:
        inventory = project(PowerOffVm(vm.ref), inventory)
    found = []
    for vm in (*first, *rest):
        seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), inventory.hosts[host.ref], inventory, catalog)
        if not seating.complete:
            found.append(vm.name)
        inventory = project(PowerOnVm(vm.ref, host.ref), inventory, catalog)
    return tuple(found)


def _in_order(vms: list[Vm], host: Host, inventory: Inventory, catalog: Catalog) -> tuple[list[Vm], list[Vm]]:
    """(those that come one by one, the rest): who is pinned to a GPU before who may take any, and the others as they
    would come back from a suspend on that host."""
    for vm in vms:
        if vm.power is PowerState.ON:
            inventory = project(PowerOffVm(vm.ref), inventory)
        inventory = inventory.with_vm(replace(inventory.vm(vm.ref), host=host.ref))
    pinned = [inventory.vm(vm.ref) for vm in vms if pins_of(vm)]
    for vm in pinned:
        inventory = project(PowerOnVm(vm.ref, host.ref), inventory, catalog)
    first, rest = return_order([inventory.vm(vm.ref) for vm in vms if not pins_of(vm)], inventory, catalog)
    return [*pinned, *first], rest
