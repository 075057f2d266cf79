"""Each truth can fail: in a complete night that is changed in one place."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from gpuops.execute.journal.record import IntentState, Kind, Record
from gpuops.execute.runs import RunKind
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import ResumeVm, RunInGuest
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.state.vm_state import Power
from tests.nights.doctored.nights import Doctor, first, quiet, with_ledger, without
from tests.nights.faults.event import Event
from tests.nights.judging.doings import GONE, MARK, OFF, SUSPEND, effects, is_desktop
from tests.nights.judging.ml_vms import RUN
from tests.nights.playing.played import Played
from tests.nights.situations.situations import SITUATIONS
from tests.nights.truths.reports import ANOTHER, NOTHING, REVERT
from tests.nights.truths.requests import LEASE_OP, REFUSES, moved_meanwhile, never_sent_is_not_lost
from tests.nights.truths.truths import TRUTHS
from tests.nights.world.worlds import EVENING, LOCK

SEED = 7_200_000


@cache
def calm() -> Played:
    """A night with a lock VM."""
    return SITUATIONS["Calm"](SEED).play()


@cache
def next_night() -> Played:
    """A night, its morning, and the next night."""
    return SITUATIONS["NextNight"](SEED).play()


@cache
def night_with_hook() -> Played:
    for seed in range(SEED, SEED + 100, 2):
        night = SITUATIONS["Hooked"](seed).play()
        hook_outcomes = [
            outcome for report, _ in night.told for outcome in report.outcomes if isinstance(outcome.step, RunInGuest)
        ]
        if any(outcome.verdict is Verdict.DONE for outcome in hook_outcomes):
            return night
    raise AssertionError("no hook ends well")


def returns(night: Played) -> list[int]:
    return [number for number, (report, _) in enumerate(night.told) if type(report.request).__name__ == "RotateDay"]


def with_report(night: Played, number: int, report: Report) -> Played:
    reports = list(night.told)
    reports[number] = report, reports[number][1]
    return replace(night, told=reports)


def with_unmet(name: str, rule: str) -> Doctor:
    """Each return names that desktop."""

    def doctor_night(night: Played) -> Played:
        for number in returns(night):
            report = night.told[number][0]
            unmet = (*report.plan.unmet, Rejection(name, rule, hint="gpuops rotate day"))
            night = with_report(night, number, replace(report, plan=replace(report.plan, unmet=unmet)))
        return replace(night, last=night.told[-1][0])

    return doctor_night


def with_outcomes(**changes: Any) -> Doctor:
    """The outcome of the first step of each kind in each report is another one."""

    def doctor_night(night: Played) -> Played:
        for number, (report, _) in enumerate(night.told):
            outcomes = tuple(replace(outcome, **changes) for outcome in report.outcomes)
            night = with_report(night, number, replace(report, outcomes=outcomes))
        return night

    return doctor_night


def because(words: str, *, keeps_ledger: bool) -> Doctor:
    def doctor_night(night: Played) -> Played:
        report = night.told[0][0]
        night = with_report(night, 0, replace(report, plan=replace(report.plan, because=(words,))))
        return night if keeps_ledger else replace(with_ledger(night, []), doubtful=frozenset())

    return doctor_night


def shown_badly(night: Played) -> Played:
    report = night.told[0][0]
    choices: Any = (None,)
    return with_report(night, 0, replace(report, plan=replace(report.plan, choices=choices)))


def refused_three_times(night: Played) -> Played:
    run = replace(night, refused=dict.fromkeys(range(len(night.asks)), "NoPermission"))
    return replace(run, site=replace(night.site, policy=replace(
        night.site.policy, limits=replace(night.site.policy.limits, in_flight=1))))  # fmt: skip


def noted_anew(night: Played) -> Played:
    mark = first(night, MARK, desktop=True)
    marker = night.site.policy.marker
    value = f"{mark.after[marker]} seen=2026-11-02T2{{}}:00:00+00:00"
    second_mark = replace(mark, before={marker: value.format(1)}, after={marker: value.format(2)})
    return with_ledger(night, [*night.world.ledger, second_mark])


def a_lower_number(night: Played) -> Played:
    entries = list(night.world.ledger)
    leases = [entry for entry in entries if entry.name == LOCK]
    return with_ledger(night, [*entries, replace(leases[-1], before=leases[-1].after, after={
        "extra_config": {key: re.sub(r'"epoch": \d+', '"epoch": 0', text) for key, text in
                         leases[0].after["extra_config"].items()}})])  # fmt: skip


def a_lower_number_after_a_revert(night: Played) -> Played:
    """The lock VM is as it was before all leases, a desktop is away, and a lease with a low number is written."""
    entries = list(night.world.ledger)
    lease = next(entry for entry in entries if entry.name == LOCK)
    suspend = first(night, SUSPEND, desktop=True)
    low = {key: re.sub(r'"epoch": \d+', '"epoch": 1', text) for key, text in lease.after["extra_config"].items()}
    return with_ledger(night, [*entries, suspend, replace(lease, before={}, after={"extra_config": low})])


def a_lease_that_another_machine_holds(night: Played) -> Played:
    """The lease that was written last is of another machine, and is written over seconds later."""
    [mine, *_] = [change for change in night.world.ledger if change.name == LOCK]
    theirs = replace(mine, operation_id=f"{mine.operation_id}x")
    overwriting = replace(mine, at=mine.at + timedelta(seconds=5), before=theirs.after)
    return with_ledger(
        night, [theirs, overwriting], sent_by={**night.sent_by, theirs.operation_id: (-1, RunKind.DAY.value, 0)}
    )


def off_by_an_hour(night: Played) -> Played:
    """A night says by how much the clocks differ, and they were set otherwise."""
    report = night.told[0][0]
    rejections = (Rejection("clocks", "vCenter's is 1 h 0 min ahead of this machine's: the hours cannot be told"),)
    doctored = with_report(night, 0, replace(report, plan=replace(report.plan, rejections=rejections)))
    return replace(doctored, events=(Event("K7", rules_of("K7", {"delay_s": 7200})),))


def asked_ten_times(night: Played) -> Played:
    op = f"{LEASE_OP}x-9"
    asks = [*night.asks, *[(op, EVENING, 0)] * 10]
    return replace(night, asks=asks, sent_by={**night.sent_by, op: (0, RunKind.DAY.value, 0)})


def kept_away(night: Played) -> Played:
    ended = "Locked: the VM was reverted to a snapshot"
    return replace(night, calls=[*night.calls, (RunKind.DAY.value, ended, EVENING)])


def with_record(kind: Kind, **body: Any) -> Doctor:
    return lambda night: replace(night, kept=[*night.kept, (Record(9999, "", kind, EVENING, body), 9999)])


def closed_again(night: Played) -> Played:
    record = next(kept_record for kept_record, _ in night.kept if kept_record.kind is Kind.RETURNED)
    return replace(night, kept=[*night.kept, (record, 9999)])


def never_closed(night: Played) -> Played:
    return replace(night, kept=[kept_record for kept_record in night.kept if kept_record[0].kind is not Kind.RETURNED])


def moved_twice(night: Played) -> Played:
    record = next(
        kept_record
        for kept_record, _ in night.kept
        if kept_record.kind is Kind.INTENT and "RelocateVm" in kept_record.body["step"]
    )
    op, vm = record.body["op"], record.body["step"]["RelocateVm"]["vm"]
    moved = replace(first(night, SUSPEND, desktop=True), moid=vm, method="MigrateVM_Task", operation_id="")
    doctored = with_ledger(night, [*night.world.ledger, moved])
    asks = [kept_record for kept_record in night.asks if kept_record[0] != op]
    return replace(doctored, asks=[*asks, (op, EVENING, 0), (op, EVENING, len(doctored.world.ledger))])


def a_device(night: Played) -> Played:
    return replace(night, unsuspendable={entry.moid: EVENING.replace(hour=1) for entry in effects(night, SUSPEND)})


def stopped_again(night: Played) -> Played:
    entries = list(night.world.ledger)
    stop = next(change for change in reversed(entries) if change.method == OFF and not is_desktop(night, change.moid))
    return with_ledger(night, [*entries, *[replace(stop, after={"power": Power.OFF})] * 9])


def hook_unknown(night: Played) -> Played:
    for number, (report, _) in enumerate(night.told):
        outcomes = tuple(
            replace(outcome, verdict=Verdict.UNKNOWN) if isinstance(outcome.step, RunInGuest) else outcome
            for outcome in report.outcomes
        )
        night = with_report(night, number, replace(report, outcomes=outcomes))
    return night


def never_named(night: Played) -> Played:
    """No desktop comes back, and no return says so."""
    night = without("PowerOnVM_Task", desktop=True)(night)
    for number in returns(night):
        report = night.told[number][0]
        night = with_report(night, number, replace(report, applied=True, outcomes=()))
    return night


def resume_without_a_word(night: Played) -> Played:
    for number in returns(night):
        report = night.told[number][0]
        if report.plan.steps:
            outcomes = (Outcome(ResumeVm("vm-1"), Verdict.FAILED, "no room"),)
            night = with_report(night, number, replace(report, outcomes=outcomes))
    return night


def nothing_was_taken(night: Played) -> Played:
    for number in returns(night):
        report = night.told[number][0]
        night = with_report(night, number, replace(report, plan=replace(report.plan, because=(NOTHING,))))
    return night


def idle_name(night: Played) -> str:
    """A desktop that ran all night."""
    touched = {change.moid for change in night.world.ledger}
    return min(night.names[moid] for moid in night.running - touched)


def reverted_without_a_word(night: Played) -> Played:
    """Somebody reverts a desktop just before the last return looks, and that does not speak of it."""
    [back] = [number for number in returns(night) if night.told[number][0].plan.steps]
    looked = night.told[back][0].before.taken_at
    entries = list(night.world.ledger)
    at = next(place for place, entry in enumerate(entries) if entry.at >= looked)
    suspended = first(night, SUSPEND, desktop=True)
    reverted = replace(suspended, method=REVERT, operation_id="", at=looked - timedelta(seconds=1),
                       after={"suspend_time": EVENING.isoformat()})  # fmt: skip
    longer = [(report, length + 1) for report, length in night.told]
    return replace(with_ledger(night, [*entries[:at], reverted, *entries[at:]]), told=longer)


def another_state_of_nobody(night: Played) -> Played:
    report = night.told[0][0]
    warnings = (f"{idle_name(night)}: {ANOTHER}",)
    return with_report(night, 0, replace(report, plan=replace(report.plan, warnings=warnings)))


DOCTORED: list[tuple[str, Any, Doctor]] = [
    ("every_report_is_shown", quiet, shown_badly),
    ("gone_is_gone", quiet, lambda night: with_unmet(min(night.names.values()), GONE)(night)),
    ("gone_is_let_go", next_night, lambda night: with_unmet(min(night.names.values()), GONE)(night)),
    ("refusals_are_so", quiet, with_outcomes(verdict=Verdict.SKIPPED, reason=REFUSES)),
    ("refused_stops", quiet, refused_three_times),
    ("over_has_begun", quiet, because("night 1 is over: its return has begun", keeps_ledger=False)),
    ("noted_once", quiet, noted_anew),
    ("numbers_grow", calm, a_lower_number),
    ("numbers_grow", calm, a_lower_number_after_a_revert),
    ("numbers_grow", calm, a_lease_that_another_machine_holds),
    ("asked_at_most", calm, asked_ten_times),
    ("no_return_is_kept_away", calm, kept_away),
    ("never_sent_is_not_lost", quiet, with_record(
        Kind.SETTLED, op="gpuops-0-1", state=IntentState.UNKNOWN, reason="")),
    ("moved_meanwhile", quiet, moved_twice),
    ("hooks_end_as_told", night_with_hook, hook_unknown),
    ("left_over_come_back", quiet, lambda night: replace(
        night, left_over=frozenset(night.names), left_behind=frozenset(night.names))),
    ("no_directpath_is_suspended", quiet, a_device),
    ("clocks_are_told", quiet, off_by_an_hour),
    ("foretold", quiet, lambda night: replace(night, foretold=["steps: one more"])),
    ("closed_once", quiet, closed_again),
    ("closed_at_the_end", quiet, never_closed),
    ("only_who_is_away_is_named", quiet, lambda night: with_unmet(idle_name(night), "may be away")(night)),
    ("a_reason_is_told", quiet, with_outcomes(verdict=Verdict.SKIPPED, reason="")),
    ("whoever_is_away_is_named", quiet, never_named),
    ("what_is_over_is_left", quiet, stopped_again),
    ("each_return_advises", quiet, resume_without_a_word),
    ("nothing_to_do_is_so", quiet, nothing_was_taken),
    ("another_state_is_named", quiet, reverted_without_a_word),
    ("only_another_state_is_named", quiet, another_state_of_nobody),
]  # fmt: skip


IDS = [f"{truth}-{doctor.__name__}" for truth, _, doctor in DOCTORED]


@pytest.mark.long
@pytest.mark.parametrize(("truth", "night", "candidate"), DOCTORED, ids=IDS)
def test_a_truth_fails_where_it_is_not_so(truth: str, night: Any, candidate: Doctor) -> None:
    [checker] = [candidate for candidate in TRUTHS if candidate.__name__ == truth]
    assert list(checker(night())) == []
    assert list(checker(candidate(night())))


def test_a_move_that_vcenter_refused_was_not_lost() -> None:
    twice = moved_twice(quiet())
    assert list(moved_meanwhile(replace(twice, refused={len(twice.asks) - 2: "NotAuthenticated"}))) == []


def test_what_a_run_that_was_cut_off_left_open_is_unknown_to_the_next_one_alone() -> None:
    record = next(kept_record for kept_record, _ in quiet().kept if kept_record.kind is Kind.INTENT)
    body = {"op": record.body["op"], "state": IntentState.UNKNOWN, "reason": "it asks a question"}
    lost = replace(record, kind=Kind.SETTLED, body=body)
    asks = [kept_record for kept_record in quiet().asks if kept_record[0] != record.body["op"]]
    night = replace(quiet(), kept=[*quiet().kept, (lost, 9999)], asks=asks)
    assert list(never_sent_is_not_lost(night))
    assert list(never_sent_is_not_lost(replace(night, calls=[(RunKind.NIGHT, "killed", record.at)]))) == []


@pytest.mark.long
def test_every_truth_is_seen_to_fail() -> None:
    assert [*dict.fromkeys(truth for truth, _, _ in DOCTORED)] == [checker.__name__ for checker in TRUTHS]


@pytest.mark.long
def test_the_doctored_nights_are_whole() -> None:
    assert not calm().events
    assert not night_with_hook().events
    assert RUN in {change.method for change in night_with_hook().world.ledger}
