"""Change: a plan for hosts brought into force by rolling reboots; gone on with, given up, or told of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, NotConnected
from gpuops.execute.change.exclusion import in_rotation, no_change_open, no_rotation_open, open_change
from gpuops.execute.change.history import history_of
from gpuops.execute.change.host_doer import HostDoer
from gpuops.execute.change.order import KIND, Order, dump_order, load_order
from gpuops.execute.change.turns import Told, Turns
from gpuops.execute.doer import Doer
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease import Held, leased
from gpuops.execute.lock import rotating
from gpuops.execute.resume import settle_open
from gpuops.execute.site import Site, catalog_of
from gpuops.model.inventory import Inventory
from gpuops.model.rolling import Rolling
from gpuops.model.rotation import Limits
from gpuops.plan.change.in_force import driven
from gpuops.plan.change.report import ChangeReport, ChangeStatus, HostProgress
from gpuops.plan.change.roll import Roll, needed, rolled, shut, turns_of
from gpuops.plan.host_plan import HostOutcome, HostRequest
from gpuops.plan.outcome import Verdict
from gpuops.plan.plan import Rejection
from gpuops.plan.steps import HostStep

Agreed = Callable[[ChangeReport], None]
"""Called just before anything is changed; what it raises ends the run with nothing changed."""

RESUME: Final = "gpuops change resume goes on with it, gpuops change abort gives it up; gpuops change status shows it"
NO_CHANGE: Final = Roll(because=("no change of hosts was cut off",))


def roll(
    request: HostRequest, verb: str, rolling: Rolling, site: Site, *, apply: bool, consent: Agreed, told: Told
) -> ChangeReport:
    """What the request would change on this site's hosts by rolling reboots, and with `apply` what became of it.

    An infeasible plan is an answer. Raises UsageError, NotConnected, StateDamaged, Locked while a rotation runs.
    """
    with site.remembering(site.vcenter.uuid) as journal:
        report = _look(request, verb, rolling, site, journal)
    if not apply or not report.plan.feasible or not report.plan.rounds:
        return replace(report, applied=apply)
    consent(report)
    with site.changing(report.before.vcenter, alone=True) as journal:
        no_change_open(journal)
        no_rotation_open(journal)
        lock_vm = _lock_vm(journal)
        with leased(site, lock_vm, returning=False) as lease:
            # what came to pass while this waited for an answer is seen
            report = _look(request, verb, rolling, site, journal)
            if not report.plan.feasible or not report.plan.rounds:
                return replace(report, applied=True)
            order = _order(report, lock_vm)
            run = journal.begin(KIND, order=dump_order(order))
            done = _gone_on_with(run, order, site, journal, lease.held, told)
            return replace(done, plan=replace(report.plan, because=()))


def resume(site: Site, *, apply: bool, consent: Agreed, told: Told) -> ChangeReport:
    """Goes on with the change that did not end; an empty plan when there is none.

    A host whose turn has begun is finished at any hour; no other is begun while the window is closed.
    """
    return _taken_up(site, apply=apply, consent=consent, told=told, giving_up=False)


def abort(site: Site, *, apply: bool, consent: Agreed, told: Told) -> ChangeReport:
    """Ends the change: hosts whose turn has begun serve VMs again, with their own back; the others are left alone."""
    return _taken_up(site, apply=apply, consent=consent, told=told, giving_up=True)


def status(site: Site) -> ChangeStatus:
    """The change that has not ended, host by host."""
    with site.remembering(site.vcenter.uuid) as journal:
        run = open_change(journal)
        if journal is None or run is None:
            return ChangeStatus()
        order = load_order(run.order)
        history = history_of(journal.book.runs[run.id].intents.values())
        hosts = []
        for step in order.steps:
            state = "to do" if step.host not in history.begun else "under way"
            away = tuple(sorted(taken.name for taken in history.taken.get(step.host, {}).values()))
            done = step.host in history.ended
            hosts.append(HostProgress(step.host, order.names[step.host], "done" if done else state, away))
    holder = rotating(site.state_dir, site.vcenter.uuid)
    return ChangeStatus(order.verb, run.started, str(holder) if holder is not None else "", tuple(hosts))


def _look(request: HostRequest, verb: str, rolling: Rolling, site: Site, journal: Journal | None) -> ChangeReport:
    before = site.vcenter.inventory()
    before = site.vcenter.hosts.with_settings(before, request.hosts(before))
    catalog = catalog_of(before)
    plan = rolled(request.plan(before, catalog), rolling, before, catalog, site.clock())
    rejections = [*in_rotation(journal, [turn.host.ref for turn in plan.turns], before), *_lacking(plan, site, before)]
    return ChangeReport(verb, rolling, before, Roll(rejections=tuple(rejections)) if rejections else plan)


def _lacking(plan: Roll, site: Site, inventory: Inventory) -> Iterable[Rejection]:
    """A refusal for each host and VM on which this login lacks a privilege that the roll needs."""
    on_hosts, on_vms = needed(plan.turns)
    missing: dict[str, Collection[str]] = {}
    if on_hosts:
        lacking = site.vcenter.hosts.lacking(on_hosts)
        missing |= {inventory.hosts[ref].name: privileges for ref, privileges in lacking.items() if privileges}
    if on_vms:
        found: Mapping[str, Collection[str]] = site.vcenter.lacking(on_vms)
        missing |= {inventory.vm(ref).name: privileges for ref, privileges in found.items() if privileges}
    hint = "ask for a role with it there, or log in as somebody who has it"
    for name, privileges in missing.items():
        yield Rejection(name, f"this login lacks {', '.join(sorted(privileges))}", hint=hint)


def _order(report: ChangeReport, lock_vm: str | None) -> Order:
    turns = report.plan.turns
    return Order(
        verb=report.verb,
        steps=tuple(turn.step for turn in turns),
        names={turn.host.ref: turn.host.name for turn in turns},
        gpus={turn.host.ref: driven(turn.host) for turn in turns},
        rolling=report.rolling,
        lock_vm=lock_vm,
    )


def _lock_vm(journal: Journal) -> str | None:
    """The lock VM of the last night's policy: its lease keeps rotations of other machines away."""
    text = journal.last_policy("rotate night")
    return parse_policy(text, "the journal", accepted_before=True).lock_vm if text else None


