"""Promises: what the journal and the reports say, held against the ledger.

I1 each named VM has a reason and a command, I5 the journal keeps what is not back, I10 the markers alone would be
enough, I15 intent before effect, I16 unknown is never reported as known, I24 what is called done was done, I28 advice
that is followed helps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.model.nights.night_record import parse_marker
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.judging.doings import (
    MARK,
    OFF,
    SHUT_DOWN,
    effects,
    is_desktop,
    is_ours,
    let_go,
    machine_of,
    not_back,
    takes,
)
from tests.nights.playing.played import Played

REACHES = {
    SuspendVm: Power.SUSPENDED,
    ResumeVm: Power.ON,
    PowerOnVm: Power.ON,
    ShutDownGuest: Power.OFF,
    PowerOffVm: Power.OFF,
}


def journal_keeps(night: Played) -> Iterator[str]:
    """I5: a desktop is in the journal before it is suspended, and stays open there until it has run again or a person
    has given it up. Of two machines, in the journal of the one that suspended it."""
    ledger = list(night.world.ledger)
    saved: dict[str, int] = {}
    for record, length in night.kept:
        if record.kind is Kind.ORIGINAL:
            saved.setdefault(record.body["vm"], length)
        elif record.kind is Kind.RETURNED and record.body["vm"] in _awaited_desktops(night, length) - let_go(night):
            last = next(change for change in reversed(ledger[:length]) if _takes(change, record.body["vm"]))
            if {machine_of(night, last), night.kept_on.get(id(record), 0)} != {0, 1}:
                yield f"I5: the journal closed {night.names[record.body['vm']]}, which was not back"
    for entry in effects(night):
        if takes(entry) and saved.get(entry.moid, len(ledger)) >= entry.sequence:
            yield f"I5: {entry.name} was taken, and the journal does not know it"


def _takes(entry: Entry, vm: str) -> bool:
    return entry.moid == vm and takes(entry)


def _awaited_desktops(night: Played, length: int) -> set[str]:
    """Return desktops of the evening that were not back at this length of the ledger and were not given up."""
    return not_back(list(night.world.ledger)[:length]) & night.names.keys() - night.given_up


def intent_first(night: Played) -> Iterator[str]:
    """I15: every effect has an intent that was durable before; on a full disk (K3) at least every one that takes."""
    full = any(event.fault == "K3" for event in night.events)
    durable = {record.body["op"]: length for record, length in night.kept if record.kind is Kind.INTENT}
    for entry in effects(night):
        if durable.get(entry.operation_id, entry.sequence) >= entry.sequence and not (full and _returns(night, entry)):
            yield f"I15: {entry.method} on {entry.name} without an intent before it"


def _returns(night: Played, entry: Entry) -> bool:
    """Whether it is one of a morning's: those go by the markers when the journal is lost."""
    match entry.method:
        case "PowerOnVM_Task":
            return is_desktop(night, entry.moid, entry.name)
        case "SetField":  # cleared, or when it was first seen by a return is noted on it
            after = entry.after.get(night.site.policy.marker, "")
            marked = parse_marker(after)
            return not after or (marked is not None and marked.seen is not None)
        case "ReconfigureComputeResource_Task":
            return len(entry.after["overrides"]) < len(entry.before["overrides"])
        case method:
            return method in (OFF, SHUT_DOWN, "StartProgramInGuest")


def failed_for_certain(night: Played) -> Iterator[str]:
    """I16: what is called failed does not happen any more; what still may is called unknown. What a cluster is set to
    for a VM that somebody has deleted by then changes nothing."""
    failed = {
        record.body["op"]: length
        for record, length in night.kept
        if record.kind is Kind.SETTLED and record.body["state"] == IntentState.FAILED
    }
    vms = {
        record.body["op"]: next(iter(record.body["step"].values()))["vm"]
        for record, _ in night.kept
        if record.kind is Kind.INTENT
    }
    deleted = {change.moid: change.sequence for change in night.world.ledger if change.method == "Destroy_Task"}
    for entry in effects(night):
        late = entry.sequence > failed.get(entry.operation_id, entry.sequence) and entry.method != SHUT_DOWN
        if late and deleted.get(vms.get(entry.operation_id, ""), entry.sequence) >= entry.sequence:
            yield f"I16: {entry.method} on {entry.name} was called failed, and happened after that"


