"""Competition: VMs that are off or suspended hold no slot, and may find none once another VM runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.holding import take
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import demands_of, pins_of


def displaced(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> tuple[Vm, ...]:
    """VMs of the host, off or suspended, that could start beside what runs now, and not beside this VM too."""
    # Only what the host knows is copied from step to step: a fleet has other VMs in thousands.
    local = replace(inventory, vms={other.ref: other for other in inventory.vms_on(host) if other.ref != vm.ref})
    waiting = [other for other in local.vms.values() if _waits(other)]
    waiting.sort(key=lambda other: (other.power is not PowerState.SUSPENDED, other.name))
    without = _startable(waiting, local, catalog)
    running = replace(vm, host=host.ref, power=PowerState.ON)
    beside = _startable(waiting, take(running, local, catalog), catalog)
    return tuple(other for other in waiting if other.ref in without and other.ref not in beside)


def left_without(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> tuple[str, ...]:
    """A line that names them, or none."""
    others = displaced(vm, host, inventory, catalog)
    names = ", ".join(f"{o.name} ({'suspended' if o.power is PowerState.SUSPENDED else 'off'})" for o in others)
    return (f"while {vm.name} runs, {host.name} has no GPU left for {names}",) if others else ()


def _waits(vm: Vm) -> bool:
    return vm.power in (PowerState.OFF, PowerState.SUSPENDED) and bool(vm.devices) and vm.template is not True


def _startable(vms: Iterable[Vm], inventory: Inventory, catalog: Catalog) -> frozenset[str]:
    """Those that could be started one after the other."""
    started = []
    for vm in vms:
        host = inventory.hosts.get(vm.host or "")
        if host is None:
            continue
        if seat(vm, demands_of(vm.devices or (), pins_of(vm)), host, inventory, catalog).complete:
            inventory = take(replace(vm, power=PowerState.ON), inventory, catalog)
            started.append(vm.ref)
    return frozenset(started)
