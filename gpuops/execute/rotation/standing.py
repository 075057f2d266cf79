"""How the nights that are not over stand on a snapshot that was read already: what they hold, and until when."""

from __future__ import annotations

from gpuops.execute.runs.nights import NightVms, last_policy
from gpuops.execute.site import Site
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.returns.return_time import night_due
from gpuops.plan.rotation.status import NightStanding
from gpuops.plan.rotation.taken_vms import Whereabouts, taken_vms


def standing(site: Site, inventory: Inventory) -> NightStanding:
    """By the journal of this machine and vCenter's markers, as `rotate status` counts. Asks no vCenter.

    Raises StateDamaged for a journal that cannot be read.
    """
    with site.journal_to_read(inventory.vcenter) as journal:
        policy = last_policy(journal)
        originals = NightVms(journal).all(returned=True) if journal is not None else ()
    taken = taken_vms(policy, originals, inventory)
    away = [each for each in taken if each.whereabouts is Whereabouts.AWAY and each.original.role is not Role.ML]
    due = night_due(policy, [each.original for each in away], site.clock()) if policy is not None and away else None
    return NightStanding(len(away), due.back_by if due is not None else None)
