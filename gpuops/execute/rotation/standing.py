"""Count the desktops that open nights hold, and until when, from a snapshot that was already read."""

from __future__ import annotations

from gpuops.execute.runs.nights import NightVms, last_policy
from gpuops.execute.site import Site
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.returns.return_time import night_due
from gpuops.plan.rotation.status import NightStanding
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms


def standing(site: Site, inventory: Inventory) -> NightStanding:
    """Return how many desktops open nights hold and when they are due, counted like `rotate status`.

    Reads the journal of this machine and the markers in the snapshot; sends no request to vCenter. Raises StateDamaged
    for a journal that cannot be read.
    """
    with site.journal_to_read(inventory.vcenter) as journal:
        policy = last_policy(journal)
        originals = NightVms(journal).all(returned=True) if journal is not None else ()
    night_vms = taken_vms(policy, originals, inventory)
    away_desktops = [
        night_vm
        for night_vm in night_vms
        if night_vm.whereabouts is Whereabouts.AWAY and night_vm.original.role is not Role.ML
    ]
    due = (
        night_due(policy, [night_vm.original for night_vm in away_desktops], site.clock())
        if policy is not None and away_desktops
        else None
    )
    return NightStanding(len(away_desktops), due.back_by if due is not None else None)
