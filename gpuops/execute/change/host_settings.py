"""Carries out a plan for hosts, one host after another, for `api.configure`.

If a host fails, the other hosts are still changed: their settings do not depend on it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from socket import gethostname

from gpuops.execute.site import Site, catalog_of
from gpuops.execute.site.ports import Hosts
from gpuops.execute.steps.host_executor import SettingExecutor
from gpuops.execute.steps.vm_runs import end_killed_calls
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Plan, Report, refuse
from gpuops.plan.core.privileges import needed_on_host, privilege_rejection, too_old
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.host_plan import HostRequest, left_to_do, tells_impact


def configure(request: HostRequest, site: Site, *, apply: bool) -> Report[HostStep]:
    """Plan the request for this site's hosts and, with `apply`, carry it out. Return the plan and the outcomes.

    An infeasible plan is returned, not raised. Raises UsageError, NotConnected, StateDamaged, and Locked while a
    rotation runs.
    """
    if apply:
        end_killed_calls(request.run_kind, site)
    report = _look(request, site)
    if not apply or not report.plan.feasible or not report.plan.steps:
        return Report(request, report.before, report.plan, applied=apply)
    with site.locked_journal(report.before.vcenter, alone=False) as journal:
        # read again under the lock: a rotation may have suspended desktops of a host meanwhile, which then stays as is
        report = _look(request, site)
        if not report.plan.feasible or not report.plan.steps:
            return Report(request, report.before, report.plan, applied=True)
        # `end_killed_calls` recognises runs of this machine by this name
        run = journal.begin(request.run_kind, order=gethostname())
        executor = SettingExecutor(site.vcenter, site.hosts, journal, run, report.before, passed_s=site.passed_s)
        outcomes = tuple(executor.set(step) for step in report.plan.steps)
        journal.end(run)
    plan = report.plan
    if any(tells_impact(step) for step in plan.steps):
        plan = replace(plan, afterwards=left_to_do(plan, executor.impacts, report.before, "mode"))
    return Report(request, report.before, plan, outcomes, applied=True, after=executor.inventory)


def settings_for(request: HostRequest, site: Site, before: Inventory, hosts: Collection[str]) -> Inventory:
    """Return the snapshot with the settings of these hosts, and with all their devices if the request names one."""
    before = site.hosts.with_settings(before, hosts)
    named = isinstance(request, SetPassthrough) and request.device
    return site.hosts.with_other_devices(before, hosts) if named else before


def _look(request: HostRequest, site: Site) -> Report[HostStep]:
    before = site.vcenter.inventory()
    before = settings_for(request, site, before, request.hosts(before))
    plan = request.plan(before, catalog_of(before))
    return Report(request, before, _refuse_what_cannot_be_sent(plan, site.hosts, before))


def _refuse_what_cannot_be_sent(plan: Plan[HostStep], hosts: Hosts, inventory: Inventory) -> Plan[HostStep]:
    """Return the plan, or a refused plan if the vCenter is too old or this login lacks a privilege for a step."""
    steps = plan.steps or plan.withheld  # also of a refused plan: the admin then sees all reasons at once
    needed: dict[str, frozenset[str]] = {}
    for step in steps:
        needed[step.host] = needed.get(step.host, frozenset()) | needed_on_host(step)
    lacking = hosts.lacking(needed) if needed else {}
    hint = "ask for a role with this privilege on the host, or log in as a user who has it"
    on_hosts = tuple(
        privilege_rejection(inventory.hosts[ref].name, missing, hint=hint)
        for ref, missing in lacking.items()
        if missing
    )
    rejections = (*too_old(inventory), *on_hosts) if steps else ()
    return refuse(*plan.rejections, *rejections) if rejections else plan