def _taken_up(site: Site, *, apply: bool, consent: Agreed, told: Told, giving_up: bool) -> ChangeReport:
    with site.remembering(site.vcenter.uuid) as seen:
        run = open_change(seen)
    before = site.vcenter.inventory()
    if run is None:
        return ChangeReport("change", Rolling(), before, NO_CHANGE, applied=apply)
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if holder is not None:
        raise Locked(f"{holder} is changing this vCenter: nothing is cut off", hint="gpuops change status shows it")
    order = load_order(run.order)
    report = ChangeReport(order.verb, order.rolling, before, Roll(because=(f"goes on with: {order.verb}",)))
    if not apply:
        return report
    consent(report)
    with site.changing(site.vcenter.uuid, alone=True) as journal:
        run = open_change(journal)
        if run is None:
            return replace(report, plan=NO_CHANGE, applied=True)
        order = load_order(run.order)
        with leased(site, order.lock_vm, returning=giving_up) as lease:
            if giving_up:
                return _given_up(run, order, site, journal, lease.held, told, report)
            return replace(_gone_on_with(run, order, site, journal, lease.held, told), plan=report.plan)


def _turns(
    run: Run, order: Order, site: Site, journal: Journal, lease: Held | None, told: Told = lambda line: None
) -> Turns:
    return Turns(site, order, HostDoer(site.vcenter, journal, run, lease, site.passed_s), told)


def _gone_on_with(run: Run, order: Order, site: Site, journal: Journal, lease: Held | None, told: Told) -> ChangeReport:
    """The turns that are left, round by round, until one goes wrong or the window closes."""
    turns = _turns(run, order, site, journal, lease, told)
    try:
        outcomes = _Rounds(turns, site, order).all()
    except NotConnected as lost:
        lost.hint = f"{lost.hint}; then finish what was begun: gpuops change resume".removeprefix("; ")
        raise
    left = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    if not left:
        journal.end(run)
    afterwards = (RESUME,) if left else ()
    before = turns.doer.inventory
    return ChangeReport(order.verb, order.rolling, before, Roll(), tuple(outcomes), True, afterwards)


def _given_up(
    run: Run, order: Order, site: Site, journal: Journal, lease: Held | None, told: Told, report: ChangeReport
) -> ChangeReport:
    turns = _turns(run, order, site, journal, lease, told)
    _settle(turns)
    open_hosts = turns.history().left_open
    outcomes = turns.give_up([step for step in order.steps if step.host in open_hosts])
    left = [outcome for outcome in outcomes if outcome.verdict is not Verdict.DONE]
    if not left:
        journal.end(run)
    return replace(report, outcomes=tuple(outcomes), applied=True, afterwards=(RESUME,) if left else ())


@dataclass(slots=True)
class _Rounds:
    """The rounds that are left of a change."""

    turns: Turns
    site: Site
    order: Order

    def all(self) -> list[HostOutcome]:
        _settle(self.turns)
        history = self.turns.history()
        outcomes = [HostOutcome(step, Verdict.ALREADY) for step in self.order.steps if step.host in history.ended]
        begun = [step for step in self.order.steps if step.host in history.left_open]
        waiting = [step for step in self.order.steps if step.host not in history.begun]
        stopped = ""
        if begun:
            outcomes += self.turns.take(begun)
            stopped = _why_stopped(outcomes, self.order)
        while waiting and not stopped:
            stopped = self._closed()
            if stopped:
                break
            size = self._fit(waiting)
            outcomes += self.turns.take(waiting[:size])
            del waiting[:size]
            stopped = _why_stopped(outcomes, self.order)
        return [*outcomes, *(HostOutcome(step, Verdict.SKIPPED, stopped) for step in waiting)]

    def _closed(self) -> str:
        """Why no other host may be begun; empty = one may."""
        closed = next(shut(self.order.rolling, self.site.clock()), None)
        return self.turns.doer.objection() or (str(closed) if closed is not None else "")

    def _fit(self, waiting: Sequence[HostStep]) -> int:
        """How many of the next hosts can be down together."""
        size = min(self.order.rolling.max_hosts, len(waiting))
        inventory = self.turns.doer.look()
        catalog = catalog_of(inventory)
        while size > 1 and any(
            isinstance(each, Rejection) for each in turns_of(waiting[:size], self.order.rolling, inventory, catalog)
        ):
            size -= 1
        return size


def _why_stopped(outcomes: Iterable[HostOutcome], order: Order) -> str:
    bad = [each for each in outcomes if each.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    return f"not begun, because of {order.names[bad[0].step.host]}" if bad else ""


def _settle(turns: Turns) -> None:
    """What a run that was cut off left in flight on VMs is waited for, and noted as vCenter shows it."""
    doer = turns.doer
    vms = Doer(doer.vcenter, doer.journal, doer.run, doer.inventory, passed_s=turns.site.passed_s)
    settle_open(vms, timeout_s=Limits().step_timeout_s)
