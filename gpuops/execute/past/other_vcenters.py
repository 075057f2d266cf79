"""What a run knows of other vCenters that share its journal: what their nights came to, and which requests across sites
are assigned to whom."""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.errors import StateDamaged
from gpuops.execute.journal.every_record import opened_journal
from gpuops.execute.past.past_events import read_events
from gpuops.execute.runs.assignments import AssignmentStore
from gpuops.execute.site import Site
from gpuops.model.nights.across_sites import (
    NOTHING_ELSEWHERE,
    NOTHING_HERE,
    Assignment,
    Elsewhere,
    RequestsHere,
    assigned_to,
)
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.rotation import Policy


def assignments_of(site: Site) -> AssignmentStore:
    return AssignmentStore(site.state_dir, site.journal_url)


def requests_here(policy: Policy, site: Site) -> tuple[RequestsHere, Elsewhere]:
    """Which requests across sites may start in this vCenter, and what teams have in others, as far as the policy asks.

    Raises StateDamaged for a journal that cannot be read.
    """
    across = any(queued.across_sites for queued in policy.ml)
    counts = policy.fair_share is not None and policy.fair_share.across_sites
    if not (across or counts):
        return NOTHING_HERE, NOTHING_ELSEWHERE
    known = assignments_of(site).read()
    uuid = site.vcenter.uuid
    others = tuple(each for each in known.values() if each.vcenter != uuid)
    here = RequestsHere(
        frozenset(name for name, each in known.items() if each.vcenter == uuid),
        {each.name: assigned_to(each.site) for each in others},
    )
    return here, other_vcenters(site, others) if counts else NOTHING_ELSEWHERE


def requests_looked_at(policy: Policy, site: Site, left_out: Mapping[str, str]) -> tuple[RequestsHere, Elsewhere]:
    """The same for who asks what would start here: whatever is not left out. What is promised counts
    nowhere, for who asks counts it himself."""
    counts = policy.fair_share is not None and policy.fair_share.across_sites
    return RequestsHere(others=left_out, looking=True), other_vcenters(site) if counts else NOTHING_ELSEWHERE


def other_vcenters(site: Site, assigned: tuple[Assignment, ...] = ()) -> Elsewhere:
    """The nights of the other vCenters in this journal, and of these assignments those that are not begun."""
    return Elsewhere(_nights_of_others(site), tuple(each for each in assigned if each.is_promised))


def _nights_of_others(site: Site) -> tuple[PastNight, ...]:
    found: list[PastNight] = []
    with opened_journal(site.state_dir, site.journal_url) as journal:
        for vcenter in journal.vcenters:
            if vcenter == site.vcenter.uuid:
                continue
            try:
                found += read_events(vcenter, journal.records(vcenter)).nights()
            except (KeyError, TypeError, ValueError) as error:
                raise StateDamaged(
                    f"the journal {journal.name} holds a record that this version cannot read: {error!r}",
                    hint="gpuops rotate audit verify names it; use the gpuops that wrote it",
                ) from error
    return tuple(found)
