"""Truths: what a night says, and how it asks, held against what happened. None of it is asked of the engine.

In this file are those of journals and markers: I5 a VM that is back is closed, once; I1, I10, I18, I20 what a night
left open is known to be so, and what is over is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpuops.execute.journal.record import Kind
from gpuops.model.nights.night_record import parse_marker
from tests.nights.judging.doings import (
    MARK,
    OFF,
    SHUT_DOWN,
    START,
    effects,
    has_one_journal,
    is_desktop,
    not_back,
    takings,
)
from tests.nights.playing.played import Played
from tests.nights.truths import reports, requests

TAKE: Final = ("SuspendVm", "PowerOnVm", "ShutDownGuest")


def over_has_begun(night: Played) -> Iterator[str]:
    """I20: a night that is reported as over had taken something: an earlier return is not its own."""
    if not has_one_journal(night):
        return
    first = min((entry.sequence for entry in takings(night)), default=None)
    for report, length in night.told:
        because = " ".join(report.plan.because)
        if "its return has begun" in because and not night.doubtful and (first is None or first >= length):
            yield f"I20: {because}; and it had not taken anything"


def noted_once(night: Played) -> Iterator[str]:
    """I10: when a marker was first seen is written onto it once."""
    marker = night.site.policy.marker
    for entry in effects(night, MARK):
        before, after = parse_marker(entry.before.get(marker, "")), parse_marker(entry.after.get(marker, ""))
        if before is not None and after is not None and None not in (before.seen, after.seen) and before != after:
            yield f"I10: that the marker of {entry.name} was seen is noted anew"


def left_over_come_back(night: Played) -> Iterator[str]:
    """I1: a desktop that another machine's night left suspended, with its marker on it, runs in the end, if it can."""
    left_suspended = set(night.left_over & night.left_behind)
    for moid in sorted(left_suspended):
        yield f"I1: {night.names.get(moid)} was left over by another machine's night, and was not brought back"


def what_is_over_is_left(night: Played) -> Iterator[str]:
    """I18: what the journal has closed is neither stopped nor resumed again: another login started or suspended it
    since.
    """
    if not has_one_journal(night):
        return
    closed: dict[str, int] = {}
    for record, length in night.kept:
        if record.kind is Kind.RETURNED and record.body["vm"] not in night.given_up:
            closed.setdefault(record.body["vm"], length)
    last_taking = {entry.moid: entry.sequence for entry in takings(night)}
    for entry in effects(night, START, OFF, SHUT_DOWN):
        since = closed.get(entry.moid)
        if since is not None and entry.sequence > since > last_taking.get(entry.moid, since + 1):
            yield f"I18: {entry.method} on {entry.name}, and the journal had closed it"


def closed_once(night: Played) -> Iterator[str]:
    """I5: a VM that is back is closed in the journal, once, however many returns there are."""
    if not has_one_journal(night):
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
    open_records = {
        (record.body["night"], record.body["vm"]) for record, _ in night.kept if record.kind is Kind.ORIGINAL
    }
    open_records -= {
        (record.body["night"], record.body["vm"]) for record, _ in night.kept if record.kind is Kind.RETURNED
    }
    suspended_vms = not_back(list(night.world.ledger))
    for _, vm in sorted(open_records):
        if vm not in suspended_vms and is_desktop(night, vm):
            yield f"I5: {night.names.get(vm)} is back, and the journal never says so"


TRUTHS: Final = (
    reports.every_report_is_shown,
    reports.gone_is_gone,
    reports.gone_is_let_go,
    requests.refusals_are_so,
    requests.refused_stops,
    over_has_begun,
    noted_once,
    requests.numbers_grow,
    requests.asked_at_most,
    requests.no_return_is_kept_away,
    requests.never_sent_is_not_lost,
    requests.moved_meanwhile,
    requests.hooks_end_as_told,
    left_over_come_back,
    requests.no_directpath_is_suspended,
    reports.clocks_are_told,
    reports.foretold,
    closed_once,
    closed_at_the_end,
    reports.only_who_is_away_is_named,
    reports.a_reason_is_told,
    reports.whoever_is_away_is_named,
    what_is_over_is_left,
    reports.each_return_advises,
    reports.nothing_to_do_is_so,
    reports.another_state_is_named,
    reports.only_another_state_is_named,
)
