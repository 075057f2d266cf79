"""Change: a plan for hosts brought into force by rolling reboots; gone on with, given up, or told of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuops.errors import Locked, NotConnected
from gpuops.execute.change import moves
from gpuops.execute.change.exclusion import in_rotation, last_policy, no_change_open, no_rotation_open, open_change
from gpuops.execute.change.history import History, history_of, taken_from
from gpuops.execute.change.host_tasks import HostTaskDoer
from gpuops.execute.change.order import KIND, Order, dump_order, load_order
from gpuops.execute.change.present import order_now
from gpuops.execute.change.turns import Told, Turns
from gpuops.execute.given_up import note_who_is_back, still_given_up
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease import Held, leased
from gpuops.execute.lock import rotating
from gpuops.execute.resume import settle_open
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.vm_doer import VmDoer
from gpuops.model.host_settings import Rolling
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Limits
from gpuops.plan.core.outcome import Outcome, Report, Verdict
from gpuops.plan.core.plan import Plan, Rejection
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.in_force import driven, stays_divided
from gpuops.plan.hosts.change.report import ChangeReport, ChangeStatus, PartProgress
from gpuops.plan.hosts.change.roll import Roll, needed, next_round, rolled, shut
from gpuops.plan.hosts.host_plan import HostRequest

Agreed = Callable[[ChangeReport], None]
"""Called just before anything is changed; what it raises ends the run with nothing changed."""

RESUME: Final = "gpuops change resume goes on with it"
ABORT: Final = "gpuops change abort gives it up"
STATUS: Final = "gpuops change status shows it"
LEFT: Final = "was given up: left as it is"
GOES_ON: Final = "goes on with"
GIVES_UP: Final = "gives up"
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
        note_who_is_back(journal, report.before)
        policy = last_policy(journal)
        lock = policy.lock_vm if policy else None
        with leased(site, lock, journal, (policy,) if policy else (), returning=False) as lease:
            # what came to pass while this waited for an answer is seen
            before, report = report, _look(request, verb, rolling, site, journal)
            if not report.plan.feasible or not report.plan.rounds:
                return replace(report, applied=True)
            if report.plan.does != before.plan.does:
                consent(report)
            order = _order(report, lock)
            run = journal.begin(KIND, order=dump_order(order))
            done = _gone_on_with(_turns(run, order, site, journal, lease.held, told))
            # as it was before: a host may be gone from vCenter since
            return replace(done, before=report.before, plan=replace(report.plan, because=()))


def resume(site: Site, *, apply: bool, consent: Agreed, told: Told) -> ChangeReport | Report:
    """Goes on with the change that did not end; an empty plan when there is none.

    A host whose turn has begun is finished at any hour; no other is begun while the window is closed.
    """
    return _taken_up(site, apply=apply, consent=consent, told=told, giving_up=False)


def abort(site: Site, *, apply: bool, consent: Agreed, told: Told) -> ChangeReport | Report:
    """Ends the change: hosts whose turn has begun serve VMs again, with their own back; the others are left alone."""
    return _taken_up(site, apply=apply, consent=consent, told=told, giving_up=True)


def status(site: Site) -> ChangeStatus:
    """The change that has not ended, part by part."""
    with site.remembering(site.vcenter.uuid) as journal:
        given_up = still_given_up(journal, site)
        run = open_change(journal)
        if journal is None or run is None:
            return ChangeStatus(given_up=given_up)
        holder = rotating(site.state_dir, site.vcenter.uuid)
        at_it = str(holder) if holder is not None else ""
        hops = moves.load_hops(run.order)
        if hops is not None:
            return replace(moves.standing_of(run, hops, site.vcenter.inventory(), at_it), given_up=given_up)
        order = load_order(run.order)
        mine = journal.book.runs[run.id]
        history = history_of(mine.intents.values(), mine.given_up)
    parts = tuple(PartProgress(step.host, order.names[step.host], *_progress(step, history)) for step in order.steps)
    return ChangeStatus(order.verb, run.started, at_it, parts, given_up=given_up)


def _progress(step: HostStep, history: History) -> tuple[str, tuple[str, ...]]:
    """(how far the host's turn is, names of its VMs that are not back)."""
    if step.host in history.given_up:
        return "given up", ()
    state = "to do" if step.host not in history.begun else "under way"
    away = tuple(sorted(taken.name for taken in taken_from(step.host, history).values()))
    return "done" if step.host in history.ended else state, away


def _look(request: HostRequest, verb: str, rolling: Rolling, site: Site, journal: Journal | None) -> ChangeReport:
    before = site.vcenter.inventory()
    before = site.hosts.with_settings(before, request.hosts(before))
    catalog = catalog_of(before)
    plan = rolled(request.plan(before, catalog), rolling, before, catalog, site.clock())
    rejections = [
        *in_rotation(journal, [turn.host.ref for turn in plan.planned_hosts], before),
        *_lacking(plan, site, before),
    ]
    return ChangeReport(verb, rolling, before, Roll(rejections=tuple(rejections)) if rejections else plan)


def _lacking(plan: Roll, site: Site, inventory: Inventory) -> Iterable[Rejection]:
    """A refusal for each host and VM on which this login lacks a privilege that the roll needs."""
    on_hosts, on_vms = needed(plan.planned_hosts)
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


def _order(report: ChangeReport, lock: str | None) -> Order:
    turns = report.plan.planned_hosts
    return Order(
        verb=report.verb,
        steps=tuple(turn.step for turn in turns),
        names={turn.host.ref: turn.host.name for turn in turns},
        gpus={turn.host.ref: driven(turn.host) for turn in turns},
        mig={turn.host.ref: stays_divided(turn.step, turn.host) for turn in turns},
        uuids={turn.host.ref: turn.host.uuid for turn in turns if turn.host.uuid is not None},
        rolling=report.rolling,
        lock_vm=lock,
    )


def _taken_up(site: Site, *, apply: bool, consent: Agreed, told: Told, giving_up: bool) -> ChangeReport | Report:
    with site.remembering(site.vcenter.uuid) as seen:
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
    with site.changing(site.vcenter.uuid, alone=True) as journal:
        run = open_change(journal)
        if run is None:
            return ChangeReport("change", Rolling(), before, NO_CHANGE, applied=True)
        hops, order = moves.load_hops(run.order), None
        if hops is None:
            order = load_order(run.order)
        policy = last_policy(journal)
        lock = order.lock_vm if order is not None else policy.lock_vm if policy is not None else None
        with leased(site, lock, journal, (policy,) if policy else (), returning=giving_up) as lease:
            if order is None:
                finished = Report(None, before, Plan())
                if giving_up:
                    return moves.given_up(run, site, journal, lease.held, finished)
                return moves.gone_on_with(run, hops or (), site, journal, lease.held, finished)
            turns = _turns(run, order, site, journal, lease.held, told)
            return _given_up(turns, before) if giving_up else _gone_on_with(turns)


def _what_is_open(run: Run, before: Inventory, taking_up: str) -> ChangeReport:
    """For people to agree to: what is gone on with, or given up."""
    if moves.load_hops(run.order) is not None:
        return ChangeReport(moves.VERB, Rolling(), before, Roll(), taking_up=taking_up)
    order = load_order(run.order)
    return ChangeReport(order.verb, order.rolling, before, Roll(), taking_up=taking_up)


def _turns(run: Run, order: Order, site: Site, journal: Journal, lease: Held | None, told: Told) -> Turns:
    inventory = site.vcenter.inventory()
    doer = HostTaskDoer(
        site.vcenter,
        site.hosts,
        journal,
        run,
        inventory,
        lease=lease,
        passed_s=site.passed_s,
        uuids=order.uuids,
    )
    return Turns(site, order_now(order, doer.ids), doer, told)


def _gone_on_with(turns: Turns) -> ChangeReport:
    """The turns that are left, round by round, until one goes wrong or the window closes."""
    try:
        outcomes = _rounds_left(turns)
    except NotConnected as lost:
        lost.then_finish("gpuops change resume")
        raise
    return _ended(turns, outcomes, turns.doer.inventory, giving_up=False)


def _given_up(turns: Turns, before: Inventory) -> ChangeReport:
    _settle(turns)
    open_hosts = turns.history().left_open
    outcomes = turns.give_up([step for step in turns.order.steps if step.host in open_hosts])
    return _ended(turns, outcomes, before, giving_up=True)


def _ended(turns: Turns, outcomes: Sequence[Outcome[HostStep]], before: Inventory, *, giving_up: bool) -> ChangeReport:
    """The report; where nothing is left to do, the change is over."""
    order = turns.order
    left = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    if not left:
        turns.doer.journal.end(turns.doer.run)
    afterwards = (_next_move(turns, left, giving_up=giving_up),) if left else ()
    return ChangeReport(order.verb, order.rolling, before, Roll(), tuple(outcomes), True, afterwards, names=order.names)


def _next_move(turns: Turns, left: Sequence[Outcome[HostStep]], *, giving_up: bool) -> str:
    """What somebody must see to, and the command after it. The change stopped for a reason: to type `resume` at once
    would only stop it there again."""
    wrong = [each for each in left if each.verdict is not Verdict.SKIPPED]
    names = ", ".join(turns.order.names[each.step.host] for each in wrong or left)
    window_is_closed = not wrong and next(shut(turns.order.rolling, turns.site.clock()), None) is not None
    first = "wait until its window opens" if window_is_closed else f"put right what is said of {names}"
    if giving_up:
        return f"{first}, then {ABORT}; {STATUS}"
    hosts = turns.doer.inventory.hosts
    there = [host for each in wrong if (host := hosts.get(each.step.host)) is not None and host.connected is True]
    if wrong and not there:  # a host that does not answer cannot be put back into service either
        return f"{first}, then {RESUME}, or then {ABORT}; {STATUS}"
    return f"{first}, then {RESUME}; {ABORT}; {STATUS}"


def _rounds_left(turns: Turns) -> list[Outcome[HostStep]]:
    """What became of each host of the change, those done before too."""
    _settle(turns)
    order, history = turns.order, turns.history()
    outcomes = [Outcome(step, Verdict.ALREADY) for step in order.steps if step.host in history.ended]
    outcomes += [Outcome(step, Verdict.ALREADY, LEFT) for step in order.steps if step.host in history.given_up]
    begun = [step for step in order.steps if step.host in history.left_open]
    waiting = [step for step in order.steps if step.host not in history.begun | history.given_up]
    stopped = ""
    if begun:
        outcomes += turns.take(begun)
        stopped = _why_stopped(outcomes, order)
    while waiting and not stopped:
        stopped = _why_none_is_begun(turns)
        if stopped:
            break
        size = _fit(turns, waiting)
        outcomes += turns.take(waiting[:size])
        del waiting[:size]
        stopped = _why_stopped(outcomes, order)
    return [*outcomes, *(Outcome(step, Verdict.SKIPPED, stopped) for step in waiting)]


def _why_none_is_begun(turns: Turns) -> str:
    """Why no other host may be begun now; empty = one may."""
    closed = next(shut(turns.order.rolling, turns.site.clock()), None)
    return turns.doer.lease_objection() or (str(closed) if closed is not None else "")


def _fit(turns: Turns, waiting: Sequence[HostStep]) -> int:
    """How many of the next hosts can be down together."""
    inventory = turns.doer.look()
    return next_round(waiting, turns.order.rolling, inventory, catalog_of(inventory))[0]


def _why_stopped(outcomes: Iterable[Outcome[HostStep]], order: Order) -> str:
    bad = [each for each in outcomes if each.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    return f"not begun, because of {order.names[bad[0].step.host]}" if bad else ""


def _settle(turns: Turns) -> None:
    """What a run that was cut off left in flight on VMs is waited for, and noted as vCenter shows it."""
    doer = turns.doer
    vms = VmDoer(doer.vcenter, doer.journal, doer.run, doer.inventory, passed_s=turns.site.passed_s)
    settle_open(vms, timeout_s=Limits().step_timeout_s)
