"""Brings a plan for hosts into force by rolling reboots; resumes, aborts or shows a change that did not end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuops.errors import Locked, NotConnected
from gpuops.execute.change import moves
from gpuops.execute.change.change_order import ChangeOrder, dump_order, load_order
from gpuops.execute.change.current_ids import order_now
from gpuops.execute.change.history import History, history_of, taken_from
from gpuops.execute.change.host_rounds import HostRounds, Told
from gpuops.execute.change.host_settings import settings_for
from gpuops.execute.change.host_tasks import HostTaskExecutor
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease import HeldLease, lease_during_run
from gpuops.execute.runs.exclusion import in_rotation, no_change_open, no_rotation_open, open_change
from gpuops.execute.runs.given_up import note_returned, still_given_up
from gpuops.execute.runs.nights import last_policy
from gpuops.execute.runs.run_kind import CHANGE, EXCLUSIVE_RUNS, RESUME_CHANGE
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.state.lock import rotating
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Rejection, Report, Verdict
from gpuops.plan.core.privileges import too_old
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.emptying import stun_hosts
from gpuops.plan.hosts.change.in_force import gpus_of_driver, stays_divided
from gpuops.plan.hosts.change.rolling_plan import (
    ChangeReport,
    ChangeStatus,
    PartProgress,
    Roll,
    next_round,
    plan_roll,
    privileges_of_hosts,
    shut,
)
from gpuops.plan.hosts.host_plan import HostRequest

Agreed = Callable[[ChangeReport], None]
"""Called just before anything is changed; what it raises ends the run with nothing changed."""

RESUME: Final = f"{RESUME_CHANGE} goes on with it"
ABORT: Final = "gpuops change abort gives it up"
STATUS: Final = "gpuops change status shows it"
LEFT: Final = "was given up: left as it is"
GOES_ON: Final = "goes on with"
GIVES_UP: Final = "gives up"
NO_CHANGE: Final = Roll(because=("no change of hosts was cut off",))


def agreed(report: ChangeReport) -> None:
    """The consent of a caller that asked before, or need not ask."""


def unheard(line: str) -> None:
    """What is told to a caller that does not listen."""


def roll(
    request: HostRequest,
    verb: str,
    rolling: Rolling,
    site: Site,
    *,
    apply: bool,
    consent: Agreed = agreed,
    told: Told = unheard,
) -> ChangeReport:
    """What the request would change on this site's hosts by rolling reboots, and with `apply` what became of it.

    `verb` is the command for people (`scheduler set`), `told` is called with a line as it goes on. An infeasible plan
    is an answer. Raises UsageError, NotConnected, StateDamaged, Refused while another change or a rotation is open,
    Locked.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        report = _look(request, verb, rolling, site, journal)
    if not apply or not report.plan.feasible or not report.plan.rounds:
        return replace(report, applied=apply)
    while True:
        consent(report)  # not under the lock: while somebody thinks it over, a return of desktops may begin
        agreed_to = report.plan.does
        with site.locked_journal(report.before.vcenter, alone=True) as journal:
            no_change_open(journal)
            no_rotation_open(journal)
            note_returned(journal, report.before)
            policy = last_policy(journal)
            lock = policy.lock_vm if policy else None
            with lease_during_run(site, lock, journal, (policy,) if policy else (), returning=False) as lease:
                # what came to pass while this waited for an answer is seen
                seen = journal.runs_seen(EXCLUSIVE_RUNS)
                report = _look(request, verb, rolling, site, journal)
                if not report.plan.feasible or not report.plan.rounds:
                    return replace(report, applied=True)
                if report.plan.does != agreed_to:
                    continue
                order = _order(report, lock)
                run = journal.begin(CHANGE, order=dump_order(order), known_runs=seen)
                done = _gone_on_with(_host_rounds(run, order, site, journal, lease.held, told))
                # as it was before: a host may be gone from vCenter since
                return replace(done, before=report.before, plan=replace(report.plan, because=()))


