"""Truths: what a night says, and how it asks, held against what happened. None of it is asked of the engine.

I6 the number of a lease grows, and a lease is not asked for without end, I16 what may still arrive is unknown and what
was never sent is not, I24 every report can be shown and its reasons are so, I25 refusals in a row stop a night, I28
what is shown is what is done.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.execute.journal.record import Kind
from gpuops.execute.journal.remembered import IntentState
from gpuops.execute.runs.run_kind import RunKind
from gpuops.model.nights.night_record import parse_marker
from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.core.steps import RunInGuest
from gpuops.plan.rotation.lease import TTL_S
from gpuops.report.layout import plain
from gpuops.report.plan_json import report_document
from gpuops.report.plan_text import report_text
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import lease_in
from tests.nights.at_once.several import Machine, Several, second_machine
from tests.nights.judging.doings import (
    CALL,
    GONE,
    MARK,
    OFF,
    SHUT_DOWN,
    START,
    effects,
    is_desktop,
    is_ours,
    machine_of,
    not_back,
    takes,
    takings,
)
from tests.nights.judging.reverting import replaced, tells
from tests.nights.playing.played import Played
from tests.nights.world.worlds import DAY, EVENING, HOOK, LOCK

LEASE_OP: Final = "gpuops-lease-"
ASKED_AT_MOST: Final = 6
"""So often in a minute a run asks for its lease: three tries to take it, and three to renew it."""
REFUSES: Final = "vCenter refuses one step after the other"
EXCUSED: Final = re.compile("Insufficient|InProgress|InUse|InvalidState|InvalidPowerState|NoCompatibleHost|Concurrent")
"""Faults of a VM that somebody is at, that is in another state than thought, or that there is no room for."""
UNSEEN: Final = ("A9", "A10", "A11", "A12", "N2", "V4", "V5", "C1", "C5")
"""What may hide where a VM is."""
MARKERS_STAY: Final = {"K1", "K2", "K6", "K7", "K11", "G1"}
"""What takes no marker off, and no VM out of its pool, and keeps no journal from being written."""
TAKE: Final = ("SuspendVm", "PowerOnVm", "ShutDownGuest")
ANOTHER: Final = "when its night suspended it"
NOTHING: Final = "no night has taken anything that is not back"
OFF_BY: Final = re.compile(r"vCenter's is (?:(\d+) h )?(\d+) min (?:(\d+) s )?(?:ahead|behind)")
ROW: Final = 2
"""So many refusals in a row stop a night."""


def every_report_is_shown(night: Played) -> Iterator[str]:
    """I24: a report can be shown to people and to programs, with all of its reasons."""
    for report, _ in night.told:
        try:
            plain(report_text(report, explain=True))
            report_document(report, "rotate")
        except Exception as error:
            yield f"I24: a report cannot be shown: {type(error).__name__}: {error}"


def gone_is_gone(night: Played) -> Iterator[str]:
    """I24: of a VM that is told to be gone from vCenter there is none under its id at the end."""
    if night.last is None:
        return
    by_name = {name: moid for moid, name in night.names.items()}
    for each in night.last.plan.unmet:
        if each.rule == GONE and night.world.find(by_name.get(each.subject, "")) is not None:
            yield f"I24: {each.subject} is told to be gone from vCenter, and something has its id"


def gone_is_let_go(night: Played) -> Iterator[str]:
    """I24: who was gone from vCenter before a night is named by no morning after it."""
    since: dict[str, datetime] = {}
    let_go: set[str] = set()
    for report, _ in night.told if _alone(night) else ():
        at = report.before.taken_at
        if _returns(report):
            named = {each.subject for each in report.plan.unmet if each.rule == GONE}
            since = {name: since.get(name, at) for name in (*since, *named)}
            yield from (
                f"I24: {name} is named as gone, and was before the last night" for name in sorted(named & let_go)
            )
        elif report.plan.feasible:
            let_go |= {name for name, moment in since.items() if at - moment > DAY / 2}


def refusals_are_so(night: Played) -> Iterator[str]:
    """I25: a night that stops because vCenter refuses one step after the other was refused that many, for no want of
    room, and not because somebody else was at it."""
    history: list[Any] = list(night.world.tasks.history())
    ended = {task.call.operation_id: type(task.error).__name__.rpartition(".")[2] for task in history if task.error}
    faults = {
        op: night.refused.get(number) or ended.get(op)
        for number, (op, _, _) in enumerate(night.asks)
        if night.sent_by.get(op, (0, "", 0))[1] != RunKind.DAY
    }
    refusals = [op for op, fault in faults.items() if fault is not None and not EXCUSED.search(fault)]
    for report, _ in night.told:
        told = [each.reason or "" for each in report.outcomes] + [each.rule for each in report.plan.rejections]
        if any(REFUSES in reason for reason in told) and len(refusals) < ROW:
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
    found: dict[str, list[tuple[datetime, int]]] = {}
    for number, (op, at, length) in enumerate(night.asks):
        if not op.startswith(LEASE_OP) and number not in night.refused:
            found.setdefault(op, []).append((at, length))
    return found


def _alone(night: Played) -> bool:
    """Whether there is one journal, and one policy."""
    return night.site.several in (Several.NONE, Several.POOLS) and not any(each.fault == "K6" for each in night.events)


def over_has_begun(night: Played) -> Iterator[str]:
    """I20: a night that is told to be over had taken something: a return before that is none of its own."""
    if not _alone(night):
        return
    first = min((entry.sequence for entry in takings(night)), default=None)
    for report, length in night.told:
        because = " ".join(report.plan.because)
        if "its morning has begun" in because and not night.doubtful and (first is None or first >= length):
            yield f"I20: {because}; and it had not taken anything"


def _vm_of(night: Played, op: str) -> str:
    for record, _ in night.kept:
        if record.kind is Kind.INTENT and record.body["op"] == op:
            return str(next(iter(record.body["step"].values()))["vm"])
    return ""


def noted_once(night: Played) -> Iterator[str]:
    """I10: when a marker was first seen is written onto it once."""
    marker = night.site.policy.marker
    for entry in effects(night, MARK):
        before, after = parse_marker(entry.before.get(marker, "")), parse_marker(entry.after.get(marker, ""))
        if before is not None and after is not None and None not in (before.seen, after.seen) and before != after:
            yield f"I10: that the marker of {entry.name} was seen is noted anew"


def numbers_grow(night: Played) -> Iterator[str]:
    """I6: nobody writes a lease with a lower number than the one there, or over one that another machine holds; and no
    machine one with a lower number than one under which it changed anything, whatever lock VM and clock say: it knows
    that by its journal, or by the marker of a desktop that is away."""
    highest: dict[int, int] = {}
    written: dict[int, int] = {}
    last: tuple[int, str, datetime] | None = None
    """Whose lease was written last: its machine and nonce, and when."""
    struck = {event.fault for event in night.events}
    known, steady = struck <= MARKERS_STAY, "K7" not in struck
    away: set[str] = set()
    for entry in night.world.ledger:
        if takes(entry):
            away.add(entry.moid)
        elif entry.after.get("power") == Power.ON or not entry.after:
            away.discard(entry.moid)
        if not is_ours(entry):
            continue
        machine = machine_of(night, entry)
        if entry.name != LOCK or "extra_config" not in entry.after:
            highest[machine] = max(written.get(machine, 0), highest.get(machine, 0))
            continue
        before, after = lease_in(entry.before), lease_in(entry.after)
        if after is None:
            continue
        if before is not None and after.epoch < before.epoch:
            yield f"I6: lease number {after.epoch} was written where {before.epoch} was"
        elif after.epoch < highest.get(machine, 0) and known and (away or not night.lost_journal):
            yield f"I6: lease number {after.epoch} was written, and {highest[machine]} had been before"
        elif steady and before is not None and before.nonce and _holds(last, before.nonce, machine, entry.at):
            yield f"I6: lease number {after.epoch} was written over one that another machine held"
        written[machine], last = after.epoch, (machine, after.nonce, entry.at)


def _holds(last: tuple[int, str, datetime] | None, nonce: str, machine: int, at: datetime) -> bool:
    """Whether another machine than this wrote the lease of this nonce last, and holds it at that moment."""
    if last is None:
        return False
    wrote, its_nonce, since = last
    return nonce == its_nonce and machine != wrote and at < since + timedelta(seconds=TTL_S) - CALL


def asked_at_most(night: Played) -> Iterator[str]:
    """I6: a return whose lease cannot be written does not ask for it again and again: a few tries in each minute."""
    asked: dict[str, list[datetime]] = {}
    for op, at, _ in night.asks:
        if op.startswith(LEASE_OP) and night.sent_by.get(op, (0, "", 0))[1] == RunKind.DAY:
            lately = [each for each in asked.get(op, ()) if at - each < timedelta(seconds=50)]
            asked[op] = [*lately, at]
            if len(asked[op]) > ASKED_AT_MOST:
                yield f"I6: a lease was asked for {len(asked[op])} times in less than a minute, at {at:%H:%M:%S}"
                return


def no_return_is_kept_away(night: Played) -> Iterator[str]:
    """I1: a return goes on where its lock VM was reverted or is gone, and nobody else has taken the lease."""
    if not _alone(night) or any(run == -1 for run, _, _ in night.sent_by.values()):
        return
    for name, ended, at in night.calls:
        if name == RunKind.DAY and ended.startswith("Locked") and "pid " not in ended:
            yield f"I1: {name} at {at:%H:%M} ended with: {ended}"


def clocks_are_told(night: Played) -> Iterator[str]:
    """I21: how far vCenter's clock is said to be off is what it was set by, to two minutes, where it was set once."""
    if not _alone(night):
        return
    skews = [abs(rule.delay_s) for event in night.events if event.fault == "K7" for rule in event.rules]
    for report, _ in night.told:
        for each in report.plan.rejections:
            told = OFF_BY.search(each.rule)
            if told is None:
                continue
            told_s = sum(int(number or 0) * unit for number, unit in zip(told.groups(), (3600, 60, 1), strict=True))
            if len(skews) == 1 and abs(told_s - skews[0]) > 120:
                yield f"I21: {each.rule}, and it was set by {skews[0]:.0f} s"


