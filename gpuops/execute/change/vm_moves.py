"""Carries out the moves of a defragmentation one after another. Each is checked again before it starts.

If a move has no certain room any more, or its VM is on another host, the run ends there. Nothing is half done, and a
new plan is better than the remaining moves of an old one. Only an interrupted run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from gpuops.errors import NotConnected, UsageError
from gpuops.execute.change.unfinished_change import history_of
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import JournalMove, MovesOrder, dump_order, load_change_order
from gpuops.execute.journal.record import Kind
from gpuops.execute.lease.lease import HeldLease, RunLease
from gpuops.execute.lease.lease_set import lease_for_all_vms
from gpuops.execute.runs import CHANGE, EXCLUSIVE_RUNS, RESUME_CHANGE, NightVms, locked_for_change
from gpuops.execute.site import Consent, Site, agreed, catalog_of
from gpuops.execute.site.agreement import apply_agreed
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation_policy import Limits, Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, Wave
from gpuops.plan.core.privileges import HOT_MOVE, needed_privileges, refused_without
from gpuops.plan.core.steps import PowerOnVm, RelocateVm, Step
from gpuops.plan.hosts.change.emptying import stun_hosts
from gpuops.plan.hosts.change.rolling_plan import ChangeStatus, PartProgress
from gpuops.plan.moving.defrag import Defrag, Defragmentation, PlannedMove
from gpuops.plan.moving.movability import MoveMethod, admitted_moves
from gpuops.plan.moving.vmotion_stun import unjudged_stun
from gpuops.plan.rotation.taken_vms import vms_of

PLAN_AGAIN: Final = "gpuops defrag --dry-run plans anew on what is there now"
NO_ROOM: Final = "its host has no room for it that is certain any more"


def carry_out(
    request: Defrag,
    site: Site,
    *,
    apply: bool,
    consent: Consent,
    policy: Policy | None = None,
    until: datetime | None = None,
) -> Report:
    """Plan the moves that free the most GPUs and, with `apply`, carry them out. Return the plan and the outcomes.

    `policy`: its `defrag` asks for the moves, and no admin watches them; `until`: no move starts from then on.
    Raises UsageError, Refused, NotConnected, StateDamaged, Locked while a rotation runs.
    """
    report, moves = _look(request, site, policy)

    def look_again(held: tuple[Journal, RunLease]) -> Report:
        nonlocal moves
        current, moves = _look(request, site, policy)
        return current

    def make_moves(report: Report, held: tuple[Journal, RunLease]) -> Report:
        journal, lease = held
        known_runs = journal.runs_seen(EXCLUSIVE_RUNS)
        run = journal.begin(CHANGE, order=dump_order(MovesOrder(moves)), known_runs=known_runs)
        return finish_moves(run, moves, site, journal, lease.held, report, until)

    lock = partial(locked_for_change, site, report.before.vcenter, policy)
    return apply_agreed(report, consent, make_moves, apply=apply, lock=lock, look_again=look_again)


def carry_out_by_policy(
    policy: Policy, site: Site, *, apply: bool, consent: Consent = agreed, most_moves: int | None = None
) -> Report:
    """Make the moves that the policy's `defrag` allows now. Return an empty plan with the reason if it allows none.

    All moves that began in this window, by whichever run, count against the budget. `most_moves`: so many of the rest
    at most. Raises UsageError for a policy without `defrag`, and the errors of `carry_out`.
    """
    rule = policy.defrag
    if rule is None:
        raise UsageError(
            f"policy {policy.name} has no `defrag`", hint="add defrag: {budget: 4, windows: [...]} (gpuops help place)"
        )
    window = rule.window_at(site.clock())
    if window is None:
        return _no_moves(f"no window of `defrag` of policy {policy.name} is open", site, apply=apply)
    with site.journal_to_read(site.vcenter.uuid) as journal:
        made = _count_moves_since(window.opens, journal) if journal is not None else 0
    if made >= rule.budget:
        return _no_moves(
            f"{made} moves were made in this window, and policy {policy.name} allows no more", site, apply=apply
        )
    budget = min(rule.budget - made, most_moves or rule.budget)
    return carry_out(Defrag(budget=budget), site, apply=apply, consent=consent, policy=policy, until=window.closes)


def _no_moves(why: str, site: Site, *, apply: bool) -> Report:
    return Report(None, site.vcenter.inventory(), Plan(because=(why,)), applied=apply)


def _count_moves_since(moment: datetime, journal: Journal) -> int:
    """Return how many moves of defragmentations began since this moment, those that failed too."""
    records = [record for record in journal.records() if record.at >= moment]
    defrag_runs = {
        record.run
        for record in records
        if record.kind is Kind.BEGUN
        and record.body["kind"] == CHANGE
        and isinstance(load_change_order(record.body["order"]), MovesOrder)
    }
    return sum(
        record.kind is Kind.INTENT and record.run in defrag_runs and "RelocateVm" in record.body["step"]
        for record in records
    )


def finish_moves(
    run: Run,
    moves: tuple[JournalMove, ...],
    site: Site,
    journal: Journal,
    lease: HeldLease | None,
    report: Report,
    until: datetime | None = None,
) -> Report:
    """Make the remaining moves, one after another, until one cannot be made as planned. None starts from `until` on."""
    try:
        outcomes = _MoveRun(run, site, journal, lease, until).move_all(moves)
    except NotConnected as lost:
        lost.then_finish(RESUME_CHANGE)
        raise
    journal.end(run)
    return replace(report, outcomes=tuple(outcomes), applied=True)


def end_moves(run: Run, site: Site, journal: Journal, lease: HeldLease | None, report: Report) -> Report:
    """End the change. A VM that was shut down for its move is started again on the host where it is."""
    moves = _MoveRun(run, site, journal, lease)
    outcomes = moves.settle()
    outcomes += moves.restart_stopped_vms()
    journal.end(run, cut_off=True)
    return replace(report, outcomes=tuple(outcomes), applied=True)


def move_status(run: Run, moves: tuple[JournalMove, ...], inventory: Inventory, holder: str) -> ChangeStatus:
    """Return which moves are done, by the inventory."""
    parts = [
        PartProgress(
            move.vm,
            f"{move.name} to {move.target_name}",
            "done" if (vm := inventory.vms.get(move.vm)) is not None and move.is_done(vm) else "to do",
        )
        for move in moves
    ]
    return ChangeStatus(MovesOrder.verb, run.started, holder, tuple(parts), noun="move")


def plan_moves(request: Defrag, before: Inventory, site: Site, policy: Policy | None = None) -> Defragmentation:
    """Return the moves. With a budget, first read how long vCenter expects each vMotion to stop its VM.

    `policy`: the policy whose `defrag` asks for them; then more VMs stay (`_reasons_to_stay`).
    Raises HostNotFound, UsageError, ProfileUnknown, Refused, NotConnected.
    """
    if request.budget is not None:
        before = site.vcenter.with_config_targets(before, stun_hosts(request.scope.hosts(before), before))
    if policy is None:
        return request.find_moves(before, catalog_of(before))
    return request.find_moves(before, catalog_of(before), _reasons_to_stay(policy, before, site))


def _reasons_to_stay(policy: Policy, inventory: Inventory, site: Site) -> Mapping[str, str]:
    """Return VM ref -> why no VM is moved without an admin: its owner, an open night, or its stun forbid it."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        originals = NightVms(journal).all() if journal is not None else ()
    reasons = {
        vm.ref: f"is in the rotation of night {original.night}"
        for original in originals
        if original.taken
        for vm in vms_of(original, inventory)
    }
    for host in inventory.hosts.values():
        hosts_of_cluster = [other for other in inventory.hosts.values() if other.cluster == host.cluster]
        for vm in inventory.vms_on(host):
            if not vm.vgpus:
                continue
            has_opted_out = policy.opt_out.on(vm)
            if has_opted_out is not False:
                mark = policy.opt_out
                reasons[vm.ref] = f"opted out ({mark})" if has_opted_out else f"{mark} cannot be read"
            elif why_unknown := unjudged_stun(vm, host, hosts_of_cluster):
                reasons[vm.ref] = why_unknown
    return reasons


