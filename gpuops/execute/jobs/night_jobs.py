"""The queue of a night with the VMs that jobs wait for, each by an entry of its own."""

from __future__ import annotations

from dataclasses import replace

from gpuops.execute.jobs.store import JobStore
from gpuops.execute.site import Site, catalog_of
from gpuops.model.nights.rotation import Policy
from gpuops.plan.jobs.turns import job_turns, queue_entries


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
