"""Truths of requests and leases: I16 what may still arrive is unknown and what was never sent is not, I25 refusals in a
row stop a night, I7, I8, I26 nothing is asked for that was overtaken, or cannot be; I6 the number of a lease grows, and
none is asked for without end; I1 a return goes on without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.execute.runs import RunKind
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import RunInGuest
from gpuops.plan.rotation.lease_rules import TTL_S
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import lease_in
from tests.nights.at_once.several import Machine, second_machine
from tests.nights.judging.doings import CALL, has_one_journal, is_ours, machine_of, takes
from tests.nights.playing.played import Played
from tests.nights.world.worlds import EVENING, HOOK, LOCK

LEASE_OP: Final = "gpuops-lease-"
ASKED_AT_MOST: Final = 6
"""So often in a minute a run asks for its lease: three tries to take it, and three to renew it."""
MARKERS_STAY: Final = {"K1", "K2", "K6", "K7", "K11", "G1"}
"""What takes no marker off, and no VM out of its pool, and keeps no journal from being written."""


def numbers_grow(night: Played) -> Iterator[str]:
    """I6: no machine writes a lease with a lower number than the current one, or over one that another machine holds;
    and no machine one with a lower number than one under which it changed anything, whatever lock VM and clock say: it
    knows that by its journal, or by the marker of a desktop that is away.
    """
    highest: dict[int, int] = {}
    written: dict[int, int] = {}
    last: tuple[int, str, datetime] | None = None
    """The lease that was written last: its machine and nonce, and until when it is held. One whose write was queued
    for minutes may have expired before it was there."""
    struck = {event.fault for event in night.events}
    is_readable, steady = struck <= MARKERS_STAY, "K7" not in struck
    suspended_vms: set[str] = set()
    for change in night.world.ledger:
        if takes(change):
            suspended_vms.add(change.moid)
        elif change.after.get("power") == Power.ON or not change.after:
            suspended_vms.discard(change.moid)
        if not is_ours(change):
            continue
        machine = machine_of(night, change)
        if change.name != LOCK or "extra_config" not in change.after:
            highest[machine] = max(written.get(machine, 0), highest.get(machine, 0))
            continue
        before, after = lease_in(change.before), lease_in(change.after)
        if after is None:
            continue
        if before is not None and after.epoch < before.epoch:
            yield f"I6: lease number {after.epoch} was written where {before.epoch} was"
        elif after.epoch < highest.get(machine, 0) and is_readable and (suspended_vms or not night.lost_journal):
            yield f"I6: lease number {after.epoch} was written, and {highest[machine]} had been before"
        elif steady and before is not None and before.nonce and _holds(last, before.nonce, machine, change.at):
            yield f"I6: lease number {after.epoch} was written over one that another machine held"
        held_until = min(after.expires, change.at + timedelta(seconds=TTL_S))
        written[machine], last = after.epoch, (machine, after.nonce, held_until)


def _holds(last: tuple[int, str, datetime] | None, nonce: str, machine: int, at: datetime) -> bool:
    """Whether another machine than this wrote the lease of this nonce last, and holds it at that moment."""
    if last is None:
        return False
    wrote, its_nonce, until = last
    return nonce == its_nonce and machine != wrote and at < until - CALL


def asked_at_most(night: Played) -> Iterator[str]:
    """I6: a return whose lease cannot be written does not ask for it again and again: a few tries in each minute."""
    requests: dict[str, list[datetime]] = {}
    for op, at, _ in night.asks:
        if op.startswith(LEASE_OP) and night.sent_by.get(op, (0, "", 0))[1] == RunKind.DAY:
            lately = [moment for moment in requests.get(op, ()) if at - moment < timedelta(seconds=50)]
            requests[op] = [*lately, at]
            if len(requests[op]) > ASKED_AT_MOST:
                yield f"I6: a lease was asked for {len(requests[op])} times in less than a minute, at {at:%H:%M:%S}"
                return


def no_return_is_kept_away(night: Played) -> Iterator[str]:
    """I1: a return goes on if its lock VM was reverted or is gone, and no other machine has taken the lease."""
    if not has_one_journal(night) or any(run == -1 for run, _, _ in night.sent_by.values()):
        return
    for name, ended, at in night.calls:
        if name == RunKind.DAY and ended.startswith("Locked") and "pid " not in ended:
            yield f"I1: {name} at {at:%H:%M} ended with: {ended}"


REFUSES: Final = "vCenter refuses one step after the other"
EXCUSED: Final = re.compile("Insufficient|InProgress|InUse|InvalidState|InvalidPowerState|NoCompatibleHost|Concurrent")
"""Faults of a VM that somebody is at, that is in another state than thought, or that there is no room for."""
ROW: Final = 2
"""So many refusals in a row stop a night."""


def refusals_are_so(night: Played) -> Iterator[str]:
    """I25: a night that stops because vCenter refuses one step after the other was refused that many, not for want of
    room, and not because of a foreign change.
    """
    history: list[Any] = list(night.world.tasks.history())
    ended = {task.call.operation_id: type(task.error).__name__.rpartition(".")[2] for task in history if task.error}
    faults = {
        op: night.refused.get(number) or ended.get(op)
        for number, (op, _, _) in enumerate(night.asks)
        if night.sent_by.get(op, (0, "", 0))[1] != RunKind.DAY
    }
    refusals = [op for op, fault in faults.items() if fault is not None and not EXCUSED.search(fault)]
    for report, _ in night.told:
        reasons = [outcome.reason or "" for outcome in report.outcomes] + [
            rejection.rule for rejection in report.plan.rejections
        ]
        if any(REFUSES in reason for reason in reasons) and len(refusals) < ROW:
            yield f"I25: {REFUSES}, a night says, and it was refused {len(refusals)} in all"


def refused_stops(night: Played) -> Iterator[str]:
    """I25: after two refusals in a row, one step at a time, nothing more is taken."""
    if night.site.policy.limits.in_flight > 1:
        return
    steps = _steps(night)
    row = 0
    for number, (op, at, _) in enumerate(night.asks):
        run, half, _ = night.sent_by.get(op, (None, "", 0))
        if op.startswith(LEASE_OP) or half != RunKind.NIGHT or run == -1 or op not in steps:
            continue
        if row >= ROW and steps[op] in ("SuspendVm", "PowerOnVm"):
            yield f"I25: {steps[op]} was asked for at {at:%H:%M:%S}, and vCenter had refused {row} steps in a row"
            return
        row = row + 1 if night.refused.get(number) == "NoPermission" else 0


def _steps(night: Played) -> dict[str, str]:
    return {
        record.body["op"]: next(iter(record.body["step"])) for record, _ in night.kept if record.kind is Kind.INTENT
    }


def _asks_of_an_op(night: Played) -> dict[str, list[tuple[datetime, int]]]:
    """By op id, each request that vCenter did not refuse."""
    requests_by_op: dict[str, list[tuple[datetime, int]]] = {}
    for number, (op, at, length) in enumerate(night.asks):
        if not op.startswith(LEASE_OP) and number not in night.refused:
            requests_by_op.setdefault(op, []).append((at, length))
    return requests_by_op


def _vm_of(night: Played, op: str) -> str:
    for record, _ in night.kept:
        if record.kind is Kind.INTENT and record.body["op"] == op:
            return str(next(iter(record.body["step"].values()))["vm"])
    return ""


def never_sent_is_not_lost(night: Played) -> Iterator[str]:
    """I16: a step that is reported as unknown was sent at least once, unless its run was cut off and another one
    settled it: what the first left open it may have asked for, and a task of that kind may be its own.
    """
    requested_ops = {op for op, _, _ in night.asks}
    cut_off = [
        at for _, ended, at in night.calls if ended not in ("done", "refused") and not ended.startswith("Locked")
    ]
    intended: dict[str, datetime] = {}
    for record, _ in night.kept:
        body = record.body
        if record.kind is Kind.INTENT:
            intended[body["op"]] = record.at
        if record.kind is Kind.SETTLED and body["state"] == IntentState.UNKNOWN and body["op"] not in requested_ops:
            since = intended.get(body["op"], record.at)
            clock = (second_machine(night.seed) if night.kept_on.get(id(record)) == 1 else Machine()).clock
            if not any(since <= clock(lambda at=at: at, EVENING)() <= record.at for at in cut_off):  # type: ignore[misc]
                yield f"I16: {body['op']} is reported as unknown ({body['reason']}), and was never sent"


def moved_meanwhile(night: Played) -> Iterator[str]:
    """I7: a move whose reply was lost is not asked for again where somebody has moved the VM since; of one that vCenter
    refused, no reply was lost."""
    for op, asks in _asks_of_an_op(night).items():
        if len(asks) > 1 and _steps(night).get(op) == "RelocateVm":
            since, until = asks[0][1], asks[-1][1]
            ledger = list(night.world.ledger)[since:until]
            if any(change.moid == _vm_of(night, op) and change.method == "MigrateVM_Task" for change in ledger):
                yield f"I7: {_vm_of(night, op)} was moved by another login, and then once more by a repeated request"


def hooks_end_as_told(night: Played) -> Iterator[str]:
    """I8: if nothing goes wrong, a guest's program that ended well in time is reported as done."""
    if night.events:
        return
    [manager] = night.world.by_type("GuestProcessManager")
    processes: Any = manager
    ended = {process.vm: process for process in processes.processes if process.path == HOOK}
    for report, _ in night.told:
        for outcome in report.outcomes:
            if not isinstance(outcome.step, RunInGuest) or outcome.verdict not in (Verdict.UNKNOWN, Verdict.FAILED):
                continue
            process = ended.get(outcome.step.vm)
            if process is None or process.ends_at is None or process.exit_code != 0:
                continue
            if (process.ends_at - process.started_at).total_seconds() < outcome.step.limit_s:
                yield f"I8: the hook of {outcome.step.vm} ended well, and is {outcome.verdict}: {outcome.reason}"


def no_directpath_is_suspended(night: Played) -> Iterator[str]:
    """I26: a desktop that was given a device with which no VM can be suspended is not asked to suspend."""
    steps = _steps(night)
    for op, at, _ in night.asks:
        since = night.unsuspendable.get(_vm_of(night, op)) if steps.get(op) == "SuspendVm" else None
        if since is not None and at - since > timedelta(seconds=60):
            yield f"I26: {_vm_of(night, op)} was asked to suspend {at - since} after it was given a DirectPath device"