def _look(request: Defrag, site: Site, policy: Policy | None) -> tuple[Report, tuple[JournalMove, ...]]:
    before = site.vcenter.inventory()
    before = site.vcenter.with_tags(before) if policy is not None and policy.needs_tags else before
    defrag_plan = plan_moves(request, before, site, policy)
    moves = tuple(_journal_move(move) for move in defrag_plan.moves)
    waves = tuple(Wave(f"move {number}", move.steps) for number, move in enumerate(moves, 1))
    plan = Plan(waves, because=() if moves else ("no move frees anything",), disruptive=bool(moves))
    lacking = site.vcenter.lacking(_needed_privileges(moves)) if moves else {}
    return Report(request, before, refused_without(plan, lacking, before)), moves


def _journal_move(move: PlannedMove) -> JournalMove:
    powered_off = move.way is MoveMethod.POWERED_OFF
    source, target = move.source.ref, move.target
    return JournalMove(move.vm.ref, move.vm.name, source, target.ref, target.name, powered_off, move.pin_entries)


def _needed_privileges(moves: Iterable[JournalMove]) -> Mapping[str, frozenset[str]]:
    """Return the privileges by VM. Moving a running VM needs another privilege than moving a VM that is powered off
    (vSphere API reference, RelocateVM_Task)."""
    return {move.vm: needed_privileges(move.steps)[move.vm] if move.powered_off else HOT_MOVE for move in moves}


