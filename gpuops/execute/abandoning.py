"""Abandoning: one VM of a night, given up by a person: no morning waits for it any more.

It is written into the journal and nothing is asked of vCenter: it is for what cannot be brought back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuops.errors import Refused
from gpuops.execute.given_up import note_who_is_back
from gpuops.execute.journal import Journal
from gpuops.execute.originals import Originals
from gpuops.execute.site import Site
from gpuops.model.given_up import GivenUp, Thing
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Original, Role
from gpuops.plan.abandonment import Abandonment
from gpuops.plan.command import called, command
from gpuops.plan.given_up import NAMED_UNTIL_BACK, state_of
from gpuops.plan.rotation.ours import vms_of

STATUS = "gpuops rotate status lists those that a night holds"


def abandon_vm(site: Site, name: str, *, apply: bool, consent: Callable[[Abandonment], None]) -> Abandonment:
    """Gives up the VM of that name that a night holds. Raises Refused where none does, Locked while a run is at it."""
    inventory = site.vcenter.inventory()
    with site.remembering(inventory.vcenter) as seen:
        found = _found(seen, name, inventory)
    if found.already or not apply:
        return replace(found, applied=apply)
    consent(found)
    with site.changing(inventory.vcenter, alone=True) as journal:
        found = _found(journal, name, inventory)
        journal.give_up(found.things)
        note_who_is_back(journal, inventory)
        return replace(found, applied=True)


def _found(journal: Journal | None, name: str, inventory: Inventory) -> Abandonment:
    """What is meant, as the journal has it now. Raises Refused."""
    held = Originals(journal).all(returned=True) if journal is not None else ()
    meant = [each for each in held if _is_called(each, name, inventory)]
    still = [each for each in meant if not each.returned]
    if journal is not None and still:
        if len({each.uuid or each.vm for each in still}) > 1:
            raise Refused(f"{name}: several VMs of nights are called so", hint="moid:ID names one; " + STATUS)
        return _abandonment(still[-1], journal, inventory)
    if journal is not None and (before := next((each for each in meant if each.given_up), None)) is not None:
        given = journal.book.given_up[before.vm]
        return Abandonment((given,), (f"it was given up at {given.at:%Y-%m-%d %H:%M %Z}",), already=True)
    raise Refused(f"{name}: no night in this machine's journal holds a VM of this name", hint=STATUS)


def _is_called(original: Original, name: str, inventory: Inventory) -> bool:
    if name in (original.name, f"moid:{original.vm}"):
        return True
    return any(vm.is_called(name) for vm in vms_of(original, inventory))


def _abandonment(original: Original, journal: Journal, inventory: Inventory) -> Abandonment:
    night = f"night {original.night}"
    runs = original.role is not Role.ML
    given = GivenUp(Thing.VM, original.vm, original.uuid, original.name, night, journal.clock(), runs)
    vms = vms_of(original, inventory)
    again = command("rotate restore", vm=called(vms[0])) if len(vms) == 1 else ""
    return Abandonment(
        (given,),
        (
            f"{original.name} of {night} stays as it is ({state_of(given, inventory)}): no morning waits for it",
            *((f"{again} brings it back after all, where that can be done",) if again else ()),
            NAMED_UNTIL_BACK,
        ),
    )
