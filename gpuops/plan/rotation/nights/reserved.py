"""What a start of a night leaves of what is reserved for VMs of others (vSphere 9.0); `night.py` asks it.

A desktop that is suspended gives its slots to whoever starts first. Where a reservation has no room yet, it takes them,
and the desktop finds none in the morning: so a desktop is taken only where what is reserved has room beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm, RelocateVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.reserved import reserved_left, reserved_unknown
from gpuops.plan.placement.return_order import suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start


def reserved_objection(starts: Sequence[Start], inventory: Inventory, catalog: Catalog) -> str:
    """Why the last of these starts would take what is reserved, or its desktops' slots would be; empty = neither."""
    if inventory.reservations is None or not any(start.vm.devices for start in starts):
        return ""
    last = starts[-1]
    unknown = reserved_unknown(last.host, inventory)
    if unknown is not None:
        return unknown
    after = inventory
    for start in starts:
        for desktop in start.desktops:
            after = project(suspend_or_shut_down(desktop), after)
        if start.moves:
            after = project(RelocateVm(start.vm.ref, start.host.ref), after)
        after = project(PowerOnVm(start.vm.ref, start.host.ref), after, catalog)
    for each in reserved_left([last.host], inventory, after, catalog):
        if last.desktops and each.before < each.reserved:
            reserved = f"{each.reserved} of {each.profile} are reserved for others"
            return f"{each.where}: {reserved}, and have no room yet: they would take the slots of suspended desktops"
        if each.too_few:
            return str(each)
    return ""