def never_sent_is_not_lost(night: Played) -> Iterator[str]:
    """I16: what is told to be unknown was asked for at least once, unless its run was cut off and another one settled
    it: what the first left open it may have asked for, and a task of that kind may be its own."""
    asked = {op for op, _, _ in night.asks}
    cut_off = [
        at for _, ended, at in night.calls if ended not in ("done", "refused") and not ended.startswith("Locked")
    ]
    intended: dict[str, datetime] = {}
    for record, _ in night.kept:
        body = record.body
        if record.kind is Kind.INTENT:
            intended[body["op"]] = record.at
        if record.kind is Kind.SETTLED and body["state"] == IntentState.UNKNOWN and body["op"] not in asked:
            since = intended.get(body["op"], record.at)
            clock = (second_machine(night.seed) if night.kept_on.get(id(record)) == 1 else Machine()).clock
            if not any(since <= clock(lambda at=at: at, EVENING)() <= record.at for at in cut_off):  # type: ignore[misc]
                yield f"I16: {body['op']} is told to be unknown ({body['reason']}), and was never sent"


def moved_meanwhile(night: Played) -> Iterator[str]:
    """I7: a move whose reply was lost is not asked for again where somebody has moved the VM since; of one that vCenter
    refused, no reply was lost."""
    for op, asks in _asks_of_an_op(night).items():
        if len(asks) > 1 and _steps(night).get(op) == "RelocateVm":
            since, until = asks[0][1], asks[-1][1]
            ledger = list(night.world.ledger)[since:until]
            if any(each.moid == _vm_of(night, op) and each.method == "MigrateVM_Task" for each in ledger):
                yield f"I7: {_vm_of(night, op)} was moved by somebody else, and then once more by a repeated request"


