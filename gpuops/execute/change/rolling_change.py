"""Applies a plan for hosts, with rolling reboots or without; resumes, aborts or shows an unfinished change.

Without reboots (`configure`) the hosts are changed one after another. If a host fails, the other hosts are still
changed: their settings do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from socket import gethostname
from typing import Final

from gpuops.errors import Locked, NotConnected
from gpuops.execute.change import vm_moves
from gpuops.execute.change.host_rounds import HostRounds, Told
from gpuops.execute.change.host_tasks import HostTaskExecutor
from gpuops.execute.change.unfinished_change import History, history_of, order_now, vms_taken_from
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import ChangeOrder, MovesOrder, dump_order, load_change_order
from gpuops.execute.lease.lease import HeldLease, RunLease, lease_during_run
from gpuops.execute.runs import (
    CHANGE,
    EXCLUSIVE_RUNS,
    RESUME_CHANGE,
    in_rotation,
    last_policy,
    locked_for_change,
    note_returned,
    open_change,
    still_given_up,
)
from gpuops.execute.site import Site, agreed, catalog_of
from gpuops.execute.site.agreement import Agreement, apply_agreed, ask_until_agreed
from gpuops.execute.site.ports import Hosts
from gpuops.execute.state.lock import rotating
from gpuops.execute.steps.host_executor import SettingExecutor
from gpuops.execute.steps.vm_runs import end_killed_calls
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, refuse
from gpuops.plan.core.privileges import needed_on_host, privilege_rejection, too_old
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.emptying import stun_hosts
from gpuops.plan.hosts.change.rolling_plan import (
    ChangeReport,
    ChangeStatus,
    PartProgress,
    Roll,
    change_window_refusals,
    gpus_listed_after_boot,
    gpus_staying_in_mig_mode,
    next_round,
    plan_roll,
    privileges_of_hosts,
)
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.host_plan import HostRequest, remaining_work, reports_impact


def configure(request: HostRequest, site: Site, *, apply: bool) -> Report[HostStep]:
    """Plan the request for this site's hosts and, with `apply`, carry it out. Return the plan and the outcomes.

    An infeasible plan is returned, not raised. Raises UsageError, NotConnected, StateDamaged, and Locked while a
    rotation runs.
    """
    if apply:
        end_killed_calls(request.run_kind, site)
    report = _settings_plan(request, site)
    if not apply or not report.plan.feasible or not report.plan.steps:
        return Report(request, report.before, report.plan, applied=apply)
    with site.locked_journal(report.before.vcenter, alone=False) as journal:
        # read again under the lock: a rotation may have suspended desktops of a host meanwhile, which then stays as is
        report = _settings_plan(request, site)
        if not report.plan.feasible or not report.plan.steps:
            return Report(request, report.before, report.plan, applied=True)
        # `end_killed_calls` recognises runs of this machine by this name
        run = journal.begin(request.run_kind, order=gethostname())
        executor = SettingExecutor(site.vcenter, site.hosts, journal, run, report.before, passed_s=site.passed_s)
        outcomes = tuple(executor.set(step) for step in report.plan.steps)
        journal.end(run)
    plan = report.plan
    if any(reports_impact(step) for step in plan.steps):
        plan = replace(plan, afterwards=remaining_work(plan, executor.impacts, report.before, "mode"))
    return Report(request, report.before, plan, outcomes, applied=True, after=executor.inventory)


def settings_for(request: HostRequest, site: Site, before: Inventory, hosts: Collection[str]) -> Inventory:
    """Return the snapshot with the settings of these hosts, and with all their devices if the request names one."""
    before = site.hosts.with_settings(before, hosts)
    names_device = isinstance(request, SetPassthrough) and request.device
    return site.hosts.with_other_devices(before, hosts) if names_device else before


def _settings_plan(request: HostRequest, site: Site) -> Report[HostStep]:
    """Return the plan of the request by vCenter's state now."""
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


ChangeConsent = Callable[[ChangeReport], None]
"""Called before the first change. If it raises, the run ends and nothing is changed."""

RESUME: Final = f"{RESUME_CHANGE} continues it"
ABORT: Final = "gpuops change abort gives it up"
STATUS: Final = "gpuops change status shows it"
LEFT_AS_IT_IS: Final = "was given up: left as it is"
GOES_ON: Final = "goes on with"
GIVES_UP: Final = "gives up"
NO_CHANGE: Final = Roll(because=("no change of hosts was cut off",))


def unheard(line: str) -> None:
    """Ignore the line, for callers without an output."""


