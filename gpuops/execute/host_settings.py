"""Host settings: a plan for hosts carried out, one host after another, each effect in the journal before it is sent.

look -> already done? -> anything against it? -> intent on disk -> send -> look again -> outcome on disk. A reply that
was lost is answered by looking. A host that fails ends nothing for the others: their settings do not depend on it.
"""

from __future__ import annotations

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown
from gpuops.execute.host_port import Hosts
from gpuops.execute.journal import IntentState, Journal, Run
from gpuops.execute.site import Site, catalog_of
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.core.outcome import Outcome, Report, Verdict
from gpuops.plan.core.plan import Plan, Rejection, refuse
from gpuops.plan.core.privileges import needed_on_host
from gpuops.plan.core.step_checks import host_objection, host_satisfied
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.host_plan import HostRequest

_STATES = {
    Verdict.DONE: IntentState.DONE,
    Verdict.FAILED: IntentState.FAILED,
    Verdict.UNKNOWN: IntentState.UNKNOWN,
}


def configure(request: HostRequest, site: Site, *, apply: bool) -> Report[HostStep]:
    """What the request would change on this site's hosts, and with `apply` what became of it.

    An infeasible plan is an answer. Raises UsageError, NotConnected, StateDamaged, Locked while a rotation runs.
    """
    report = _look(request, site)
    if not apply or not report.plan.feasible or not report.plan.steps:
        return Report(request, report.before, report.plan, applied=apply)
    with site.changing(report.before.vcenter, alone=False) as journal:
        # what a rotation did while this waited for the lock is seen: nothing is set on a host whose desktops it took
        report = _look(request, site)
        if not report.plan.feasible or not report.plan.steps:
            return Report(request, report.before, report.plan, applied=True)
        run = journal.begin(type(request).__name__.lower())
        outcomes = []
        for step in report.plan.steps:
            outcome = _Effect(site.hosts, journal, run, report.before).of(step)
            outcomes.append(outcome)
        journal.end(run)
    return Report(request, report.before, report.plan, tuple(outcomes), applied=True)


def _look(request: HostRequest, site: Site) -> Report[HostStep]:
    before = site.vcenter.inventory()
    before = site.hosts.with_settings(before, request.hosts(before))
    plan = request.plan(before, catalog_of(before))
    return Report(request, before, _permitted(plan, site.hosts, before))


def _permitted(plan: Plan[HostStep], hosts: Hosts, inventory: Inventory) -> Plan[HostStep]:
    """The plan, refused when this login lacks a privilege that one of its steps needs."""
    steps = plan.steps or plan.withheld
    needed: dict[str, frozenset[str]] = {}
    for step in steps:
        needed[step.host] = needed.get(step.host, frozenset()) | needed_on_host(step)
    lacking = hosts.lacking(needed) if needed else {}
    rejections = tuple(
        Rejection(
            inventory.hosts[ref].name,
            f"this login lacks {', '.join(sorted(missing))}",
            hint="ask for a role with it on the host, or log in as somebody who has it",
        )
        for ref, missing in lacking.items()
        if missing
    )
    return refuse(*plan.rejections, *rejections) if rejections else plan


class _Effect:
    """One step, from the last look to the read-back."""

    def __init__(self, hosts: Hosts, journal: Journal, run: Run, planned: Inventory) -> None:
        self._hosts = hosts
        self._journal = journal
        self._run = run
        self._inventory = planned

    def of(self, step: HostStep) -> Outcome[HostStep]:
        """What became of it. Raises NotConnected (the intent stays open) and StateDamaged (nothing was sent)."""
        host = self._look(step)
        if host_satisfied(step, host):
            return Outcome(step, Verdict.ALREADY)
        reason = host_objection(step, host)
        if reason is not None:
            return Outcome(step, Verdict.SKIPPED, reason)
        op_id = self._journal.intend(self._run, step, self._inventory)
        try:
            self._hosts.configure(step, self._inventory, op_id)
        except NotConnected:
            raise
        except GpuopsError as error:
            return self._judged(op_id, step, error)
        return self._judged(op_id, step, None)

    def _judged(self, op_id: str, step: HostStep, error: GpuopsError | None) -> Outcome[HostStep]:
        """The state decides, not the reply: reached is done, whatever was said."""
        if host_satisfied(step, self._look(step)):
            outcome = Outcome(step, Verdict.DONE)
        elif error is None:
            outcome = Outcome(step, Verdict.UNKNOWN, "the host called it done, and does not show it")
        else:
            verdict = Verdict.UNKNOWN if isinstance(error, OutcomeUnknown) else Verdict.FAILED
            outcome = Outcome(step, verdict, error.line, trouble=error.trouble)
        self._journal.settled(op_id, _STATES[outcome.verdict], outcome.reason)
        return outcome

    def _look(self, step: HostStep) -> Host:
        self._inventory = self._hosts.with_settings(self._inventory, [step.host])
        return self._inventory.hosts[step.host]