def hooks_end_as_told(night: Played) -> Iterator[str]:
    """I8: where nothing goes wrong, a guest's program that ended well in its time is told as done."""
    if night.events:
        return
    [manager] = night.world.by_type("GuestProcessManager")
    processes: Any = manager
    ended = {each.vm: each for each in processes.processes if each.path == HOOK}
    for report, _ in night.told:
        for outcome in report.outcomes:
            if not isinstance(outcome.step, RunInGuest) or outcome.verdict not in (Verdict.UNKNOWN, Verdict.FAILED):
                continue
            process = ended.get(outcome.step.vm)
            if process is None or process.ends_at is None or process.exit_code != 0:
                continue
            if (process.ends_at - process.started_at).total_seconds() < outcome.step.limit_s:
                yield f"I8: the hook of {outcome.step.vm} ended well, and is {outcome.verdict}: {outcome.reason}"


def left_over_come_back(night: Played) -> Iterator[str]:
    """I1: a desktop that another machine's night left suspended, with its marker on it, runs in the end, if it can."""
    away = set(night.left_over & night.left_behind)
    for moid in sorted(away):
        yield f"I1: {night.names.get(moid)} was left over by another machine's night, and was not brought back"


def no_directpath_is_suspended(night: Played) -> Iterator[str]:
    """I26: a desktop that was given a device with which no VM can be suspended is not asked to suspend."""
    steps = _steps(night)
    for op, at, _ in night.asks:
        since = night.unsuspendable.get(_vm_of(night, op)) if steps.get(op) == "SuspendVm" else None
        if since is not None and at - since > timedelta(seconds=60):
            yield f"I26: {_vm_of(night, op)} was asked to suspend {at - since} after it was given a DirectPath device"


