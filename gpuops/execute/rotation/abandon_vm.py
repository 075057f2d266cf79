"""Give up one VM of a night for good: no later return waits for it. `gpuops rotate abandon` calls it.

Use it for a VM that cannot be brought back. Only the journal changes; nothing is sent to vCenter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial

from gpuops.config.policy import parse_policy
from gpuops.errors import Refused
from gpuops.execute.journal import Journal
from gpuops.execute.runs.nights import NightVms, note_returned
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.site.agreement import apply_agreed
from gpuops.model.nights.journal import GivenUp, Thing
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import NAMED_UNTIL_BACK, Abandonment, state_of
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.taken_vms import by_marker, vms_of

STATUS = "gpuops rotate status lists the VMs that nights hold"


def abandon_vm(
    site: Site,
    name: str,
    policy: Policy | None = None,
    *,
    apply: bool = True,
    consent: Callable[[Abandonment], None] = agreed,
) -> Abandonment:
    """Give up the VM of this name that a night holds, by the journal or, if it is not in the journal, by its marker.

    `policy` names the custom attribute that holds markers; None = the policy of the last night. Raises Refused if no
    night holds such a VM, and Locked while a rotation runs.
    """
    inventory = site.vcenter.inventory()

    def look(journal: Journal | None) -> Abandonment:
        return _find_abandonment(journal, name, inventory, policy, site.clock())

    with site.journal_to_read(inventory.vcenter) as read_only_journal:
        abandonment = look(read_only_journal)

    def give_up(current: Abandonment, journal: Journal) -> Abandonment:
        if current.only_marked is not None:
            NightVms(journal).save_marked(current.only_marked)
        journal.give_up(current.things)
        note_returned(journal, inventory)
        return replace(current, applied=True)

    lock = partial(site.locked_journal, inventory.vcenter, alone=True)
    return apply_agreed(abandonment, consent, give_up, apply=apply, lock=lock, look_again=look)


def _find_abandonment(
    journal: Journal | None, name: str, inventory: Inventory, policy: Policy | None, now: datetime
) -> Abandonment:
    """Return what would be given up, by the journal or else by the VM's marker. Raises Refused if no night holds it."""
    originals = NightVms(journal).all(returned=True) if journal is not None else ()
    matching = [original for original in originals if _is_called(original, name, inventory)]
    open_originals = [original for original in matching if not original.returned]
    if open_originals:
        if len({original.uuid or original.vm for original in open_originals}) > 1:
            raise _ambiguous(name, open_originals)
        return _make_abandonment(open_originals[-1], inventory, now, "")  # of the last night that holds it
    if (
        journal is not None
        and (abandoned_before := next((original for original in matching if original.given_up), None)) is not None
    ):
        given_up = journal.state.given_up[abandoned_before.vm]
        return Abandonment((given_up,), (f"it was given up at {format_zoned_minute(given_up.at)}",), already=True)
    text = journal.last_policy(RunKind.NIGHT) if journal is not None else None
    if policy is None and text:
        policy = parse_policy(text, "the journal", accepted_before=True)
    marked = [original for original in by_marker(policy, inventory) if _is_called(original, name, inventory)]
    if len(marked) > 1:
        raise _ambiguous(name, marked)
    if not marked:
        raise Refused(f"{name}: no night in this machine's journal holds a VM of this name", hint=STATUS)
    return _make_abandonment(marked[0], inventory, now, "" if text else " --policy FILE", by_its_marker=True)


def _ambiguous(name: str, originals: Iterable[Original]) -> Refused:
    ids = " or ".join(f"moid:{ref}" for ref in dict.fromkeys(original.vm for original in originals))
    return Refused(f"{name}: nights hold several VMs of this name", hint=f"give one of them as {ids}")


def _is_called(original: Original, name: str, inventory: Inventory) -> bool:
    if name in (original.name, f"moid:{original.vm}"):
        return True
    return any(vm.is_called(name) for vm in vms_of(original, inventory))


def _make_abandonment(
    original: Original, inventory: Inventory, now: datetime, policy_option: str, *, by_its_marker: bool = False
) -> Abandonment:
    """Return what is written to the journal and printed. `policy_option`: appended to the suggested command."""
    night = f"night {original.night}"
    runs = original.role is not Role.ML  # when it is back: a desktop runs again, an ML VM does not
    given_up = GivenUp(Thing.VM, original.vm, original.uuid, original.name, night, now, runs)
    vms = vms_of(original, inventory)
    restore_command = command("rotate restore", vm=called(vms[0])) + policy_option if len(vms) == 1 else ""
    only_marker = "only its marker says that a night took it: `rotate day` clears the marker when the VM is back"
    return Abandonment(
        (given_up,),
        (
            f"{original.name} of {night} stays as it is ({state_of(given_up, inventory)}): no return waits for it",
            *((only_marker,) if by_its_marker else ()),
            *((f"{restore_command} can still bring it back, if it is possible",) if restore_command else ()),
            NAMED_UNTIL_BACK,
        ),
        only_marked=original if by_its_marker else None,
    )
