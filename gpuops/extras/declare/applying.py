"""Compares a vCenter with a site file, and changes the settings that differ: of hosts, with reboots, then of VMs.

Each phase is a run of the core with its own records in the journal: settings of hosts, a rolling change for reboots,
VMs. If gpuops is killed, the same command continues: it resumes the rolling change, and changes what still differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpuops.api import change, change_resume, change_status, configure, run
from gpuops.errors import PartlyDone, report_exit_code
from gpuops.execute.change.host_rounds import Told
from gpuops.execute.change.rolling_change import ChangeConsent, unheard
from gpuops.execute.site import Site, agreed, catalog_of
from gpuops.execute.site.agreement import no_step_more
from gpuops.execute.steps.vm_runs import end_killed_calls
from gpuops.extras.declare.entries import SiteFile
from gpuops.extras.declare.site_plan import SiteHosts, SiteVms, last_step_of_each_host
from gpuops.extras.declare.wishes import Comparison, HostWish, SiteDifference, compare, selected_hosts, selected_vms
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.rolling_plan import Roll, plan_roll
from gpuops.plan.hosts.graphics.device_mode_changes import host_after

VERB: Final = "apply"
"""The name of its rolling changes in journals. It is stored, and never changes."""
MOST_PASSES: Final = 3
"""The most passes over hosts: a GPU gets its graphics type only after DirectPath I/O is off and its host rebooted."""
VMS_WAIT: Final = Rejection(
    "vms",
    "are not changed, because some settings of hosts could not be made",
    hint="fix the errors of hosts in this report, then run the same command again",
)
REBOOT: Final = (
    "{} must be rebooted before all settings are in force: add --reboot rolling, or empty and reboot these hosts "
    "yourself"
)


@dataclass(frozen=True, slots=True)
class SiteReport:
    """The differences from a site file, the plan that removes them, and its outcomes. `applied` False = dry run."""

    before: Inventory
    comparison: Comparison
    hosts: Plan[HostStep]
    roll: Roll
    vms: Plan
    applied: bool = False
    host_outcomes: tuple[Outcome[HostStep], ...] = ()
    vm_outcomes: tuple[Outcome, ...] = ()
    unmet: tuple[Rejection, ...] = ()
    """The changes that became infeasible after other changes were made."""
    remaining: tuple[SiteDifference, ...] = ()
    """The settings that still differ afterwards; in a dry run and after a refusal all that differ."""
    warnings: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()

    @property
    def differences(self) -> tuple[SiteDifference, ...]:
        return self.comparison.differences

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        reasons = (
            *self.comparison.rejections,
            *self.hosts.rejections,
            *self.roll.rejections,
            *self.vms.rejections,
        )
        return tuple(dict.fromkeys(reasons))

    @property
    def feasible(self) -> bool:
        return not self.rejections

    @property
    def has_work(self) -> bool:
        """Return whether the plan changes something or reboots a host."""
        return bool(self.hosts.steps or self.roll.rounds or self.vms.steps)

    @property
    def disruptive(self) -> bool:
        """Return whether the plan stops, moves or reboots something."""
        return self.vms.disruptive or bool(self.roll.rounds)

    @property
    def changed(self) -> bool:
        """Return whether something was changed (applied), or would be (dry run)."""
        if not self.applied:
            return self.feasible and self.has_work
        return any(outcome.verdict is Verdict.DONE for outcome in (*self.host_outcomes, *self.vm_outcomes))

    @property
    def failures(self) -> tuple[Rejection, ...]:
        """Return the reasons why steps were not done, each with the name of its host or VM."""
        hosts, vms = self.before.hosts, self.before.vms
        names = {ref: host.name for ref, host in hosts.items()} | {ref: vm.name for ref, vm in vms.items()}
        reasons = [(outcome.step.host, outcome.reason) for outcome in self.host_outcomes if _has_failed((outcome,))]
        reasons += [(outcome.step.vm, outcome.reason) for outcome in self.vm_outcomes if _has_failed((outcome,))]
        return tuple(Rejection(names.get(ref, ref), reason) for ref, reason in reasons)

    @property
    def failed(self) -> bool:
        """Return whether a planned change was not done."""
        return bool(self.unmet) or _has_failed((*self.host_outcomes, *self.vm_outcomes))

    @property
    def exit_code(self) -> int:
        """Return 0 = done or nothing to do, 3 = refused, 4 = partly done."""
        return report_exit_code(refused=not self.feasible, partly=self.failed)


SiteConsent = Callable[[SiteReport], None]
"""Called before the first change. If it raises, nothing is changed."""


def plan_site(
    file: SiteFile, site: Site, rolling: Rolling | None = None, only: Collection[str] | None = None
) -> SiteReport:
    """Return what differs and how it would be changed, by vCenter's present state. Changes nothing.

    `rolling`: how hosts are rebooted; None = they are not. `only`: refs of the hosts and VMs that are changed; None =
    all. Raises NotConnected and its subclasses.
    """
    inventory = read_for(file, site)
    catalog, now = catalog_of(inventory), site.clock()
    comparison = compare(file, inventory, catalog, now)
    if only is not None:
        comparison = comparison.only(only)
    host_plan = SiteHosts(comparison.hosts).plan(inventory, catalog)
    roll = Roll()
    if rolling is not None and host_plan.feasible:
        waiting = [step for step in host_plan.steps if step.host in host_plan.reboots]
        # one step for each host: its reboot brings all settings of the host into force
        due = last_step_of_each_host((*waiting, *host_plan.due))
        roll = plan_roll(Plan(due=due), rolling, inventory, catalog, now)
    planned = inventory  # VMs are planned on the hosts as they will be after their steps
    for step in host_plan.steps:
        planned = planned.with_hosts([host_after(planned.hosts[step.host], step)])
    vm_plan = site.check_privileges(SiteVms(comparison.vms).plan(planned, catalog, now), inventory)
    warnings = dict.fromkeys((*host_plan.warnings, *roll.warnings, *vm_plan.warnings))
    report = SiteReport(inventory, comparison, host_plan, roll, vm_plan, warnings=tuple(warnings))
    # with `rolling` the plan reboots the hosts itself
    afterwards = _reboot_advice(comparison.differences, host_plan.reboots, inventory) if rolling is None else ()
    return replace(report, remaining=comparison.differences, afterwards=afterwards)


def _reboot_advice(
    differences: Iterable[SiteDifference], reboots: Collection[str], inventory: Inventory
) -> tuple[str, ...]:
    """Return the advice to reboot the hosts in `reboots`, and those with a difference that waits for a reboot."""
    refs = {difference.ref for difference in differences if difference.pending} | set(reboots)
    names = sorted(inventory.hosts[ref].name for ref in refs if ref in inventory.hosts)
    return (REBOOT.format(", ".join(names)),) if names else ()


def read_for(file: SiteFile, site: Site) -> Inventory:
    """Return the snapshot that the file is compared with: settings of its hosts, devices of its VMs, tags if needed."""
    inventory = site.vcenter.inventory()
    if file.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    hosts = selected_hosts(file, inventory)
    if hosts:
        inventory = site.hosts.with_settings(inventory, hosts)
    unread = [ref for ref in selected_vms(file, inventory) if inventory.vms[ref].devices is None]
    if unread:
        inventory = site.vcenter.observe(inventory, unread)
    # a first comparison shows on which hosts the plans of VMs need the devices that are available to VMs
    target_refs = SiteVms(compare(file, inventory, catalog_of(inventory), site.clock()).vms).config_targets(inventory)
    if target_refs:
        inventory = site.vcenter.with_config_targets(inventory, target_refs)
    return site.with_vgpus(inventory)


def apply_site(
    file: SiteFile,
    site: Site,
    rolling: Rolling | None = None,
    *,
    apply: bool,
    consent: SiteConsent = agreed,
    hear_progress: Told = unheard,
    only: Collection[str] | None = None,
    in_maintenance: ChangeConsent | None = None,
) -> SiteReport:
    """Change what differs from the file, and return the plan, the outcomes and what still differs.

    `only`: refs of the hosts and VMs that are changed; None = all. `in_maintenance`: if set, hosts are changed only in
    maintenance mode, after this function has consented to the plan for their VMs. `hear_progress`: gets the progress.

    If a part of the plan is infeasible, nothing is changed. A rolling change of an earlier call that was cut off is
    finished first. Raises NotConnected, Locked, StateDamaged, and Refused while a rotation or another change is open.
    """
    if apply:
        _finish_earlier_calls(site, hear_progress)
    report = plan_site(file, site, rolling, only)
    if not apply or not report.feasible or not report.has_work:
        return replace(report, applied=apply and report.feasible)
    consent(report)
    host_phase = _HostPhase(site, rolling, hear_progress, in_maintenance)
    if report.hosts.steps or report.roll.rounds:
        host_phase.set_hosts(report.comparison.hosts)
    vm_outcomes, unmet_vms = tuple[Outcome, ...](), tuple[Rejection, ...]()
    if report.vms.steps and not host_phase.is_done:
        unmet_vms = (VMS_WAIT,)
    elif report.vms.steps:
        vm_outcomes, unmet_vms = _set_vms(report, site, consent)
    after = compare_now(file, site)
    after = after if only is None else after.only(only)
    return replace(
        report,
        applied=True,
        host_outcomes=tuple(host_phase.outcomes),
        vm_outcomes=vm_outcomes,
        unmet=(*host_phase.unmet, *unmet_vms),
        remaining=after.differences,
        afterwards=_reboot_advice(after.differences, (), report.before),
    )


def compare_now(file: SiteFile, site: Site) -> Comparison:
    """Read the vCenter and return what differs from the file now."""
    inventory = read_for(file, site)
    return compare(file, inventory, catalog_of(inventory), site.clock())


def _finish_earlier_calls(site: Site, hear_progress: Told) -> None:
    """Wait for the steps of calls that were cut off, and finish their rolling change.

    Raises PartlyDone if the rolling change cannot be finished.
    """
    for request in (SiteHosts, SiteVms):
        end_killed_calls(request.run_kind, site)
    if change_status(site).verb != VERB:
        return
    resumed = change_resume(site, on_progress=hear_progress)
    if resumed.exit_code:
        raise PartlyDone(
            "the rolling change of an earlier gpuops apply could not be finished", hint="gpuops change status shows it"
        )


@dataclass(slots=True)
class _HostPhase:
    """The first phase: sets hosts, and reboots those that need it. Collects outcomes and refusals."""

    site: Site
    rolling: Rolling | None
    hear_progress: Told
    in_maintenance: ChangeConsent | None = None
    outcomes: list[Outcome[HostStep]] = field(default_factory=list)
    unmet: list[Rejection] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return not self.unmet and not _has_failed(self.outcomes)

    def set_hosts(self, wishes: tuple[HostWish, ...]) -> None:
        """Set what differs, in several passes if one setting must be in force before another can be set."""
        for _ in range(MOST_PASSES):
            if not self.is_done:
                return
            has_set = self.in_maintenance is None and self._set_hosts(wishes)
            has_rebooted = self.rolling is not None and self.is_done and self._reboot_hosts(wishes, self.rolling)
            if not has_set and not has_rebooted:
                return

    def _set_hosts(self, wishes: tuple[HostWish, ...]) -> bool:
        """Set what differs; return whether a step was tried."""
        set_report = configure(SiteHosts(wishes), self.site, apply=True)
        self._collect(set_report.plan.rejections, set_report.outcomes)
        return bool(set_report.outcomes)

    def _reboot_hosts(self, wishes: tuple[HostWish, ...], rolling: Rolling) -> bool:
        """Reboot the hosts on which settings wait for that; return whether a step was tried."""
        request, consent = SiteHosts(wishes, reboots_only=True), self.in_maintenance or agreed
        rolled = change(request, VERB, rolling, self.site, apply=True, consent=consent, on_progress=self.hear_progress)
        self._collect(rolled.plan.rejections, rolled.outcomes)
        return bool(rolled.outcomes)

    def _collect(self, rejections: tuple[Rejection, ...], outcomes: tuple[Outcome[HostStep], ...]) -> None:
        self.unmet += rejections
        self.outcomes += outcomes


def _set_vms(report: SiteReport, site: Site, consent: SiteConsent) -> tuple[tuple[Outcome, ...], tuple[Rejection, ...]]:
    """Change the VMs that differ now; return the outcomes, and the changes that became infeasible since the plan.

    Asks for consent again if the new plan has a step that the admin has not agreed to.
    """

    def ask_again(vm_report: Report) -> None:
        if not no_step_more(report.vms.steps, vm_report.plan.steps):
            # the hosts are done by now, so only the VMs are shown
            consent(replace(report, before=vm_report.before, hosts=Plan(), roll=Roll(), vms=vm_report.plan))

    vm_report = run(SiteVms(report.comparison.vms), site, apply=True, consent=ask_again)
    return vm_report.outcomes, vm_report.plan.rejections


def _has_failed(outcomes: Iterable[Outcome[Any]]) -> bool:
    """Return whether one of the outcomes is not a success."""
    return any(outcome.verdict not in (Verdict.DONE, Verdict.ALREADY) for outcome in outcomes)
