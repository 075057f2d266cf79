"""Gives up one VM of a night for good, and moves VMs of open nights from another vCenter's journal to this one's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial

from gpuops.config.policy import parse_policy
from gpuops.errors import Refused
from gpuops.execute.journal import Journal
from gpuops.execute.runs import ROTATION_RUNS, NightVms, RunKind, note_returned
from gpuops.execute.site import Site, agreed
from gpuops.execute.site.agreement import apply_agreed
from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import NAMED_UNTIL_BACK, Abandonment, state_of
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.returns.foreign_nights import Adoption, NightsElsewhere, plan_adoption
from gpuops.plan.rotation.taken_vms import originals_from_markers, vms_of

STATUS_HINT = "gpuops rotate status lists the VMs that nights hold"


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
    from_markers = originals_from_markers(policy, inventory)
    marked = [original for original in from_markers if _is_called(original, name, inventory)]
    if len(marked) > 1:
        raise _ambiguous(name, marked)
    if not marked:
        raise Refused(f"{name}: no night in this machine's journal holds a VM of this name", hint=STATUS_HINT)
    return _make_abandonment(marked[0], inventory, now, "" if text else " --policy FILE", by_its_marker=True)


def _ambiguous(name: str, originals: Iterable[Original]) -> Refused:
    """Return the error for a name that several VMs of nights have."""
    ids = " or ".join(f"moid:{ref}" for ref in dict.fromkeys(original.vm for original in originals))
    return Refused(f"{name}: nights hold several VMs of this name", hint=f"give one of them as {ids}")


def _is_called(original: Original, name: str, inventory: Inventory) -> bool:
    """Return whether the VM had this name (or `moid:ID`) when its night took it, or has it now."""
    if name in (original.name, f"moid:{original.vm}"):
        return True
    return any(vm.is_called(name) for vm in vms_of(original, inventory))


def _make_abandonment(
    original: Original, inventory: Inventory, now: datetime, policy_option: str, *, by_its_marker: bool = False
) -> Abandonment:
    """Return what is written to the journal and printed. `policy_option`: appended to the suggested command."""
    night = f"night {original.night}"
    runs_when_back = original.role is not Role.ML
    given_up = GivenUp(Thing.VM, original.vm, original.uuid, original.name, night, now, runs_when_back)
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


def adopt(
    site: Site, from_vcenter: str, *, apply: bool = True, consent: Callable[[Adoption], None] = agreed
) -> Adoption:
    """Move VMs of another vCenter's open nights that are now in this vCenter from its journal to this vCenter's.

    `from_vcenter`: the instance uuid of the other vCenter.

    `rotate day` then brings them back. Raises Refused if no such VM is here, and Locked while a rotation of either
    vCenter runs.
    """
    inventory = site.vcenter.inventory()
    from_vcenter = from_vcenter.strip().lower()
    if from_vcenter == inventory.vcenter:
        raise Refused(f"{from_vcenter} is this vCenter: its nights need no adoption", hint="gpuops rotate day")

    def look(other_journal: Journal | None) -> Adoption:
        return _plan_adoption(_open_nights(from_vcenter, other_journal), inventory)

    with site.journal_to_read(from_vcenter) as other_journal:
        planned = look(other_journal)

    def move_nights(current: Adoption, other_journal: Journal) -> Adoption:
        nights = _open_nights(from_vcenter, other_journal)
        # saved here before they are closed there: after a crash in between, no VM is lost and the call can be repeated
        with site.locked_journal(inventory.vcenter, alone=True) as this_journal:
            _save_adopted(nights, inventory, this_journal)
        originals_here = [original for original, _ in nights.seen_here(inventory)]
        for original in originals_here:
            NightVms(other_journal).record_return(original)
        if len(originals_here) == len(nights.originals):
            for run in other_journal.open_runs(ROTATION_RUNS):
                other_journal.end(run, cut_off=True)
        return replace(current, applied=True)

    lock = partial(site.locked_journal, from_vcenter, alone=True)
    return apply_agreed(planned, consent, move_nights, apply=apply, lock=lock, look_again=look)


def _plan_adoption(nights: NightsElsewhere, inventory: Inventory) -> Adoption:
    """Return the adoption. Raises Refused if none of the VMs is in this vCenter."""
    planned = plan_adoption(nights, inventory)
    if not planned.adopted:
        raise Refused(
            f"no VM of an open night of vCenter {nights.vcenter} is in this vCenter",
            hint="check its uuid: gpuops rotate status",
        )
    return planned


def _open_nights(vcenter: str, journal: Journal | None) -> NightsElsewhere:
    """Return the VMs that open nights in this journal have taken."""
    originals = NightVms(journal).all() if journal is not None else ()
    return NightsElsewhere(vcenter, tuple(original for original in originals if original.taken))


def _save_adopted(nights: NightsElsewhere, inventory: Inventory, journal: Journal) -> None:
    """Save the VMs in this vCenter's journal, with their ids in this vCenter and the policies of their nights."""
    adopted_originals = [
        replace(original, vm=vm.ref, host=vm.host, name=vm.name) for original, vm in nights.seen_here(inventory)
    ]
    for night, policy in dict.fromkeys((original.night, original.policy) for original in adopted_originals):
        originals_of_night = [
            original for original in adopted_originals if (original.night, original.policy) == (night, policy)
        ]
        text, digest = (policy.text, policy.digest) if policy is not None else ("", "")
        run = journal.begin(RunKind.NIGHT, night=night, policy=text, policy_digest=digest)
        NightVms(journal).save_adopted(originals_of_night, run)
        journal.end(run)