def roll(
    request: HostRequest,
    verb: str,
    rolling: Rolling,
    site: Site,
    *,
    apply: bool,
    consent: ChangeConsent = agreed,
    told: Told = unheard,
) -> ChangeReport:
    """Plan the request for this site's hosts by rolling reboots and, with `apply`, carry it out. Return the report.

    `verb` is the command in messages (`scheduler set`); `told` is called with a line of progress. An infeasible plan
    is returned, not raised. Raises UsageError, NotConnected, StateDamaged, Locked, and Refused while another change or
    a rotation is open.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        report = _look(request, verb, rolling, site, journal)

    def look_again(held: tuple[Journal, RunLease]) -> ChangeReport:
        journal, _ = held
        note_returned(journal, report.before)
        return _look(request, verb, rolling, site, journal)

    def begin_change(current: ChangeReport, held: tuple[Journal, RunLease]) -> ChangeReport:
        journal, lease = held
        order, known_runs = _order(current, lease.lock_vm or None), journal.runs_seen(EXCLUSIVE_RUNS)
        run = journal.begin(CHANGE, order=dump_order(order), known_runs=known_runs)
        change_report = _finish_rounds(_host_rounds(run, order, site, journal, lease.held, told))
        # The inventory before the change, since a host may have been removed from vCenter meanwhile. `because`
        # has the notes on the plan; a report of what was done has none.
        return replace(change_report, before=current.before, plan=replace(current.plan, because=()))

    lock = partial(locked_for_change, site, report.before.vcenter)
    return apply_agreed(report, consent, begin_change, apply=apply, lock=lock, look_again=look_again)


def resume(
    site: Site, *, apply: bool = True, consent: ChangeConsent = agreed, told: Told = unheard
) -> ChangeReport | Report:
    """Resume the unfinished change of hosts or moves. Return an empty plan if no change is open.

    A host that was begun is finished at any hour; no other host is begun while the window is closed.
    """
    return _resume_or_abort(site, apply=apply, consent=consent, show_line=told, giving_up=False)


def abort(
    site: Site, *, apply: bool = True, consent: ChangeConsent = agreed, told: Told = unheard
) -> ChangeReport | Report:
    """End the change. Hosts that were begun go back into service, with their VMs back; the others are not touched."""
    return _resume_or_abort(site, apply=apply, consent=consent, show_line=told, giving_up=True)


def status(site: Site) -> ChangeStatus:
    """Return the progress of the unfinished change, host by host or move by move."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        given_up = still_given_up(journal, site)
        run = open_change(journal)
        if journal is None or run is None:
            return ChangeStatus(given_up=given_up)
        holder = rotating(site.state_dir, site.vcenter.uuid)
        running_process = str(holder) if holder is not None else ""
        order = load_change_order(run.order)
        if isinstance(order, MovesOrder):
            return replace(
                vm_moves.move_status(run, order.moves, site.vcenter.inventory(), running_process), given_up=given_up
            )
        open_run = journal.state.runs[run.id]
        history = history_of(open_run.intents.values(), open_run.given_up)
    parts = tuple(PartProgress(step.host, order.names[step.host], *_progress(step, history)) for step in order.steps)
    return ChangeStatus(order.verb, run.started, running_process, parts, given_up=given_up)


def _progress(step: HostStep, history: History) -> tuple[str, tuple[str, ...]]:
    """Return the state of the host in the change, and the names of its VMs that are not back."""
    if step.host in history.given_up:
        return "given up", ()
    state = "to do" if step.host not in history.begun else "under way"
    away_names = tuple(sorted(vm.name for vm in vms_taken_from(step.host, history).values()))
    return "done" if step.host in history.ended else state, away_names


def _look(request: HostRequest, verb: str, rolling: Rolling, site: Site, journal: Journal | None) -> ChangeReport:
    """Return the plan by vCenter's state now, refused if a night holds VMs of the hosts or a privilege is missing."""
    before = site.vcenter.inventory()
    host_refs = request.hosts(before)
    before = settings_for(request, site, before, host_refs)
    hosts_to_estimate = stun_hosts([before.hosts[ref] for ref in host_refs if ref in before.hosts], before)
    before = site.vcenter.with_config_targets(before, hosts_to_estimate)
    catalog = catalog_of(before)
    plan = plan_roll(request.plan(before, catalog), rolling, before, catalog, site.clock())
    rejections = [
        *in_rotation(journal, [planned.host.ref for planned in plan.planned_hosts], before),
        *(too_old(before) if plan.planned_hosts else ()),
        *_missing_privileges(plan, site, before),
    ]
    return ChangeReport(verb, rolling, before, Roll(rejections=tuple(rejections)) if rejections else plan)


