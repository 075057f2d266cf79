"""Makes VMs of open nights of another vCenter VMs of nights of this one: it was rebuilt, or its VMs were moved here.

Only journals change; vCenter is read and not changed. The VMs are first saved in the journal of this vCenter, then
closed in that of the other one. After a crash in between, the same command does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuops.errors import Refused
from gpuops.execute.journal import Journal
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.runs.run_kind import ROTATION_RUNS, RunKind
from gpuops.execute.site import Site
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.returns.foreign_nights import Adoption, NightsElsewhere, plan_adoption


def adopt(
    site: Site,
    from_vcenter: str,
    *,
    apply: bool = True,
    consent: Callable[[Adoption], None] = lambda planned: None,
) -> Adoption:
    """Adopts the VMs of open nights of the vCenter with this instance uuid that are in this vCenter.

    `rotate day` then brings them back. Raises Refused where there is none, Locked while a rotation of either runs.
    """
    inventory = site.vcenter.inventory()
    from_vcenter = from_vcenter.strip().lower()
    if from_vcenter == inventory.vcenter:
        raise Refused(f"{from_vcenter} is this vCenter: its nights need no adoption", hint="gpuops rotate day")
    with site.journal_to_read(from_vcenter) as other:
        planned = plan_adoption(_open_nights(from_vcenter, other), inventory)
    if not planned.adopted:
        raise Refused(
            f"no VM of an open night of vCenter {from_vcenter} is in this vCenter", hint="gpuops rotate status"
        )
    if not apply:
        return planned
    consent(planned)
    with (
        site.locked_journal(from_vcenter, alone=True) as other,
        site.locked_journal(inventory.vcenter, alone=True) as own,
    ):
        nights = _open_nights(from_vcenter, other)
        if plan_adoption(nights, inventory).adopted != planned.adopted:
            raise Refused(f"the nights of vCenter {from_vcenter} have changed meanwhile", hint="the same again")
        _adopt(nights, inventory, own)
        here = [original for original, _ in nights.seen_here(inventory)]
        for original in here:
            NightVms(other).record_return(original)
        if len(here) == len(nights.originals):
            for run in other.open_runs(ROTATION_RUNS):
                other.end(run, cut_off=True)
        return replace(plan_adoption(nights, inventory), applied=True)


def _open_nights(vcenter: str, journal: Journal | None) -> NightsElsewhere:
    originals = NightVms(journal).all() if journal is not None else ()
    return NightsElsewhere(vcenter, tuple(original for original in originals if original.taken))


def _adopt(nights: NightsElsewhere, inventory: Inventory, journal: Journal) -> None:
    """Keeps them in this vCenter's journal, under the ids that they have here and the policies of their nights."""
    here = [replace(original, vm=vm.ref, host=vm.host, name=vm.name) for original, vm in nights.seen_here(inventory)]
    for night, policy in dict.fromkeys((original.night, original.policy) for original in here):
        mine = [original for original in here if (original.night, original.policy) == (night, policy)]
        text, digest = (policy.text, policy.digest) if policy is not None else ("", "")
        run = journal.begin(RunKind.NIGHT, night=night, policy=text, policy_digest=digest)
        NightVms(journal).save_adopted(mine, run)
        journal.end(run)
