"""Checks that a start of a night leaves the GPU slots that are reserved for other VMs (vSphere 9.0). `night.py` calls
it.

The slots of a suspended desktop go to the VM that starts first. If a reservation has no room yet, it takes these slots,
and the desktop finds none in the morning. A desktop is therefore only taken if the reserved slots have room elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import PowerOnVm, RelocateVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.reserved_slots import reserved_left, reserved_unknown
from gpuops.plan.placement.suspended_vms import suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start


def reserved_objection(starts: Sequence[Start], inventory: Inventory, catalog: Catalog) -> str:
    """Return why the last start would take reserved slots, or a reservation the slots of its desktops; empty =
    neither."""
    if inventory.reservations is None or not any(start.vm.devices for start in starts):
        return ""
    new_start = starts[-1]
    unknown = reserved_unknown(new_start.host, inventory)
    if unknown is not None:
        return unknown
    after = inventory
    for start in starts:
        for desktop in start.desktops:
            after = project(suspend_or_shut_down(desktop), after)
        if start.moves:
            after = project(RelocateVm(start.vm.ref, start.host.ref), after)
        after = project(PowerOnVm(start.vm.ref, start.host.ref), after, catalog)
    for reservation in reserved_left([new_start.host], inventory, after, catalog):
        if new_start.desktops and reservation.before < reservation.reserved:
            reserved = f"{reservation.where}: {reservation.reserved} of {reservation.profile} are reserved for others"
            return f"{reserved}, and have no room yet: they would take the slots of suspended desktops"
        if reservation.too_few:
            return str(reservation)
    return ""