def _missing_privileges(plan: Roll, site: Site, inventory: Inventory) -> Iterable[Rejection]:
    """Yield a refusal for each host and VM on which this login lacks a privilege that the change needs."""
    on_hosts, on_vms = privileges_of_hosts(plan.planned_hosts)
    lacking_on_hosts = site.hosts.lacking(on_hosts) if on_hosts else {}
    lacking_on_vms = site.vcenter.lacking(on_vms) if on_vms else {}
    missing = [(inventory.hosts[ref].name, privileges) for ref, privileges in lacking_on_hosts.items()]
    missing += [(inventory.vm(ref).name, privileges) for ref, privileges in lacking_on_vms.items()]
    hint = "ask for a role with this privilege on it, or log in as a user who has it"
    for name, privileges in missing:
        if privileges:
            yield privilege_rejection(name, privileges, hint=hint)


def _order(report: ChangeReport, lock: str | None) -> ChangeOrder:
    hosts = report.plan.planned_hosts
    return ChangeOrder(
        verb=report.verb,
        steps=tuple(planned.step for planned in hosts),
        names={planned.host.ref: planned.host.name for planned in hosts},
        gpus={planned.host.ref: gpus_listed_after_boot(planned.host) for planned in hosts},
        mig={planned.host.ref: gpus_staying_in_mig_mode(planned.step, planned.host) for planned in hosts},
        uuids={planned.host.ref: planned.host.uuid for planned in hosts if planned.host.uuid is not None},
        rolling=report.rolling,
        lock_vm=lock,
    )


def _resume_or_abort(
    site: Site, *, apply: bool, consent: ChangeConsent, show_line: Told, giving_up: bool
) -> ChangeReport | Report:
    """Resume the unfinished change, or with `giving_up` end it, and return the report."""
    with site.journal_to_read(site.vcenter.uuid) as readable_journal:
        run = open_change(readable_journal)
    before = site.vcenter.inventory()
    if run is None:
        return ChangeReport("change", Rolling(), before, NO_CHANGE, applied=apply)
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if holder is not None:
        raise Locked(
            f"{holder} is changing this vCenter: the change is not interrupted", hint="gpuops change status shows it"
        )
    taking_up = GIVES_UP if giving_up else GOES_ON
    if not apply:
        return _what_is_open(run, before, taking_up)

    def execute_under_lock(agreement: Agreement[Run]) -> ChangeReport | Report:
        with site.locked_journal(site.vcenter.uuid, alone=True) as journal:
            run = open_change(journal)
            if run is None:
                return ChangeReport("change", Rolling(), before, NO_CHANGE, applied=True)
            agreement.require(run)
            order, policy = load_change_order(run.order), last_policy(journal)
            # an order of moves does not store its lock VM
            lock = order.lock_vm if isinstance(order, ChangeOrder) else policy.lock_vm if policy is not None else None
            with lease_during_run(site, lock, journal, (policy,) if policy else (), returning=giving_up) as lease:
                if isinstance(order, MovesOrder):
                    finished = Report(None, before, Plan())
                    if giving_up:
                        return vm_moves.end_moves(run, site, journal, lease.held, finished)
                    return vm_moves.finish_moves(run, order.moves, site, journal, lease.held, finished)
                host_rounds = _host_rounds(run, order, site, journal, lease.held, show_line)
                return _end_rounds(host_rounds, before) if giving_up else _finish_rounds(host_rounds)

    return ask_until_agreed(
        run,
        lambda run: consent(_what_is_open(run, before, taking_up)),
        execute_under_lock,
        # the admin agreed to continue this change, whatever is left of it by now
        covers=lambda agreed_run, current: agreed_run.id == current.id,
    )


def _what_is_open(run: Run, before: Inventory, taking_up: str) -> ChangeReport:
    """Return the report that an admin is asked to agree to before the change is resumed or aborted."""
    order = load_change_order(run.order)
    rolling = order.rolling if isinstance(order, ChangeOrder) else Rolling()
    return ChangeReport(order.verb, rolling, before, Roll(), taking_up=taking_up)


