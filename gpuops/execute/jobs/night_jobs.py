"""The queue of a night with the VMs that jobs wait for, each by an entry of its own; past nights with their jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuops.execute.jobs.store import JobStore
from gpuops.execute.site import Site, catalog_of
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.rotation import Policy
from gpuops.plan.jobs.job_turns import job_turns, queue_entries, with_job_times


def job_store(site: Site) -> JobStore:
    """The jobs of this vCenter."""
    return JobStore(site.vcenter.uuid, site.state_dir, site.journal_url)


def with_jobs(policy: Policy, site: Site) -> Policy:
    """The policy whose queue names the VMs that jobs get tonight; the text that its night keeps stays as it is.

    Raises StateDamaged: a night that cannot read its jobs takes nothing.
    """
    entry = next((queued for queued in policy.ml if queued.for_jobs), None)
    if policy.jobs is None or entry is None:
        return policy
    submitted = job_store(site).read()
    if all(each.ended for each in submitted):
        return policy
    inventory, now = site.vcenter.inventory(), site.clock()
    turns = job_turns(submitted, policy.jobs, inventory, catalog_of(inventory), now, share=policy.fair_share)
    night = policy.night_at(now) or policy.next_night(now)
    return replace(policy, ml=(*policy.ml, *queue_entries(turns, entry, policy.jobs, night)))


def by_owners_of_jobs(nights: Iterable[PastNight], site: Site) -> tuple[PastNight, ...]:
    """These nights of vCenters of this journal, whose ML VMs have the times of the jobs that ran in them.

    Books are read of those vCenters alone whose journal notes owners. Raises StateDamaged.
    """
    nights = tuple(nights)
    for vcenter in sorted({night.vcenter for night in nights if any(vm.owner is not None for vm in night.ml)}):
        submitted = JobStore(vcenter, site.state_dir, site.journal_url).read()
        if submitted:
            of_it = iter(with_job_times((each for each in nights if each.vcenter == vcenter), submitted))
            nights = tuple(next(of_it) if each.vcenter == vcenter else each for each in nights)
    return nights
