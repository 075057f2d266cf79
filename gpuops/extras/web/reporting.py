"""The report of a fleet, from one read of vCenter and from the past nights in the journal. Changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpuops.advise.gpu_hours import owner_in, showback
from gpuops.api.host_checks import doctor
from gpuops.api.vms import capacity, idle
from gpuops.execute.past.past_runs import history
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.jobs.nightly import by_owners_of_jobs
from gpuops.extras.observe.stored_gpu_use import StoredUse, stored_use
from gpuops.extras.web.page.fleet_report import FleetReport
from gpuops.model.nights.history import EventKind
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.scope import Scope
from gpuops.report.monitoring.fleet_view import fleet


def fleet_report(
    site: Site,
    *,
    since: datetime | None = None,
    policy: Policy | None = None,
    owners: OwnerKey | None = None,
    measured: StoredUse | None = None,
) -> FleetReport:
    """Return the current fleet, and this vCenter's nights that began at `since` or later; None = all of them.

    With a policy, it also has which desktops are idle, and what fits once a night has suspended those it may take.
    `measured`: the numbers of an earlier report; the store is read again only after a new observation. Raises
    NotConnected, and StateDamaged for a journal, a store of measurements or a diagnosis that cannot be read.
    """
    owners = owners or OwnerKey()
    examination = doctor(site, Scope())
    inventory = site.with_vgpus(examination.inventory)
    if owners.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    judged = None
    if policy is not None:
        inventory, judged = idle(inventory, site, policy)
    past = history(site.state_dir, site.journal_url, since=since, kind=EventKind.NIGHT)
    # the journal may hold several vCenters
    nights = replace(past, nights=tuple(night for night in past.nights if night.vcenter == inventory.vcenter))
    return FleetReport(
        fleet=fleet(inventory, catalog_of(inventory)),
        examination=examination,
        capacity=capacity(CapacityRequest(), inventory, site, policy),
        nights=nights,
        since=since,
        policy=policy,
        idle=judged,
        showback=showback(by_owners_of_jobs(nights.nights, site), owner_in(inventory, owners)),
        owners=owners,
        diagnoses=Diagnoses(site.state_dir).newest(inventory.vcenter),
        measured=stored_use(*site.measurements_store, inventory, measured),
    )
