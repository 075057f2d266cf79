"""Reasons: what else stands against a request that has no place, beside the first thing that was found.

A host that is too small is not asked for its GPUs, and a profile that is none is looked for nowhere: fast, and right
for who is placed. Who is refused is told everything at once, or they mend one thing to meet the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.catalog import Catalog
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.host_filters import refusals
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import Wanted, demands_of
from gpuops.plan.queue.eligible_hosts import Reach


def without_devices(vm: Vm, reach: Reach, inventory: Inventory) -> tuple[Rejection, ...]:
    """Why no host that is meant would take the VM even without a GPU; () = one would."""
    if not reach.hosts:
        return reach.refused
    wanted = Wanted(vm, (), reach.hosts)
    against = [refusals(wanted, inventory.hosts[ref], inventory) for ref in reach.hosts]
    return (*reach.refused, *(reason for each in against for reason in each)) if all(against) else ()


def on_their_gpus(
    vm: Vm, reach: Reach, hosts: tuple[Host, ...], inventory: Inventory, catalog: Catalog
) -> Iterator[Rejection]:
    """What hosts that are refused for something else lack too, and their GPUs. `hosts` are those that are meant."""
    demands = demands_of(vm.devices or (), {})
    if any(getattr(device, "group", None) is not None for device in vm.devices or ()):
        return  # who offers no such group is asked for no part of it
    for host in hosts:
        wanted = Wanted(vm, demands, (host.ref,))
        refused = refusals(wanted, host, inventory)
        # Without a number it is no want of size: what a host without such profiles lacks beside them helps nobody.
        if any(reason.needed is None for reason in refused):
            continue
        if host.ref not in reach.hosts:
            yield from refused  # nobody has asked it yet
        if host.ref not in reach.hosts or refused:
            yield from seat(vm, demands, host, inventory, catalog).rejections
