"""Plans the night of a moment on what vCenter shows and the journal knows; nothing is done."""

from __future__ import annotations

from datetime import datetime

from gpuops.config.policy import parse_policy
from gpuops.errors import UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.originals import Originals
from gpuops.execute.run_kind import RunKind
from gpuops.execute.site import Site, catalog_of
from gpuops.model.rotation import Original, Policy
from gpuops.plan.rotation.night import RotateNight
from gpuops.plan.rotation.preview import NightPreview, preview_night
from gpuops.plan.rotation.return_time import Durations


def preview(policy: Policy | None, site: Site, at: datetime | None) -> NightPreview:
    """The night of this moment; None = now. Without a policy, under that of the last night in the journal."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        obeyed = policy or _remembered(journal)
        moment = obeyed.moment(at) if at is not None else site.clock()
        originals: tuple[Original, ...] = ()
        if journal is not None:
            originals = Originals(journal).all(obeyed.night(moment) if obeyed.windows else None)
        measured = Durations.of(journal.durations() if journal else {})
        skipped = journal.skipped(obeyed.name) if journal else frozenset()
        setbacks = journal.setbacks() if journal else {}
        over = journal.over() if journal else frozenset()
    request = RotateNight(obeyed, originals, measured, skipped, setbacks, over=over)
    seen = site.vcenter.inventory()
    if obeyed.needs_tags:
        seen = site.vcenter.with_tags(seen)
    return preview_night(request, seen, catalog_of(seen), moment)


def _remembered(journal: Journal | None) -> Policy:
    text = journal.last_policy(RunKind.NIGHT) if journal else None
    if not text:
        raise UsageError("no night in the journal of this vCenter", hint="say the policy: --policy FILE")
    return parse_policy(text, "the journal", accepted_before=True)
