"""Move VMs of open nights from another vCenter's journal to this one's, after a rebuild or a move of VMs.

Only journals change; vCenter is only read. The VMs are first saved in the journal of this vCenter, then closed in the
journal of the other one. After a crash in between, run the same command again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpuops.errors import Refused
from gpuops.execute.journal import Journal
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.runs.run_kind import ROTATION_RUNS, RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.site.agreement import apply_agreed
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.returns.foreign_nights import Adoption, NightsElsewhere, plan_adoption


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
        return _plan(_open_nights(from_vcenter, other_journal), inventory)

    with site.journal_to_read(from_vcenter) as other_journal:
        planned = look(other_journal)

    def move_nights(current: Adoption, other_journal: Journal) -> Adoption:
        nights = _open_nights(from_vcenter, other_journal)
        # saved here before they are closed there: after a crash in between, no VM is lost and the call can be repeated
        with site.locked_journal(inventory.vcenter, alone=True) as this_journal:
            _adopt(nights, inventory, this_journal)
        originals_here = [original for original, _ in nights.seen_here(inventory)]
        for original in originals_here:
            NightVms(other_journal).record_return(original)
        if len(originals_here) == len(nights.originals):
            for run in other_journal.open_runs(ROTATION_RUNS):
                other_journal.end(run, cut_off=True)
        return replace(current, applied=True)

    lock = partial(site.locked_journal, from_vcenter, alone=True)
    return apply_agreed(planned, consent, move_nights, apply=apply, lock=lock, look_again=look)


def _plan(nights: NightsElsewhere, inventory: Inventory) -> Adoption:
    """Return the adoption. Raises Refused if none of the VMs is in this vCenter."""
    planned = plan_adoption(nights, inventory)
    if not planned.adopted:
        raise Refused(
            f"no VM of an open night of vCenter {nights.vcenter} is in this vCenter", hint="gpuops rotate status"
        )
    return planned


def _open_nights(vcenter: str, journal: Journal | None) -> NightsElsewhere:
    originals = NightVms(journal).all() if journal is not None else ()
    return NightsElsewhere(vcenter, tuple(original for original in originals if original.taken))


def _adopt(nights: NightsElsewhere, inventory: Inventory, journal: Journal) -> None:
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
