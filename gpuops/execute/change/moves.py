"""Carries out the moves of a defragmentation one after another, each checked again on what vCenter shows.

A move that finds no certain room any more, or a VM that is not where it was, ends it there: nothing is half done, and a
new plan is better than the rest of an old one. Only a run that was cut off is gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpuops.errors import NotConnected, StateDamaged
from gpuops.execute.change.history import history_of
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease import HeldLease, lease_during_run
from gpuops.execute.lease.lease_set import lease_for_all_vms
from gpuops.execute.runs.exclusion import no_change_open, no_rotation_open
from gpuops.execute.runs.nights import last_policy
from gpuops.execute.runs.run_kind import CHANGE, EXCLUSIVE_RUNS, RESUME_CHANGE
from gpuops.execute.site import Consent, Site, catalog_of
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.stored import from_stored, stored_as, to_stored
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, Wave
from gpuops.plan.core.privileges import HOT_MOVE, needed_privileges, refused_without
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, RelocateVm, ShutDownGuest, Step, VmChange
from gpuops.plan.hosts.change.rolling_plan import ChangeStatus, PartProgress
from gpuops.plan.moving.defrag import Defrag, PlannedMove
from gpuops.plan.moving.movability import MoveMethod, admitted_moves

VERB: Final = "defrag"
_FORMAT: Final = 1
AGAIN: Final = "gpuops defrag plans anew on what is there now"
NO_ROOM: Final = "its host has no room for it that is certain any more"


@stored_as(
    "JournalMove",
    vm="vm",
    name="name",
    source="source",
    target="target",
    target_name="target_name",
    powered_off="powered_off",
    pins="pins",
)
@dataclass(frozen=True, slots=True)
class JournalMove:
    """One move as the journal keeps it: from host to host, while the VM runs or powered off."""

    vm: str
    name: str
    source: str
    target: str
    target_name: str
    powered_off: bool
    pins: Mapping[str, str] = field(default_factory=dict)
    """The extraConfig entries that bind its vGPUs to GPUs of the new host, set before it starts there."""

    @property
    def steps(self) -> tuple[Step, ...]:
        relocate = RelocateVm(self.vm, self.target)
        if not self.powered_off:
            return (relocate,)
        bind = (ReconfigureVm(self.vm, VmChange(extra_config=self.pins)),) if self.pins else ()
        return (ShutDownGuest(self.vm, then_off=True), relocate, *bind, PowerOnVm(self.vm, self.target))

    def is_done(self, vm: Vm) -> bool:
        return vm.host == self.target and vm.power is PowerState.ON


def dump_moves(moves: Iterable[JournalMove]) -> str:
    """The moves as JSON."""
    return json.dumps(
        {"format": _FORMAT, "verb": VERB, "moves": [to_stored(move) for move in moves]}, ensure_ascii=False
    )


def load_moves(text: str) -> tuple[JournalMove, ...] | None:
    """The moves that `dump_moves` wrote; None = the order of another change. Raises StateDamaged."""
    try:
        body = json.loads(text)
        if body["verb"] != VERB:
            return None
        return tuple(from_stored(JournalMove, move) for move in body["moves"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateDamaged(f"the journal holds a change that this version cannot read: {text[:80]}") from error


def carry_out(request: Defrag, site: Site, *, apply: bool, consent: Consent) -> Report:
    """The moves that free the most, and with `apply` what became of each.

    Raises UsageError, Refused, NotConnected, StateDamaged, Locked while a rotation runs.
    """
    report, moves = _look(request, site)
    if not apply or not report.plan.feasible or not moves:
        return replace(report, applied=apply)
    while True:
        consent(report)  # not under the lock: while somebody thinks it over, a return of desktops may begin
        agreed_to = report.plan
        with site.locked_journal(report.before.vcenter, alone=True) as journal:
            no_change_open(journal)
            no_rotation_open(journal)
            policy = last_policy(journal)
            policies = (policy,) if policy else ()
            with lease_during_run(
                site, policy.lock_vm if policy else None, journal, policies, returning=False
            ) as lease:
                seen = journal.runs_seen(EXCLUSIVE_RUNS)
                report, moves = _look(request, site)
                if not report.plan.feasible or not moves:
                    return replace(report, applied=True)
                if report.plan != agreed_to:
                    continue
                run = journal.begin(CHANGE, order=dump_moves(moves), known_runs=seen)
                return gone_on_with(run, moves, site, journal, lease.held, report)


def gone_on_with(
    run: Run, moves: tuple[JournalMove, ...], site: Site, journal: Journal, lease: HeldLease | None, report: Report
) -> Report:
    """The moves that are left, one after another, until one is not as it was planned."""
    try:
        outcomes = _MoveRun(run, site, journal, lease).all(moves)
    except NotConnected as lost:
        lost.then_finish(RESUME_CHANGE)
        raise
    journal.end(run)
    return replace(report, outcomes=tuple(outcomes), applied=True)


def given_up(run: Run, site: Site, journal: Journal, lease: HeldLease | None, report: Report) -> Report:
    """The change ended; a VM that was shut down for its move runs again, where it is."""
    moves = _MoveRun(run, site, journal, lease)
    outcomes = moves.settled()
    outcomes += moves.started_again()
    journal.end(run, cut_off=True)
    return replace(report, outcomes=tuple(outcomes), applied=True)


def move_status(run: Run, moves: tuple[JournalMove, ...], inventory: Inventory, holder: str) -> ChangeStatus:
    """Which moves are done, by what vCenter shows."""
    found = [
        PartProgress(
            move.vm,
            f"{move.name} to {move.target_name}",
            "done" if (vm := inventory.vms.get(move.vm)) is not None and move.is_done(vm) else "to do",
        )
        for move in moves
    ]
    return ChangeStatus(VERB, run.started, holder, tuple(found), noun="move")


def _look(request: Defrag, site: Site) -> tuple[Report, tuple[JournalMove, ...]]:
    before = site.vcenter.inventory()
    found = request.find_moves(before, catalog_of(before))
    moves = tuple(_journal_move(move) for move in found.moves)
    waves = tuple(Wave(f"move {number}", move.steps) for number, move in enumerate(moves, 1))
    plan = Plan(waves, because=() if moves else ("no move frees anything",), disruptive=bool(moves))
    lacking = site.vcenter.lacking(_needed(moves)) if moves else {}
    return Report(request, before, refused_without(plan, lacking, before)), moves


def _journal_move(move: PlannedMove) -> JournalMove:
    powered_off = move.way is MoveMethod.POWERED_OFF
    source, target = move.source.ref, move.target
    return JournalMove(move.vm.ref, move.vm.name, source, target.ref, target.name, powered_off, move.pin_entries)


def _needed(moves: Iterable[JournalMove]) -> Mapping[str, frozenset[str]]:
    """A VM that runs moves by another privilege than one that is off (vSphere API reference, RelocateVM_Task)."""
    return {move.vm: needed_privileges(move.steps)[move.vm] if move.powered_off else HOT_MOVE for move in moves}


@dataclass(slots=True)
class _MoveRun:
    """The moves of one run."""

    run: Run
    site: Site
    journal: Journal
    lease: HeldLease | None

    def all(self, moves: tuple[JournalMove, ...]) -> list[Outcome]:
        outcomes, stopped, reason = self.settled(), self.stopped(), ""
        for move in moves:
            inventory = self.site.vcenter.inventory()
            vm = inventory.vms.get(move.vm)
            if vm is not None and move.is_done(vm):
                continue
            reason = reason or self._against(move, vm, inventory, begun=move.vm in stopped)
            if reason:
                outcomes += [Outcome(step, Verdict.SKIPPED, reason) for step in move.steps]
                continue
            made = self.done(move.steps, inventory)
            outcomes += made
            bad = next((each for each in made if each.verdict not in (Verdict.DONE, Verdict.ALREADY)), None)
            if bad is not None:
                outcomes += self.started_again()
                reason = f"{move.name} was not moved; {AGAIN}"
        return outcomes

    def started_again(self) -> list[Outcome]:
        """VMs that were shut down for a move that did not come about, running again where they are."""
        inventory = self.site.vcenter.inventory()
        off = [ref for ref in self.stopped() if ref in inventory.vms and inventory.vm(ref).power is PowerState.OFF]
        return [each for ref in off for each in self.done((PowerOnVm(ref, inventory.vm(ref).host),), inventory)]

    def settled(self) -> list[Outcome]:
        """What a run that was cut off left in flight is waited for; one that did not happen is made anew."""
        found = settle_open(self._executor(self.site.vcenter.inventory()), timeout_s=Limits().step_timeout_s)
        return [outcome for outcome in found if outcome.verdict is Verdict.DONE]

    def stopped(self) -> frozenset[str]:
        """VMs that this run has shut down for their move."""
        taken = history_of(self.journal.state.runs[self.run.id].intents.values()).taken
        return frozenset(each.vm for vms in taken.values() for each in vms.values() if each.stopped)

    def done(self, steps: tuple[Step, ...], inventory: Inventory) -> list[Outcome]:
        """The steps of one VM, each after the one before."""
        waves = tuple(Wave("move", (step,)) for step in steps)
        return list(execute(Plan(waves), self._executor(inventory), Limits(), self.site.progress))

    def _against(self, move: JournalMove, vm: Vm | None, inventory: Inventory, *, begun: bool) -> str:
        """Why the move must not be made now; empty = it is as it was planned, or was begun and must be finished."""
        if vm is None:
            return f"{move.name} is gone from vCenter; {AGAIN}"
        if begun and vm.power is PowerState.OFF:
            return ""
        if vm.host != move.source or vm.power is not PowerState.ON:
            return f"{move.name} is not where it was any more, or does not run; {AGAIN}"
        pins = {0: move.pins} if move.pins else {}
        if not admitted_moves([RelocateVm(move.vm, move.target)], inventory, catalog_of(inventory), pins):
            return f"{move.name}: {NO_ROOM}; {AGAIN}"
        return ""

    def _executor(self, inventory: Inventory) -> VmExecutor:
        vcenter, passed_s = self.site.vcenter, self.site.passed_s
        return VmExecutor(
            vcenter,
            self.journal,
            self.run,
            inventory,
            leases=lease_for_all_vms(self.lease),
            passed_s=passed_s,
        )