def a_reason_is_told(night: Played) -> Iterator[str]:
    """I24: whatever was not done is told with a reason."""
    for report, _ in night.told:
        for outcome in report.outcomes:
            if outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED) and not outcome.reason:
                yield f"I24: {outcome.step} is {outcome.verdict}, and nobody is told why"


def _called(night: Played) -> dict[str, set[str]]:
    """By VM (ref) that something was done to, the names that it has had."""
    called: dict[str, set[str]] = {}
    for entry in night.world.ledger:
        called.setdefault(entry.moid, {night.names.get(entry.moid, "")}).add(entry.name)
        called[entry.moid].add(str(entry.after.get("name", "")))
    return called


def whoever_is_away_is_named(night: Played) -> Iterator[str]:
    """I1: whoever has not come back is named by each return, by a name that it has had; unless a fault hides where a VM
    is, or a person gave it up."""
    if any(event.fault in UNSEEN for event in night.events) or not _alone(night):
        return
    ledger, called = list(night.world.ledger), _called(night)
    for report, length in night.told:
        if not _returns(report) or not report.applied:
            continue
        told = {each.subject for each in report.plan.unmet} | {outcome.step.vm for outcome in report.outcomes}
        for moid in sorted(not_back(ledger[:length]) - night.given_up):
            if not told & {moid, *called[moid]}:
                yield f"I1: {night.names.get(moid)} is not back, and a return does not name it"
                return


def what_is_over_is_left(night: Played) -> Iterator[str]:
    """I18: what the journal has closed is neither stopped nor resumed again: whoever runs or suspended it since is not
    us."""
    if not _alone(night):
        return
    closed: dict[str, int] = {}
    for record, length in night.kept:
        if record.kind is Kind.RETURNED and record.body["vm"] not in night.given_up:
            closed.setdefault(record.body["vm"], length)
    taken = {entry.moid: entry.sequence for entry in takings(night)}
    for entry in effects(night, START, OFF, SHUT_DOWN):
        since = closed.get(entry.moid)
        if since is not None and entry.sequence > since > taken.get(entry.moid, since + 1):
            yield f"I18: {entry.method} on {entry.name}, and the journal had closed it"


def foretold(night: Played) -> Iterator[str]:
    """I28: what somebody is shown that a run would do is what it then does."""
    yield from (f"I28: it was not what had been shown: {each}" for each in night.foretold)


def closed_once(night: Played) -> Iterator[str]:
    """I5: who is back is closed in the journal, once, however many returns there are."""
    if not _alone(night):
        return  # each machine has a journal of its own
    open_: Counter[tuple[str, str]] = Counter()
    for record, _ in night.kept:
        if record.kind is Kind.ORIGINAL:
            open_[record.body["night"], record.body["vm"]] = 1
        elif record.kind is Kind.INTENT and next(iter(record.body["step"])) in TAKE:
            vm = next(iter(record.body["step"].values()))["vm"]
            open_.update({key: 1 for key in open_ if key[1] == vm})
        elif record.kind is Kind.RETURNED:
            key = record.body["night"], record.body["vm"]
            if open_[key] <= 0:
                yield f"I5: {night.names.get(key[1], key[1])} is closed once more in the journal"
                return
            open_[key] = 0


def closed_at_the_end(night: Played) -> Iterator[str]:
    """I5: where nothing goes wrong, the journal has closed everybody in the end."""
    if night.events or not night.site.policy.ml_stop.then_off:
        return
    left = {(record.body["night"], record.body["vm"]) for record, _ in night.kept if record.kind is Kind.ORIGINAL}
    left -= {(record.body["night"], record.body["vm"]) for record, _ in night.kept if record.kind is Kind.RETURNED}
    away = not_back(list(night.world.ledger))
    for _, vm in sorted(left):
        if vm not in away and is_desktop(night, vm):
            yield f"I5: {night.names.get(vm)} is back, and the journal never says so"


