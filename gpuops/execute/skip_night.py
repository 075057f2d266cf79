"""Notes in the journal that the next night is not taken. `gpuops rotate skip-next` calls it."""

from __future__ import annotations

from gpuops.execute.originals import Originals
from gpuops.execute.site import Site
from gpuops.model.rotation import Policy
from gpuops.plan.rotation.bounds import Skip, next_to_take


def skip_next(policy: Policy, site: Site, *, skipped: bool) -> Skip:
    """The next night, skipped, or taken after all. Raises Locked while a rotation runs: it may be that very night."""
    with site.locked_journal(site.vcenter.uuid, alone=False) as journal:
        now = site.clock()
        tonight = policy.night_at(now)
        night = next_to_take(policy, Originals(journal).all(tonight.id if tonight else None), now)
        was = night.id in journal.skipped(policy.name)
        if was is not skipped:
            journal.skip(policy.name, night.id, skipped=skipped)
        return Skip(policy.name, night, skipped, was is not skipped)
