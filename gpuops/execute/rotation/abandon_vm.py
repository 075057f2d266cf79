"""Gives up one VM of a night for good: no return waits for it any more. `gpuops rotate abandon` calls it.

It is written into the journal and nothing is asked of vCenter: it is for what cannot be brought back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from gpuops.config.policy import parse_policy
from gpuops.errors import Refused
from gpuops.execute.journal import Journal
from gpuops.execute.runs.given_up import note_returned
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site
from gpuops.model.nights.journal import GivenUp, Thing
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import NAMED_UNTIL_BACK, Abandonment, state_of
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.taken_vms import by_marker, vms_of

STATUS = "gpuops rotate status lists those that a night holds"


def abandon_vm(
    site: Site,
    name: str,
    policy: Policy | None = None,
    *,
    apply: bool = True,
    consent: Callable[[Abandonment], None] = lambda found: None,
) -> Abandonment:
    """Gives up the VM of that name that a night holds, as the journal says, or its marker where the journal knows none.

    `policy` says which custom attribute holds markers; None = that of the last night. Raises Refused where no night
    holds such a VM, Locked while a rotation runs.
    """
    inventory = site.vcenter.inventory()
    with site.journal_to_read(inventory.vcenter) as seen:
        found, _ = _found(seen, name, inventory, policy, site.clock())
    if found.already or not apply:
        return replace(found, applied=apply)
    consent(found)
    with site.locked_journal(inventory.vcenter, alone=True) as journal:
        found, marked = _found(journal, name, inventory, policy, site.clock())
        if marked is not None:
            NightVms(journal).save_marked(marked)
        journal.give_up(found.things)
        note_returned(journal, inventory)
        return replace(found, applied=True)


def _found(
    journal: Journal | None, name: str, inventory: Inventory, policy: Policy | None, now: datetime
) -> tuple[Abandonment, Original | None]:
    """What is meant, as the journal has it now; with it what its marker alone tells of it. Raises Refused."""
    held = NightVms(journal).all(returned=True) if journal is not None else ()
    meant = [each for each in held if _is_called(each, name, inventory)]
    still = [each for each in meant if not each.returned]
    if still:
        if len({each.uuid or each.vm for each in still}) > 1:
            raise Refused(f"{name}: several VMs of nights are called so", hint="moid:ID names one; " + STATUS)
        return _abandonment(still[-1], inventory, now, ""), None
    if journal is not None and (before := next((each for each in meant if each.given_up), None)) is not None:
        given = journal.state.given_up[before.vm]
        return Abandonment((given,), (f"it was given up at {format_zoned_minute(given.at)}",), already=True), None
    text = journal.last_policy(RunKind.NIGHT) if journal is not None else None
    if policy is None and text:
        policy = parse_policy(text, "the journal", accepted_before=True)
    marked = [each for each in by_marker(policy, inventory) if _is_called(each, name, inventory)]
    if len(marked) > 1:
        raise Refused(f"{name}: several VMs with a marker are called so", hint="moid:ID names one; " + STATUS)
    if not marked:
        raise Refused(f"{name}: no night in this machine's journal holds a VM of this name", hint=STATUS)
    return _abandonment(marked[0], inventory, now, "" if text else " --policy FILE", by_its_marker=True), marked[0]


def _is_called(original: Original, name: str, inventory: Inventory) -> bool:
    if name in (original.name, f"moid:{original.vm}"):
        return True
    return any(vm.is_called(name) for vm in vms_of(original, inventory))


def _abandonment(
    original: Original, inventory: Inventory, now: datetime, by: str, *, by_its_marker: bool = False
) -> Abandonment:
    """`by`: how the policy is said in a command, where the journal knows none."""
    night = f"night {original.night}"
    runs = original.role is not Role.ML
    given = GivenUp(Thing.VM, original.vm, original.uuid, original.name, night, now, runs)
    vms = vms_of(original, inventory)
    again = command("rotate restore", vm=called(vms[0])) + by if len(vms) == 1 else ""
    alone = "only its marker says that a night took it: that stays, and a morning clears it when the VM is back"
    return Abandonment(
        (given,),
        (
            f"{original.name} of {night} stays as it is ({state_of(given, inventory)}): no morning waits for it",
            *((alone,) if by_its_marker else ()),
            *((f"{again} brings it back after all, where that can be done",) if again else ()),
            NAMED_UNTIL_BACK,
        ),
    )