def done_was_done(night: Played) -> Iterator[str]:
    """I24: a step that a report calls done is one that the ledger shows."""
    ledger = list(night.world.ledger)
    for report, length in night.told:
        reached = {(change.moid, change.after.get("power")) for change in ledger[:length]}
        for outcome in report.outcomes:
            power = REACHES.get(type(outcome.step))
            if power is not None and outcome.verdict is Verdict.DONE and (outcome.step.vm, power) not in reached:
                yield f"I24: {night.names.get(outcome.step.vm)} is told to be {power}, and never was"


def each_step_is_told(night: Played) -> Iterator[str]:
    """I24: a report has an outcome for each step that it planned."""
    for report, _ in night.told:
        if len(report.outcomes) < len(report.plan.steps):
            yield f"I24: {len(report.plan.steps)} steps were planned, and {len(report.outcomes)} have an outcome"


def told_is_back(night: Played) -> Iterator[str]:
    """I24: a morning that ends with 0 leaves no desktop suspended that we suspended, unless it was given up; and none
    of another machine that still exists: one that is gone is in the journal of that machine alone, and so is every one
    of them where somebody has edited the name of the marker.
    """
    ledger = list(night.world.ledger)
    elsewhere = {id(report) for report in night.told_elsewhere}
    taken_by = {entry.moid: machine_of(night, entry) for entry in effects(night) if takes(entry)}
    for report, length in night.told:
        if report.exit_code == 0 and isinstance(report.request, RotateDay):
            removed_vms = {change.moid for change in ledger[:length] if not change.after}
            edited = report.request.policy.marker != night.site.policy.marker
            unknown = removed_vms | taken_by.keys() if edited else removed_vms
            vms_of_others = {moid for moid in unknown if taken_by.get(moid, 0) != (id(report) in elsewhere)}
            for moid in sorted(not_back(ledger[:length]) - vms_of_others - let_go(night) - night.given_up):
                yield f"I24: a morning ended with 0, and {night.names.get(moid)} was not back"


def told_with_a_command(night: Played) -> Iterator[str]:
    """I1: the morning names each desktop with a reason and with the next command."""
    if night.last is None:
        return
    reasons: dict[str, str] = {}
    for outcome in night.last.outcomes:
        if outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED):
            name = night.names.get(outcome.step.vm, outcome.step.vm)
            reasons[name] = f"{reasons.get(name, '')} {outcome.reason}"
    reasons |= {unmet.subject: f"{unmet.rule} {unmet.hint}" if unmet.rule else "" for unmet in night.last.plan.unmet}
    for name, words in sorted(reasons.items()):
        if name.startswith("desktop-") and not any(way in words for way in ("gpuops ", "the same command")):
            yield f"I1: {name} is named without a next command: {words.strip()!r}"


def advice_gets_further(night: Played) -> Iterator[str]:
    """I28: what is advised as it stands, and not behind what somebody must do first, is not advised again in the same
    words by a return that then did nothing."""
    elsewhere = {id(report) for report in night.told_elsewhere}
    days = [(report, length) for report, length in night.told if isinstance(report.request, RotateDay)]
    for is_elsewhere in (False, True):
        returns = [day for day in days if (id(day[0]) in elsewhere) is is_elsewhere]
        for (report, length), (later_report, after) in pairwise(returns):
            if length == after:
                for line in sorted(_advice_lines(report) & _advice_lines(later_report)):
                    yield f"I28: `gpuops rotate day` is advised, and leads to the same line: {line}"


def _advice_lines(report: Report) -> set[str]:
    """The lines of a report that advise the return as it stands."""
    lines = {f"{unmet.subject}: {unmet.rule} (next: {unmet.hint})" for unmet in report.plan.unmet}
    bad = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
    lines |= {f"{outcome.step.vm}: {outcome.reason}" for outcome in report.outcomes if outcome.verdict in bad}
    return {line for line in lines if re.search(r"(?<!then )gpuops rotate day\b", line)}


def marked(night: Played) -> Iterator[str]:
    """I10: a VM carries its marker from before it is suspended until it runs again."""
    marker = night.site.policy.marker
    carries: dict[str, bool] = {}
    suspended_vms: set[str] = set()
    for change in night.world.ledger:
        moid = change.moid
        if change.method == MARK and marker in change.after:
            carries[moid] = bool(change.after[marker])
            if is_ours(change) and not carries[moid] and moid in suspended_vms:
                yield f"I10: the marker of {change.name} was cleared while it was suspended"
        elif takes(change):
            suspended_vms.add(moid)
            if not carries.get(moid):
                yield f"I10: {change.name} was taken without its marker"
        elif "power" in change.after:
            suspended_vms.discard(moid)
