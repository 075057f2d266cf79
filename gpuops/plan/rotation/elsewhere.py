"""Rotation, elsewhere: markers of nights that this journal knows nothing of, on VMs that are as they were.

The machine that set such a marker may have been stopped, or lost, just as it sent a suspend that vCenter has not begun
yet: a marker that were cleared now would leave that desktop suspended with nobody to know it. So the first morning that
sees one writes onto the marker when that was, and one that comes ten minutes later clears it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpuops.model.inventory import Inventory
from gpuops.model.rotation import LATE, Policy, marker_value
from gpuops.model.vm import PowerState
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import SetAttribute
from gpuops.plan.rotation.ours import Ours, Whereabouts, as_before, once_done

_REASON: Final = (
    "carries a marker that this journal knows nothing of, and is as it was: what was sent last may still come"
)
_AGAIN: Final = once_done("wait ten minutes", "the same command again")
_MARKERS: Final = "customValue"
"""The property that holds a VM's custom attributes (vSphere API reference, ManagedEntity)."""
_HIDDEN: Final = "may be away for a night: its marker cannot be read, and there is no other record of one"
_QUIET: Final = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


def may_still_change(found: Iterable[Ours], inventory: Inventory) -> list[Ours]:
    """Those whose marker is not known for long enough to be cleared, by vCenter's clock."""
    return [mine for mine in found if _as_it_was(mine) and not _known_long(mine, inventory)]


def _as_it_was(mine: Ours) -> bool:
    quiet = mine.foreign is not None and mine.whereabouts in _QUIET
    return quiet and mine.vm is not None and as_before(mine.original, mine.vm)


def _known_long(mine: Ours, inventory: Inventory) -> bool:
    seen = mine.foreign.seen if mine.foreign is not None else None
    return seen is not None and abs(inventory.taken_at - seen) >= LATE


def noted(found: Iterable[Ours], inventory: Inventory) -> tuple[SetAttribute, ...]:
    """Writes onto their markers that they were seen, where that is not there yet."""
    return tuple(
        SetAttribute(
            mine.original.vm,
            mine.policy.marker,
            marker_value(
                mine.foreign.night, mine.foreign.role, mine.foreign.drs, inventory.taken_at, mine.foreign.lease
            ),
        )
        for mine in found
        if mine.foreign is not None and mine.foreign.seen is None
    )


def hidden(found: Iterable[Ours], policy: Policy, inventory: Inventory) -> Iterator[Rejection]:
    """What may be desktops of the policy, do not run, and have a marker that this login cannot read."""
    known = {mine.vm.ref for mine in found if mine.vm is not None}
    for vm in inventory.vms.values():
        if vm.ref in known or vm.power is PowerState.ON or _MARKERS not in vm.unreadable:
            continue
        if policy.in_folder(vm) or policy.pool_of(vm) is not None:
            yield Rejection(vm.name, _HIDDEN, hint=once_done("log in as somebody who may read it"))


def unsure(mine: Ours) -> Rejection:
    """What is said of one."""
    return Rejection(mine.original.name, _REASON, hint=_AGAIN)
