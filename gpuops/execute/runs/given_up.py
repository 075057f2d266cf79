"""What people gave up for good, as the journal has it, compared with what vCenter shows."""

from __future__ import annotations

from gpuops.execute.journal import Journal
from gpuops.execute.site import Site
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import Missed, is_back, missed


def still_given_up(journal: Journal | None, site: Site, inventory: Inventory | None = None) -> tuple[Missed, ...]:
    """Those that are not back. vCenter is asked only where there is one."""
    given = journal.given_up() if journal is not None else ()
    return missed(given, inventory or site.vcenter.inventory()) if given else ()


def note_returned(journal: Journal, inventory: Inventory) -> None:
    """Lets go of those that are back."""
    back = [each for each in journal.given_up() if is_back(each, inventory)]
    if back:
        journal.back(back)
