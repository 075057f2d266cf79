"""Truths of reports: I1, I21, I24 each can be rendered, names exactly the VMs that are away, and gives true reasons;
I28 what is shown is what is done.

I24 of a desktop that an admin reverts to another suspended snapshot while it is away is told by the ledger and the
journal's own records: the suspend is noted as done, then the desktop is reverted, then a return looks, and resumes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.plan.core.plan import Report, Verdict
from gpuops.report.layout import plain
from gpuops.report.plan_json import report_document
from gpuops.report.plan_text import report_text
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.judging.doings import GONE, START, SUSPEND, has_one_journal, is_desktop, is_ours, not_back
from tests.nights.playing.played import Played
from tests.nights.world.worlds import DAY

REVERT = "RevertToSnapshot_Task"


class Replaced(NamedTuple):
    """A desktop that comes back in a suspended state that is not the one of its night."""

    moid: str
    then: datetime
    """When the night suspended it."""
    now: datetime
    """When it was suspended in the state that it comes back in."""
    reverted: Entry
    resumed: Entry


def replaced_states(night: Played) -> Iterator[Replaced]:
    """Each of them that a journal has noted as suspended before it was reverted."""
    noted = dict(_noted_suspends(night))
    ours: dict[str, Entry] = {}
    reverted: dict[str, Entry] = {}
    for change in night.world.ledger:
        moid, moment = change.moid, change.after.get("suspend_time")
        if change.method == SUSPEND and is_ours(change) and is_desktop(night, moid, change.name):
            ours[moid] = change
            reverted.pop(moid, None)
        elif change.method == REVERT and moment is not None and noted.get(moid, change.sequence) < change.sequence:
            reverted[moid] = change
        elif moment is not None or change.after.get("power") == "poweredOff":
            ours.pop(moid, None)
        elif change.method == START and is_ours(change) and moid in ours and moid in reverted:
            then, now = ours.pop(moid).after["suspend_time"], reverted[moid].after["suspend_time"]
            yield Replaced(moid, datetime.fromisoformat(then), datetime.fromisoformat(now), reverted[moid], change)


def _noted_suspends(night: Played) -> Iterator[tuple[str, int]]:
    """Desktops of which one suspend alone is in the journal, and how long the ledger was when it was noted as done."""
    suspends = {
        record.body["op"]: str(record.body["step"]["SuspendVm"]["vm"])
        for record, _ in night.kept
        if record.kind is Kind.INTENT and "SuspendVm" in record.body["step"]
    }
    vms = list(suspends.values())
    for record, length in night.kept:
        vm = suspends.get(record.body["op"]) if record.kind is Kind.SETTLED else None
        if vm is not None and record.body["state"] == IntentState.DONE and vms.count(vm) == 1:
            yield vm, length


def tells(report: Report, names: Collection[str], replaced: Replaced) -> bool:
    """Whether the report says of it, by one of its names, both moments."""
    moments = [f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for moment in (replaced.then, replaced.now)]
    warnings = (warning for warning in report.plan.warnings if warning.partition(": ")[0] in names)
    return any(all(moment in warning for moment in moments) for warning in warnings)


UNSEEN: Final = ("A9", "A10", "A11", "A12", "N2", "V4", "V5", "C1", "C5", "C8")
"""What may hide where a VM is."""
ANOTHER: Final = "when its night suspended it"
NOTHING: Final = "everything that nights took is back"
UNREADABLE: Final = ("cannot be read", "cannot be reached", "does not reach the VM")
"""What each reason holds for which the state of a VM is unknown."""
OFF_BY: Final = re.compile(r"vCenter's is (?:(\d+) h )?(\d+) min (?:(\d+) s )?(?:ahead|behind)")


def every_report_is_shown(night: Played) -> Iterator[str]:
    """I24: a report can be shown to people and to programs, with all of its reasons."""
    for report, _ in night.told:
        try:
            plain(report_text(report, explain=True))
            report_document(report, "rotate-night")
        except Exception as error:
            yield f"I24: a report cannot be shown: {type(error).__name__}: {error}"


def gone_is_gone(night: Played) -> Iterator[str]:
    """I24: if a report says that a VM was removed from vCenter, nothing has its id at the end."""
    if night.last is None:
        return
    by_name = {name: moid for moid, name in night.names.items()}
    for refusal in night.last.plan.unmet:
        if refusal.rule == GONE and night.world.find(by_name.get(refusal.subject, "")) is not None:
            yield f"I24: {refusal.subject} is reported as removed from vCenter, and something has its id"


def gone_is_let_go(night: Played) -> Iterator[str]:
    """I24: a VM that was removed from vCenter before a night is named by no morning after it."""
    since: dict[str, datetime] = {}
    let_go: set[str] = set()
    for report, _ in night.told if has_one_journal(night) else ():
        at = report.before.taken_at
        if _returns(report):
            named = {refusal.subject for refusal in report.plan.unmet if refusal.rule == GONE}
            since = {name: since.get(name, at) for name in (*since, *named)}
            yield from (
                f"I24: {name} is named as gone, and was before the last night" for name in sorted(named & let_go)
            )
        elif report.plan.feasible:
            let_go |= {name for name, moment in since.items() if at - moment > DAY / 2}


def clocks_are_told(night: Played) -> Iterator[str]:
    """I21: how far vCenter's clock is said to be off is what it was set by, to two minutes, where it was set once."""
    if not has_one_journal(night):
        return
    skews = [abs(rule.delay_s) for event in night.events if event.fault == "K7" for rule in event.rules]
    for report, _ in night.told:
        for rejection in report.plan.rejections:
            match = OFF_BY.search(rejection.rule)
            if match is None:
                continue
            told_s = sum(int(number or 0) * unit for number, unit in zip(match.groups(), (3600, 60, 1), strict=True))
            if len(skews) == 1 and abs(told_s - skews[0]) > 120:
                yield f"I21: {rejection.rule}, and it was set by {skews[0]:.0f} s"