def resume(site: Site, *, apply: bool = True, consent: Agreed = agreed, told: Told = unheard) -> ChangeReport | Report:
    """Goes on with the change that did not end, of hosts or of moves; an empty plan when there is none.

    A host whose turn has begun is finished at any hour; no other is begun while the window is closed.
    """
    return _go_on(site, apply=apply, consent=consent, told=told, giving_up=False)


def abort(site: Site, *, apply: bool = True, consent: Agreed = agreed, told: Told = unheard) -> ChangeReport | Report:
    """Ends the change: hosts whose turn has begun serve VMs again, with their own back; the others are left alone."""
    return _go_on(site, apply=apply, consent=consent, told=told, giving_up=True)


def status(site: Site) -> ChangeStatus:
    """The change that has not ended, part by part."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        given_up = still_given_up(journal, site)
        run = open_change(journal)
        if journal is None or run is None:
            return ChangeStatus(given_up=given_up)
        holder = rotating(site.state_dir, site.vcenter.uuid)
        at_it = str(holder) if holder is not None else ""
        planned_moves = moves.load_moves(run.order)
        if planned_moves is not None:
            return replace(moves.move_status(run, planned_moves, site.vcenter.inventory(), at_it), given_up=given_up)
        order = load_order(run.order)
        mine = journal.state.runs[run.id]
        history = history_of(mine.intents.values(), mine.given_up)
    parts = tuple(PartProgress(step.host, order.names[step.host], *_progress(step, history)) for step in order.steps)
    return ChangeStatus(order.verb, run.started, at_it, parts, given_up=given_up)


def _progress(step: HostStep, history: History) -> tuple[str, tuple[str, ...]]:
    """(how far the change of the host is, names of its VMs that are not back)."""
    if step.host in history.given_up:
        return "given up", ()
    state = "to do" if step.host not in history.begun else "under way"
    away = tuple(sorted(taken.name for taken in taken_from(step.host, history).values()))
    return "done" if step.host in history.ended else state, away


def _look(request: HostRequest, verb: str, rolling: Rolling, site: Site, journal: Journal | None) -> ChangeReport:
    before = site.vcenter.inventory()
    meant = request.hosts(before)
    before = settings_for(request, site, before, meant)
    leave = stun_hosts([before.hosts[ref] for ref in meant if ref in before.hosts], before)
    before = site.vcenter.with_config_targets(before, leave)
    catalog = catalog_of(before)
    plan = plan_roll(request.plan(before, catalog), rolling, before, catalog, site.clock())
    rejections = [
        *in_rotation(journal, [planned.host.ref for planned in plan.planned_hosts], before),
        *(too_old(before) if plan.planned_hosts else ()),
        *_lacking(plan, site, before),
    ]
    return ChangeReport(verb, rolling, before, Roll(rejections=tuple(rejections)) if rejections else plan)


def _lacking(plan: Roll, site: Site, inventory: Inventory) -> Iterable[Rejection]:
    """A refusal for each host and VM on which this login lacks a privilege that the roll needs."""
    on_hosts, on_vms = privileges_of_hosts(plan.planned_hosts)
    missing: dict[str, Collection[str]] = {}
    if on_hosts:
        lacking = site.hosts.lacking(on_hosts)
        missing |= {inventory.hosts[ref].name: privileges for ref, privileges in lacking.items() if privileges}
    if on_vms:
        found: Mapping[str, Collection[str]] = site.vcenter.lacking(on_vms)
        missing |= {inventory.vm(ref).name: privileges for ref, privileges in found.items() if privileges}
    hint = "ask for a role with it there, or log in as somebody who has it"
    for name, privileges in missing.items():
        yield Rejection(name, f"this login lacks {', '.join(sorted(privileges))}", hint=hint)


def _order(report: ChangeReport, lock: str | None) -> ChangeOrder:
    hosts = report.plan.planned_hosts
    return ChangeOrder(
        verb=report.verb,
        steps=tuple(planned.step for planned in hosts),
        names={planned.host.ref: planned.host.name for planned in hosts},
        gpus={planned.host.ref: gpus_of_driver(planned.host) for planned in hosts},
        mig={planned.host.ref: stays_divided(planned.step, planned.host) for planned in hosts},
        uuids={planned.host.ref: planned.host.uuid for planned in hosts if planned.host.uuid is not None},
        rolling=report.rolling,
        lock_vm=lock,
    )


def _go_on(site: Site, *, apply: bool, consent: Agreed, told: Told, giving_up: bool) -> ChangeReport | Report:
    """What became of the change that did not end, gone on with or given up."""
    with site.journal_to_read(site.vcenter.uuid) as seen:
        run = open_change(seen)
    before = site.vcenter.inventory()
    if run is None:
        return ChangeReport("change", Rolling(), before, NO_CHANGE, applied=apply)
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if holder is not None:
        raise Locked(f"{holder} is changing this vCenter: nothing is cut off", hint="gpuops change status shows it")
    report = _what_is_open(run, before, GIVES_UP if giving_up else GOES_ON)
    if not apply:
        return report
    consent(report)
    with site.locked_journal(site.vcenter.uuid, alone=True) as journal:
        run = open_change(journal)
        if run is None:
            return ChangeReport("change", Rolling(), before, NO_CHANGE, applied=True)
        planned_moves, order = moves.load_moves(run.order), None
        if planned_moves is None:
            order = load_order(run.order)
        policy = last_policy(journal)
        lock = order.lock_vm if order is not None else policy.lock_vm if policy is not None else None
        with lease_during_run(site, lock, journal, (policy,) if policy else (), returning=giving_up) as lease:
            if order is None:
                finished = Report(None, before, Plan())
                if giving_up:
                    return moves.given_up(run, site, journal, lease.held, finished)
                return moves.gone_on_with(run, planned_moves or (), site, journal, lease.held, finished)
            host_rounds = _host_rounds(run, order, site, journal, lease.held, told)
            return _given_up(host_rounds, before) if giving_up else _gone_on_with(host_rounds)


def _what_is_open(run: Run, before: Inventory, taking_up: str) -> ChangeReport:
    """For people to agree to: what is gone on with, or given up."""
    if moves.load_moves(run.order) is not None:
        return ChangeReport(moves.VERB, Rolling(), before, Roll(), taking_up=taking_up)
    order = load_order(run.order)
    return ChangeReport(order.verb, order.rolling, before, Roll(), taking_up=taking_up)


def _host_rounds(
    run: Run, order: ChangeOrder, site: Site, journal: Journal, lease: HeldLease | None, told: Told
) -> HostRounds:
    inventory = site.vcenter.inventory()
    executor = HostTaskExecutor(
        site.vcenter,
        site.hosts,
        journal,
        run,
        inventory,
        lease=lease,
        passed_s=site.passed_s,
        uuids=order.uuids,
    )
    return HostRounds(site, order_now(order, executor.ids), executor, told)


def _gone_on_with(host_rounds: HostRounds) -> ChangeReport:
    """Carries out the rounds that are left until one goes wrong or the window closes."""
    try:
        outcomes = _rounds_left(host_rounds)
    except NotConnected as lost:
        lost.then_finish(RESUME_CHANGE)
        raise
    return _ended(host_rounds, outcomes, host_rounds.executor.inventory, giving_up=False)


def _given_up(host_rounds: HostRounds, before: Inventory) -> ChangeReport:
    _settle(host_rounds)
    open_hosts = host_rounds.history().left_open
    outcomes = host_rounds.give_up([step for step in host_rounds.order.steps if step.host in open_hosts])
    return _ended(host_rounds, outcomes, before, giving_up=True)


def _ended(
    host_rounds: HostRounds, outcomes: Sequence[Outcome[HostStep]], before: Inventory, *, giving_up: bool
) -> ChangeReport:
    """The report; where nothing is left to do, the change is over."""
    order = host_rounds.order
    left = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    if not left:
        host_rounds.executor.journal.end(host_rounds.executor.run, cut_off=giving_up)
    afterwards = (_next_move(host_rounds, left, giving_up=giving_up),) if left else ()
    return ChangeReport(
        order.verb,
        order.rolling,
        before,
        Roll(),
        tuple(outcomes),
        True,
        afterwards,
        names=order.names,
    )


def _next_move(host_rounds: HostRounds, left: Sequence[Outcome[HostStep]], *, giving_up: bool) -> str:
    """What somebody must see to, and the command after it. The change stopped for a reason: to type `resume` at once
    would only stop it there again."""
    wrong = [each for each in left if each.verdict is not Verdict.SKIPPED]
    names = ", ".join(host_rounds.order.names[each.step.host] for each in wrong or left)
    window_is_closed = not wrong and next(shut(host_rounds.order.rolling, host_rounds.site.clock()), None) is not None
    first = "wait until its window opens" if window_is_closed else f"put right what is said of {names}"
    if giving_up:
        return f"{first}, then {ABORT}; {STATUS}"
    hosts = host_rounds.executor.inventory.hosts
    there = [host for each in wrong if (host := hosts.get(each.step.host)) is not None and host.connected is True]
    if wrong and not there:  # a host that does not answer cannot be put back into service either
        return f"{first}, then {RESUME}, or then {ABORT}; {STATUS}"
    return f"{first}, then {RESUME}; {ABORT}; {STATUS}"


def _rounds_left(host_rounds: HostRounds) -> list[Outcome[HostStep]]:
    """What became of each host of the change, those done before too."""
    _settle(host_rounds)
    order, history = host_rounds.order, host_rounds.history()
    outcomes = [Outcome(step, Verdict.ALREADY) for step in order.steps if step.host in history.ended]
    outcomes += [Outcome(step, Verdict.ALREADY, LEFT) for step in order.steps if step.host in history.given_up]
    begun = [step for step in order.steps if step.host in history.left_open]
    waiting = [step for step in order.steps if step.host not in history.begun | history.given_up]
    stopped = ""
    if begun:
        host_rounds.executor.look()
        outcomes += host_rounds.take(begun)
        stopped = _why_stopped(outcomes, order)
    while waiting and not stopped:
        stopped = _why_none_is_begun(host_rounds)
        if stopped:
            break
        size = _fit(host_rounds, waiting)
        outcomes += host_rounds.take(waiting[:size])
        del waiting[:size]
        stopped = _why_stopped(outcomes, order)
    return [*outcomes, *(Outcome(step, Verdict.SKIPPED, stopped) for step in waiting)]


def _why_none_is_begun(host_rounds: HostRounds) -> str:
    """Why no other host may be begun now; empty = one may."""
    closed = next(shut(host_rounds.order.rolling, host_rounds.site.clock()), None)
    return host_rounds.executor.lease_objection() or (str(closed) if closed is not None else "")


def _fit(host_rounds: HostRounds, waiting: Sequence[HostStep]) -> int:
    """How many of the next hosts can be down together."""
    inventory = host_rounds.executor.look()
    return next_round(waiting, host_rounds.order.rolling, inventory, catalog_of(inventory))[0]


def _why_stopped(outcomes: Iterable[Outcome[HostStep]], order: ChangeOrder) -> str:
    bad = [each for each in outcomes if each.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    return f"not begun, because of {order.names[bad[0].step.host]}" if bad else ""


def _settle(host_rounds: HostRounds) -> None:
    """What a run that was cut off left in flight on VMs is waited for, and noted as vCenter shows it."""
    executor = host_rounds.executor
    vms = VmExecutor(
        executor.vcenter, executor.journal, executor.run, executor.inventory, passed_s=host_rounds.site.passed_s
    )
    settle_open(vms, timeout_s=Limits().step_timeout_s)
