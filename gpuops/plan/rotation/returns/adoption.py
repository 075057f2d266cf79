"""Finds VMs that are in this vCenter now, but that an open night of another vCenter in the same journal took. Pure.

This happens if a vCenter is rebuilt during a night: it has the same VMs, a new instance uuid and no markers. A return
names those VMs whose power state is not as before the night, and changes none: the other vCenter may still exist, and
this one may be a copy of it. `gpuops rotate adopt` makes them VMs of nights of this vCenter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuops.model.nights.night_record import Original
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.command_line import command
from gpuops.plan.core.plan import Rejection
from gpuops.plan.rotation.taken_vms import first_then, power_as_before
from gpuops.plan.rotation.witness import the_vm


@dataclass(frozen=True, slots=True)
class NightsElsewhere:
    """The open nights of another vCenter in the same journal."""

    vcenter: str
    """Its instance uuid."""
    originals: tuple[Original, ...]
    """The VMs that they have taken and not brought back."""

    def seen_here(self, inventory: Inventory) -> Iterator[tuple[Original, Vm]]:
        """Yield those of its VMs that are also in this vCenter, found by their instance uuids."""
        for original in self.originals:
            vm = the_vm(original, inventory) if original.uuid is not None else None
            if vm is not None:
                yield original, vm


@dataclass(frozen=True, slots=True)
class Adoption:
    """What `gpuops rotate adopt` does, or would do."""

    from_vcenter: str
    to_vcenter: str
    adopted: tuple[str, ...]
    """Names of the VMs that this vCenter returns from then on."""
    not_here: tuple[str, ...] = ()
    """Names of the VMs that are not in this vCenter. They stay with the other one."""
    applied: bool = False


def refuse_nights_elsewhere(
    nights: Iterable[NightsElsewhere], originals_here: Iterable[Original], inventory: Inventory
) -> tuple[Rejection, ...]:
    """Return a refusal for each VM here that a night of another vCenter took, and that is not as it was before.

    A VM that an open night of this vCenter took is left out: that night explains its power state. Two vCenters of
    one image show VMs with the same instance uuids.
    """
    taken_here = {original.vm for original in originals_here if not original.returned}
    return tuple(
        _reject_unadopted(original, other_vcenter.vcenter)
        for other_vcenter in nights
        for original, vm in other_vcenter.seen_here(inventory)
        if vm.ref not in taken_here and not power_as_before(original, vm)
    )


def _reject_unadopted(original: Original, vcenter: str) -> Rejection:
    reason = f"night {original.night} of vCenter {vcenter} took it, and it is in this vCenter now: not touched"
    adopt = command("rotate adopt", **{"from": vcenter})
    return Rejection(original.name, reason, hint=first_then("make sure that this vCenter has replaced that one", adopt))


def plan_adoption(nights_elsewhere: NightsElsewhere, inventory: Inventory) -> Adoption:
    """Return which VMs of these nights this vCenter can adopt."""
    originals_here = [original for original, _ in nights_elsewhere.seen_here(inventory)]
    missing = [original for original in nights_elsewhere.originals if original not in originals_here]
    return Adoption(nights_elsewhere.vcenter, inventory.vcenter, _names(originals_here), _names(missing))


def _names(originals: Iterable[Original]) -> tuple[str, ...]:
    return tuple(sorted({original.name for original in originals}))