@dataclass(slots=True)
class _MoveRun:
    """The moves of one run."""

    run: Run
    site: Site
    journal: Journal
    lease: HeldLease | None
    until: datetime | None = None
    """No move starts from this moment on; None = no limit."""

    def move_all(self, moves: tuple[JournalMove, ...]) -> list[Outcome]:
        """Carry out the moves in order and return the outcomes of their steps. After a failure, skip the others."""
        outcomes, stopped_vms, reason = self.settle(), self.stopped_vms(), ""
        for move in moves:
            inventory = self.site.vcenter.inventory()
            vm = inventory.vms.get(move.vm)
            if vm is not None and move.is_done(vm):
                continue
            reason = reason or self._reason_not_to_start(move, vm, inventory, begun=move.vm in stopped_vms)
            if reason:
                outcomes += [Outcome(step, Verdict.SKIPPED, reason) for step in move.steps]
                continue
            step_outcomes = self.execute_steps(move.steps, inventory)
            outcomes += step_outcomes
            if any(outcome.verdict not in (Verdict.DONE, Verdict.ALREADY) for outcome in step_outcomes):
                # the later moves were planned for a vCenter in which this one is done: they are skipped
                outcomes += self.restart_stopped_vms()
                reason = f"{move.name} was not moved; {PLAN_AGAIN}"
        return outcomes

    def restart_stopped_vms(self) -> list[Outcome]:
        """Start the VMs that were shut down for a move that was not made, on the hosts where they are."""
        inventory = self.site.vcenter.inventory()
        stopped_vms = [
            ref for ref in self.stopped_vms() if ref in inventory.vms and inventory.vm(ref).power is PowerState.OFF
        ]
        return [
            outcome
            for ref in stopped_vms
            for outcome in self.execute_steps((PowerOnVm(ref, inventory.vm(ref).host),), inventory)
        ]

    def settle(self) -> list[Outcome]:
        """Wait for the steps that an interrupted run left in flight, and return those that are done."""
        outcomes = settle_open(self._executor(self.site.vcenter.inventory()), timeout_s=Limits().step_timeout_s)
        return [outcome for outcome in outcomes if outcome.verdict is Verdict.DONE]

    def stopped_vms(self) -> frozenset[str]:
        """Return the VMs that this run has shut down for their move."""
        vms_by_host = history_of(self.journal.state.runs[self.run.id].intents.values()).taken
        return frozenset(vm.vm for vms_of_host in vms_by_host.values() for vm in vms_of_host.values() if vm.stopped)

    def execute_steps(self, steps: tuple[Step, ...], inventory: Inventory) -> list[Outcome]:
        """Carry out the steps of one VM, one after another."""
        waves = tuple(Wave("move", (step,)) for step in steps)
        return list(execute(Plan(waves), self._executor(inventory), Limits(), self.site.progress))

    def _reason_not_to_start(self, move: JournalMove, vm: Vm | None, inventory: Inventory, *, begun: bool) -> str:
        """Return why the move must not be made now; empty if it is possible as planned or was begun."""
        if vm is None:
            return f"{move.name} is gone from vCenter; {PLAN_AGAIN}"
        if begun and vm.power is PowerState.OFF:  # an interrupted run shut it down for this move
            return ""
        if vm.host != move.source or vm.power is not PowerState.ON:
            return f"{move.name} has left its host, or is not running; {PLAN_AGAIN}"
        if self.until is not None and self.site.clock() >= self.until:
            return f"the window for moves has closed, and {move.name} was not moved"
        # by position in the sequence of moves, which is this move alone
        pins = {0: move.pins} if move.pins else {}
        if not admitted_moves([RelocateVm(move.vm, move.target)], inventory, catalog_of(inventory), pins):
            return f"{move.name}: {NO_ROOM}; {PLAN_AGAIN}"
        return ""

    def _executor(self, inventory: Inventory) -> VmExecutor:
        vcenter, passed_s = self.site.vcenter, self.site.passed_s
        return VmExecutor(
            vcenter, self.journal, self.run, inventory, leases=lease_for_all_vms(self.lease), passed_s=passed_s
        )
