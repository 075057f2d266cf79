"""Adds the VMs of waiting jobs to the queue of a night, and the times of jobs to past nights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gpuops.execute.rotation.night_extension import NightExtension
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.jobs.job_turns import job_turns, queue_entries, with_job_times
from gpuops.extras.jobs.store import JobStore
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.rotation import Policy


def job_store(site: Site) -> JobStore:
    """Return the store of the jobs of this vCenter."""
    return JobStore(site.vcenter.uuid, site.state_dir, site.journal_url)


def with_jobs(policy: Policy, site: Site) -> Policy:
    """Return the policy with the VMs that jobs get tonight added to its queue. The policy's stored text is not changed.

    Raises StateDamaged: a night that cannot read its jobs takes no desktops.
    """
    queue_entry = next((queued for queued in policy.ml if queued.for_jobs), None)
    if policy.jobs is None or queue_entry is None:
        return policy
    submitted = job_store(site).read()
    if all(job.ended for job in submitted):
        return policy
    inventory, now = site.vcenter.inventory(), site.clock()
    turns = job_turns(submitted, policy.jobs, inventory, catalog_of(inventory), now, share=policy.fair_share)
    night = policy.night_at(now) or policy.next_night(now)
    return replace(policy, ml=(*policy.ml, *queue_entries(turns, queue_entry, policy.jobs, night)))


def by_owners_of_jobs(nights: Iterable[PastNight], site: Site) -> tuple[PastNight, ...]:
    """Return these nights, in the same order, with the times of the jobs that ran in their ML VMs.

    Reads the jobs only of vCenters whose ML VMs have owners, because only such VMs get times of jobs. Raises
    StateDamaged.
    """
    nights = tuple(nights)
    for vcenter in sorted({night.vcenter for night in nights if any(vm.owner is not None for vm in night.ml)}):
        submitted = JobStore(vcenter, site.state_dir, site.journal_url).read()
        if submitted:
            of_vcenter = (past for past in nights if past.vcenter == vcenter)
            adjusted_nights = iter(with_job_times(of_vcenter, submitted))
            nights = tuple(next(adjusted_nights) if past.vcenter == vcenter else past for past in nights)
    return nights


class JobsAtNight(NightExtension):
    """What jobs add to nights."""

    def add_to_queue(self, policy: Policy, site: Site) -> Policy:
        return with_jobs(policy, site)

    def before_return(self, site: Site) -> None:
        from gpuops.extras.jobs.nightly import stop_and_report

        stop_and_report(site)

    def by_owners(self, nights: tuple[PastNight, ...], site: Site) -> tuple[PastNight, ...]:
        return by_owners_of_jobs(nights, site)


JOBS_AT_NIGHT: Final = JobsAtNight()