def only_who_is_away_is_named(night: Played) -> Iterator[str]:
    """I24: a desktop that runs all night long, and with which no night ever had to do, is named by no return, but where
    it was to be taken and cannot be read."""
    ours = {entry.moid for entry in night.world.ledger if is_ours(entry)}
    off = {entry.moid for entry in night.world.ledger if entry.after.get("power") not in (None, Power.ON)}
    ran = {night.names[moid] for moid in night.running - ours - off - night.left_over - night.strays - night.doubtful}
    meant = {night.names.get(record.body["vm"]) for record, _ in night.kept if record.kind is Kind.ORIGINAL}
    for report, _ in night.told:
        if _returns(report):
            for each in report.plan.unmet:
                if each.subject in ran and not (each.subject in meant and "cannot be read" in each.rule):
                    yield f"I24: {each.subject} ran all night, and is named: {each.rule}"


def nothing_to_do_is_so(night: Played) -> Iterator[str]:
    """I24: a return that has something to do, or somebody to name, does not say that nothing was taken, and one that
    has not says so."""
    for report, _ in night.told:
        if _returns(report) and report.plan.feasible:
            found = bool(report.plan.steps or report.plan.unmet or report.plan.choices)
            if found == (NOTHING in report.plan.because):
                yield f"I24: {NOTHING}, a return {'says' if found else 'does not say'}"


def _returns(report: Report, *, alone: bool = False) -> bool:
    """`alone`: one of some VMs alone, which were named, is one too."""
    return type(report.request).__name__ in ("RotateDay", *(("RestoreVms",) if alone else ()))


def each_return_advises(night: Played) -> Iterator[str]:
    """I1: whatever a return could not do to a desktop is told with what to type."""
    bad = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
    for report, _ in night.told:
        if not _returns(report):
            continue
        for outcome in report.outcomes[-len(report.plan.steps) :] if report.plan.steps else ():
            wakes = type(outcome.step).__name__ == "ResumeVm" and outcome.verdict in bad
            if wakes and not re.search(r"gpuops |the same command", outcome.reason):
                yield f"I1: {night.names.get(outcome.step.vm)} is {outcome.verdict}, and nobody is told what to do"


def another_state_is_named(night: Played) -> Iterator[str]:
    """I24: a desktop that was reverted to another suspended snapshot while it was away is named, with both moments, by
    the return that saw it so and resumed it, or where that was cut off by the next one, if it is not closed by then;
    unless a fault hides what vCenter shows, or sets its clock."""
    if any(event.fault in (*UNSEEN, "K7") for event in night.events) or not _alone(night):
        return
    called = _called(night)
    for each in replaced(night):
        report = next((report for report, length in night.told if length >= each.resumed.sequence), None)
        if report is None or report.journal_lost or not _returns(report, alone=True):
            continue
        looked = report.before.taken_at
        closed = any(
            record.kind is Kind.RETURNED and record.body["vm"] == each.moid and record.at <= looked
            for record, _ in night.kept
        )
        others = any(
            entry.moid == each.moid and each.resumed.sequence < entry.sequence and "power" in entry.after
            for entry in night.world.ledger
        )
        runs_on = looked <= each.resumed.at or not (closed or others)
        if each.reverted.at < looked and runs_on and not tells(report, called[each.moid], each):
            yield f"I24: {night.names.get(each.moid)} is resumed in a state of {each.now}, and nobody is told"


def only_another_state_is_named(night: Played) -> Iterator[str]:
    """I24: a desktop that was suspended once, and in no other way came to a suspended state, is not told to be in
    another one."""
    called, changes = _called(night), Counter[str]()
    for entry in night.world.ledger:
        changes[entry.moid] += entry.after.get("suspend_time") is not None
    others = {name for moid, count in changes.items() if count > 1 for name in called[moid]}
    for report, _ in night.told:
        for warning in report.plan.warnings:
            if ANOTHER in warning and warning.partition(": ")[0] not in others:
                yield f"I24: its suspended state is that of its night, and a return says: {warning}"


TRUTHS: Final = (
    every_report_is_shown, gone_is_gone, gone_is_let_go, refusals_are_so, refused_stops, over_has_begun, noted_once,
    numbers_grow, asked_at_most, no_return_is_kept_away, never_sent_is_not_lost, moved_meanwhile, hooks_end_as_told,
    left_over_come_back, no_directpath_is_suspended, clocks_are_told, foretold, closed_once, closed_at_the_end,
    only_who_is_away_is_named, a_reason_is_told, whoever_is_away_is_named, what_is_over_is_left, each_return_advises,
    nothing_to_do_is_so, another_state_is_named, only_another_state_is_named,
)  # fmt: skip