def a_reason_is_told(night: Played) -> Iterator[str]:
    """I24: every step that was not done has a reason."""
    for report, _ in night.told:
        for outcome in report.outcomes:
            if outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED) and not outcome.reason:
                yield f"I24: {outcome.step} is {outcome.verdict}, and nobody is told why"


def _names_of_vms(night: Played) -> dict[str, set[str]]:
    """By VM (ref) that something was done to, the names that it has had."""
    called: dict[str, set[str]] = {}
    for change in night.world.ledger:
        called.setdefault(change.moid, {night.names.get(change.moid, "")}).add(change.name)
        called[change.moid].add(str(change.after.get("name", "")))
    return called


def whoever_is_away_is_named(night: Played) -> Iterator[str]:
    """I1: each return names every VM that has not come back, by a name that it has had, unless a fault hides where the
    VM is, or an admin gave it up.
    """
    if any(event.fault in UNSEEN for event in night.events) or not has_one_journal(night):
        return
    ledger, called = list(night.world.ledger), _names_of_vms(night)
    for report, length in night.told:
        if not _returns(report) or not report.applied:
            continue
        named_vms = {refusal.subject for refusal in report.plan.unmet} | {
            outcome.step.vm for outcome in report.outcomes
        }
        for moid in sorted(not_back(ledger[:length]) - night.given_up):
            if not named_vms & {moid, *called[moid]}:
                yield f"I1: {night.names.get(moid)} is not back, and a return does not name it"
                return


def foretold(night: Played) -> Iterator[str]:
    """I28: what somebody is shown that a run would do is what it then does."""
    yield from (f"I28: it was not what had been shown: {difference}" for difference in night.foretold)


def only_who_is_away_is_named(night: Played) -> Iterator[str]:
    """I24: a desktop that runs all night long, and with which no night ever had to do, is named by no return, but where
    it was to be taken and cannot be read."""
    ours = {change.moid for change in night.world.ledger if is_ours(change)}
    off = {change.moid for change in night.world.ledger if change.after.get("power") not in (None, Power.ON)}
    ran = {night.names[moid] for moid in night.running - ours - off - night.left_over - night.strays - night.doubtful}
    names_of_originals = {
        night.names.get(record.body["vm"]) for record, _ in night.kept if record.kind is Kind.ORIGINAL
    }
    for report, _ in night.told:
        if _returns(report):
            for refusal in report.plan.unmet:
                if refusal.subject in ran and not (
                    refusal.subject in names_of_originals and any(why in refusal.rule for why in UNREADABLE)
                ):
                    yield f"I24: {refusal.subject} ran all night, and is named: {refusal.rule}"


def nothing_to_do_is_so(night: Played) -> Iterator[str]:
    """I24: a return that has something to do, or somebody to name, does not say that nothing was taken, and one that
    has not says so."""
    for report, _ in night.told:
        if _returns(report) and report.plan.feasible:
            has_something = bool(report.plan.steps or report.plan.unmet or report.plan.choices)
            if has_something == (NOTHING in report.plan.because):
                yield f"I24: {NOTHING}, a return {'says' if has_something else 'does not say'}"


def _returns(report: Report, *, alone: bool = False) -> bool:
    """`alone`: one of some VMs alone, which were named, is one too."""
    return type(report.request).__name__ in ("RotateDay", *(("RestoreVms",) if alone else ()))


def each_return_advises(night: Played) -> Iterator[str]:
    """I1: every step on a desktop that a return could not do comes with a command."""
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
    if any(event.fault in (*UNSEEN, "K7") for event in night.events) or not has_one_journal(night):
        return
    called = _names_of_vms(night)
    for state in replaced_states(night):
        report = next((report for report, length in night.told if length >= state.resumed.sequence), None)
        if report is None or report.journal_lost or not _returns(report, alone=True):
            continue
        looked = report.before.taken_at
        closed = any(
            record.kind is Kind.RETURNED and record.body["vm"] == state.moid and record.at <= looked
            for record, _ in night.kept
        )
        is_changed_by_others = any(
            change.moid == state.moid and state.resumed.sequence < change.sequence and "power" in change.after
            for change in night.world.ledger
        )
        runs_on = looked <= state.resumed.at or not (closed or is_changed_by_others)
        if state.reverted.at < looked and runs_on and not tells(report, called[state.moid], state):
            yield f"I24: {night.names.get(state.moid)} is resumed in a state of {state.now}, and nobody is told"


def only_another_state_is_named(night: Played) -> Iterator[str]:
    """I24: a desktop that was suspended once, and in no other way came to a suspended state, is not told to be in
    another one."""
    called, changes = _names_of_vms(night), Counter[str]()
    for change in night.world.ledger:
        changes[change.moid] += change.after.get("suspend_time") is not None
    excluded_names = {name for moid, count in changes.items() if count > 1 for name in called[moid]}
    for report, _ in night.told:
        for warning in report.plan.warnings:
            if ANOTHER in warning and warning.partition(": ")[0] not in excluded_names:
                yield f"I24: its suspended state is that of its night, and a return says: {warning}"