def _host_rounds(
    run: Run, order: ChangeOrder, site: Site, journal: Journal, lease: HeldLease | None, show_line: Told
) -> HostRounds:
    inventory = site.vcenter.inventory()
    executor = HostTaskExecutor(
        site.vcenter, site.hosts, journal, run, inventory, lease=lease, passed_s=site.passed_s, uuids=order.uuids
    )
    return HostRounds(site, order_now(order, executor.ids), executor, show_line)


def _finish_rounds(host_rounds: HostRounds) -> ChangeReport:
    """Carry out the remaining rounds until one fails or the window closes."""
    try:
        outcomes = _rounds_left(host_rounds)
    except NotConnected as lost:
        lost.then_finish(RESUME_CHANGE)
        raise
    return _report_outcomes(host_rounds, outcomes, host_rounds.executor.inventory, giving_up=False)


def _end_rounds(host_rounds: HostRounds, before: Inventory) -> ChangeReport:
    """Put the hosts that were begun back into service, and end the change."""
    host_rounds.settle()
    open_hosts = host_rounds.history().left_open
    outcomes = host_rounds.give_up([step for step in host_rounds.order.steps if step.host in open_hosts])
    return _report_outcomes(host_rounds, outcomes, before, giving_up=True)


def _report_outcomes(
    host_rounds: HostRounds, outcomes: Sequence[Outcome[HostStep]], before: Inventory, *, giving_up: bool
) -> ChangeReport:
    """Return the report, and end the change in the journal if nothing is left to do."""
    order = host_rounds.order
    open_outcomes = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    if not open_outcomes:
        host_rounds.executor.journal.end(host_rounds.executor.run, cut_off=giving_up)
    afterwards = (_next_move(host_rounds, open_outcomes, giving_up=giving_up),) if open_outcomes else ()
    return ChangeReport(order.verb, order.rolling, before, Roll(), tuple(outcomes), True, afterwards, names=order.names)


def _next_move(host_rounds: HostRounds, open_outcomes: Sequence[Outcome[HostStep]], *, giving_up: bool) -> str:
    """Return what to fix first, and the command to run after it: an immediate `resume` would stop at the same host."""
    failed = [outcome for outcome in open_outcomes if outcome.verdict is not Verdict.SKIPPED]
    names = ", ".join(host_rounds.order.names[outcome.step.host] for outcome in failed or open_outcomes)
    refused = change_window_refusals(host_rounds.order.rolling, host_rounds.site.clock())
    window_is_closed = not failed and next(refused, None) is not None
    first_move = "wait until its window opens" if window_is_closed else f"fix the problem of {names}"
    if giving_up:
        return f"{first_move}, then {ABORT}; {STATUS}"
    hosts = host_rounds.executor.inventory.hosts
    connected_hosts = [
        host for outcome in failed if (host := hosts.get(outcome.step.host)) is not None and host.connected is True
    ]
    if failed and not connected_hosts:  # a host that does not answer cannot be put back into service either
        return f"{first_move}, then {RESUME}, or then {ABORT}; {STATUS}"
    return f"{first_move}, then {RESUME}; {ABORT}; {STATUS}"


def _rounds_left(host_rounds: HostRounds) -> list[Outcome[HostStep]]:
    """Carry out the remaining rounds and return the outcome of each host, including those done before."""
    host_rounds.settle()
    order, history = host_rounds.order, host_rounds.history()
    outcomes = [Outcome(step, Verdict.ALREADY) for step in order.steps if step.host in history.ended]
    outcomes += [Outcome(step, Verdict.ALREADY, LEFT_AS_IT_IS) for step in order.steps if step.host in history.given_up]
    # hosts that an interrupted run began come first: they may be empty, or in maintenance mode
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
        inventory = host_rounds.executor.look()
        size = next_round(waiting, order.rolling, inventory, catalog_of(inventory))[0]
        outcomes += host_rounds.take(waiting[:size])
        del waiting[:size]
        stopped = _why_stopped(outcomes, order)
    return [*outcomes, *(Outcome(step, Verdict.SKIPPED, stopped) for step in waiting)]


def _why_none_is_begun(host_rounds: HostRounds) -> str:
    """Return why no other host may be begun now; empty if one may."""
    closed = next(change_window_refusals(host_rounds.order.rolling, host_rounds.site.clock()), None)
    return host_rounds.executor.lease_objection() or (str(closed) if closed is not None else "")


def _why_stopped(outcomes: Iterable[Outcome[HostStep]], order: ChangeOrder) -> str:
    """Return why no other host is begun after these outcomes; empty if none failed."""
    failed = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    return f"not begun, because of {order.names[failed[0].step.host]}" if failed else ""
