"""Compare the VMs and hosts that an admin gave up, by the journal, with vCenter."""

from __future__ import annotations

from gpuops.execute.journal import Journal
from gpuops.execute.site import Site
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import Missed, is_back, missed


def still_given_up(journal: Journal | None, site: Site, inventory: Inventory | None = None) -> tuple[Missed, ...]:
    """Return those that are not back. Reads vCenter only if the journal has any."""
    given_up_vms = journal.given_up() if journal is not None else ()
    return missed(given_up_vms, inventory or site.vcenter.inventory()) if given_up_vms else ()


def note_returned(journal: Journal, inventory: Inventory) -> None:
    """Note in the journal which of those are back."""
    returned = [given_up for given_up in journal.given_up() if is_back(given_up, inventory)]
    if returned:
        journal.back(returned)
