"""Each checker can fail: a whole and quiet night, doctored in one place, breaks the invariant that is named. Nights
that once broke one hold: those of `found.yaml`, and a lock VM that is not as it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpuops.errors import Locked, LoginRefused
from gpuops.execute.journal.record import Kind
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import PowerOffVm, RunInGuest
from gpuops.plan.rotation.lease_rules import KEY
from gpuops.sim.core.ledger import Entry
from gpuops.sim.fault_injection.rule import catalogue, rules_of
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import one_holder
from tests.nights.doctored.ml_vms import (
    came_in_the_night,
    kept_off,
    late_and_made_anew,
    left_running,
    names_no_clone,
    never_asked,
    powered_off_in_its_grace,
    renamed_at_first,
    started_by_somebody_before_it_is_stopped,
    started_when_it_was_not_queued_any_more,
    stays_for_nothing,
    stopped_elsewhere_without_its_marker,
    stops_a_clone,
    the_first_come_last,
    with_short_hooks,
    with_team_limit,
    without_hooks,
)
from tests.nights.doctored.nights import (
    Doctor,
    a_floor,
    acts_under_a_lease_that_was_reverted,
    advised_in_vain,
    after,
    asked_at,
    back_too_late,
    beside,
    blocked_by_nobody,
    called_failed,
    closed_at_once,
    counted_and_never_asked,
    ended_by_itself,
    failed_and_gone_on,
    first,
    morning_told_too_early,
    night_with_hooks,
    night_with_teams,
    no_room,
    not_wholly_done,
    one_moved_and_resumed_late,
    quiet,
    shut_down_beside_its_journal,
    three_come_back_and_a_fourth_is_taken,
    told_before,
    two_cut_by_a_machine_that_was_paused,
    two_evenings,
    with_ledger,
    without,
    without_a_lease,
    without_records,
    woken_and_taken_again,
)
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import CHECKERS, only_ours, violations, what_is_withdrawn_stays
from tests.nights.judging.doings import CALL, MARK, MOVE, OFF, START, SUSPEND
from tests.nights.judging.limits import ml_stops, only_the_queue, stays_where_it_is
from tests.nights.judging.ml_vms import asked_to_keep
from tests.nights.measuring.stages import LEASE
from tests.nights.playing.night import Nightly
from tests.nights.playing.place import Admission
from tests.nights.truths.truths import TRUTHS
from tests.nights.world.prepared import prepared_site
from tests.nights.world.worlds import CLOSES, EVENING, LOCK

DOCTORED: list[tuple[str, str, Doctor]] = [
    ("I1", "desktops_back", without(START, desktop=True)),
    ("I1", "desktops_back", lambda night: replace(night, last=None)),
    ("I1", "told_with_a_command", blocked_by_nobody),
    ("I28", "advice_gets_further", advised_in_vain),
    ("I2", "no_session_is_cut", lambda night: replace(night, cut_sessions=[("vm-1", EVENING, CLOSES)])),
    ("I2", "no_session_is_cut", two_cut_by_a_machine_that_was_paused),
    ("I2", "who_works_is_left", lambda night: replace(night, busy=frozenset(night.names))),
    ("I3", "fits", no_room),
    ("I4", "second_is_empty", lambda night: replace(night, second=1)),
    ("I4", "second_night_is_empty", two_evenings),
    ("I4", "second_night_is_empty", ended_by_itself),
    ("I4", "first_night_is_whole", not_wholly_done),
    ("I25", "failures_stop_it", failed_and_gone_on),
    ("I25", "failures_stop_it", counted_and_never_asked),
    ("I5", "journal_keeps", without_records(Kind.ORIGINAL)),
    ("I5", "journal_keeps", closed_at_once),
    ("I5", "journal_keeps", shut_down_beside_its_journal),
    ("I6", "one_at_a_time", beside(None, Admission.LET_IN)),
    ("I6", "one_at_a_time", beside(None, Admission.NOT_ASKED)),
    ("I6", "one_at_a_time", beside(Locked("pid 1 is changing this vCenter"), Admission.REFUSED, sent=1)),
    ("I6", "one_at_a_time", beside(Locked("the lease is held by pid 1"), Admission.LET_IN)),
    ("I6", "one_at_a_time", beside(LoginRefused("not logged in any more"), Admission.LET_IN)),
    ("I6", "one_at_a_time", beside(LoginRefused("not logged in any more"), Admission.REFUSED)),
    ("I6", "one_at_a_time", beside(LoginRefused("not logged in any more"), Admission.NOT_ASKED, sent=1)),
    ("I6", "one_holder", acts_under_a_lease_that_was_reverted),
    ("I6", "under_a_lease", without_a_lease),
    ("I7", "only_ours", after(SUSPEND, desktop=True, moid="vm-0", name="somebody's")),
    ("I7", "only_ours", lambda night: replace(night, takeable=frozenset())),
    ("I7", "only_ours", renamed_at_first),
    ("I7", "only_the_queue", renamed_at_first),
    ("I7", "what_is_withdrawn_stays", lambda night: replace(night, in_spite=[("vm-1", EVENING, CLOSES)])),
    ("I7", "stays_where_it_is", after(MOVE, desktop=False, moid="vm-0", name="desktop-001")),
    ("I7", "stays_where_it_is", after(START, desktop=True, after={"host": "host-0", "power": Power.ON})),
    ("I8", "grace_is_kept", powered_off_in_its_grace),
    ("I9", "in_time", asked_at(CLOSES - timedelta(minutes=1))),
    ("I10", "marked", without(MARK, desktop=True)),
    ("I10", "marked", after(SUSPEND, desktop=True, method=MARK, after={"gpuops.rotation": ""})),
    ("I7", "only_the_queue_starts", started_when_it_was_not_queued_any_more),
    ("I11", "nothing_discarded", after(SUSPEND, desktop=True, method=OFF, before={"power": Power.SUSPENDED})),
    ("I11", "nothing_discarded", after(SUSPEND, desktop=True, method=START, before={"power": Power.OFF})),
    ("I12", "fits_back", back_too_late),
    ("I13", "floor_holds", a_floor),
    ("I14", "in_flight", lambda night: replace(night, most_in_flight=10_000)),
    ("I14", "on_host", lambda night: replace(night, most_on_host=10_000)),
    ("I15", "intent_first", without_records(Kind.INTENT)),
    ("I16", "failed_for_certain", called_failed),
    ("I17", "who_came_back_stays", woken_and_taken_again),
    ("I17", "restless_pool_is_left", three_come_back_and_a_fourth_is_taken),
    ("I18", "others_are_left", without(START, desktop=False)),
    ("I18", "others_are_left", stopped_elsewhere_without_its_marker),
    ("I18", "others_are_left", started_by_somebody_before_it_is_stopped),
    ("I18", "blockers_are_named", blocked_by_nobody),
    ("I19", "one_session", lambda night: replace(night, sessions=1)),
    ("I19", "one_session", lambda night: replace(night, most_sessions=2)),
    ("I20", "inside_the_window", asked_at(CLOSES + timedelta(minutes=1))),
    ("I20", "inside_the_window", asked_at(EVENING - timedelta(minutes=1))),
    ("I20", "one_night", after(START, desktop=True, method=SUSPEND, operation_id="gpuops-9-1")),
    ("I20", "one_night", after(START, desktop=True, moid="vm-0", name="ml-09", operation_id="gpuops-9-1")),
    ("I23", "nobody_left_behind", lambda night: replace(
        without(START, desktop=True)(night), left_behind=frozenset(night.names))),
    ("I23", "ml_stops", left_running),
    ("I7", "only_the_queue", kept_off(desktop=True)),
    ("I8", "work_is_kept", lambda night: without_hooks(night_with_hooks())),
    ("I8", "work_is_kept", lambda night: with_short_hooks(night_with_hooks())),
    ("I8", "asked_to_keep", lambda night: never_asked(night_with_hooks())),
    ("I21", "nothing_on_a_wrong_clock", lambda night: replace(
        night, events=(Event("K7", rules_of("K7", {"delay_s": -3600})),))),
    ("I21", "nothing_on_a_wrong_clock", lambda night: replace(
        night, on_a_wrong_clock=[("before SuspendVm desktop-001", EVENING)])),
    ("I23", "put_back", kept_off(desktop=False)),
    ("I24", "each_step_is_told", lambda night: replace(
        night, told=[(replace(report, outcomes=()), length) for report, length in night.told])),
    ("I24", "done_was_done", told_before),
    ("I24", "told_is_back", morning_told_too_early),
    ("I29", "teams_within_limits", with_team_limit("gpus")),
    ("I29", "teams_within_limits", with_team_limit("gpu_hours_per_week")),
    ("I31", "clones_are_left", stops_a_clone),
    ("I31", "clones_are_left", names_no_clone),
    ("I30", "fair_order_kept", the_first_come_last),
    ("I30", "fair_order_kept", stays_for_nothing),
]  # fmt: skip


@pytest.mark.long
def test_the_nights_that_are_doctored_are_whole() -> None:
    assert violations(quiet()) == []
    assert violations(night_with_hooks()) == []
    assert violations(night_with_teams()) == []


@pytest.mark.long
def test_hooks_end_in_every_way_and_none_keeps_desktops_from_coming_back() -> None:
    reasons = {
        outcome.reason
        for report, _ in night_with_hooks().told
        for outcome in report.outcomes
        if isinstance(outcome.step, RunInGuest)
    }
    assert "" in reasons, "one that saved"
    assert any("still runs after" in reason for reason in reasons), "one that hung, and was not waited for longer"
    assert any("VMware Tools" in reason for reason in reasons), "one that could not be asked"
    assert not night_with_hooks().left_behind


@pytest.mark.long
@pytest.mark.parametrize(
    ("invariant", "checker", "doctor"),
    DOCTORED,
    ids=[f"{each[0]}-{each[1]}-{index}" for index, each in enumerate(DOCTORED)],
)
def test_a_checker_fails_where_its_invariant_is_broken(invariant: str, checker: str, doctor: Doctor) -> None:
    says = next(case for case in CHECKERS if case.__name__ == checker)
    problems = list(says(doctor(quiet())))
    assert problems, f"{checker} says nothing"
    assert {case.partition(":")[0] for case in problems} == {invariant}


@pytest.mark.long
def test_what_a_vm_that_came_in_the_night_is_called_later_changes_nothing() -> None:
    renamed = came_in_the_night(quiet(), at_first=False)
    assert [*only_ours(renamed), *only_the_queue(renamed), *stays_where_it_is(renamed)] == []
    assert list(asked_to_keep(late_and_made_anew(night_with_hooks()))) == []


def test_one_request_of_a_machine_that_was_paused_may_resume_a_desktop_where_it_was() -> None:
    moved = one_moved_and_resumed_late(quiet(), moved=timedelta())
    assert list(stays_where_it_is(moved)) == []
    assert list(stays_where_it_is(replace(moved, stood=[])))
    assert list(stays_where_it_is(one_moved_and_resumed_late(quiet(), moved=-timedelta(minutes=2))))


def test_what_is_withdrawn_may_be_suspended_by_the_call_that_was_past_its_check_and_by_no_later_one() -> None:
    def problems_of_suspend(after: timedelta) -> list[str]:
        return list(what_is_withdrawn_stays(replace(quiet(), in_spite=[("vm-1", EVENING, EVENING + after)])))

    assert problems_of_suspend(CALL) == []
    assert problems_of_suspend(CALL + timedelta(milliseconds=1))


@pytest.mark.long
def test_an_ml_vm_with_a_task_that_hangs_may_run_on_where_the_last_return_says_so() -> None:
    night = without(OFF, desktop=False)(quiet())
    stuck = next(change for change in quiet().world.ledger if change.method == OFF)
    vm = SimpleNamespace(moid=stuck.moid, state=SimpleNamespace(power=Power.ON))
    world: Any = SimpleNamespace(ledger=night.world.ledger, find=lambda moid: vm if moid == stuck.moid else None)
    world.tasks = SimpleNamespace(running=lambda vm: "task-1")
    assert night.last is not None
    failed = replace(night.last, outcomes=(Outcome(PowerOffVm(stuck.moid), Verdict.FAILED, "a task is running"),))
    assert list(ml_stops(replace(night, world=world))), "nobody is told"
    assert list(ml_stops(replace(night, world=world, last=failed))) == []
    world.tasks.running = lambda vm: None
    assert list(ml_stops(replace(night, world=world, last=failed)))


@pytest.mark.long
def test_a_lease_that_a_run_has_just_taken_is_its_own_where_vcenter_tells_old_values() -> None:
    suspend = first(quiet(), SUSPEND, desktop=True)
    run, half, _ = quiet().sent_by[suspend.operation_id]

    def holds(holder: int, before: timedelta) -> Entry:
        text = f'{{"epoch": {holder}, "expires": "{CLOSES.isoformat()}", "format": 1, "nonce": "n", "owner": "o"}}'
        lease = {"extra_config": {KEY: text}}
        at = EVENING - before
        return replace(suspend, at=at, moid="lock", name=LOCK, operation_id=f"gpuops-lease-{holder}", after=lease)

    leases = [holds(run + 90, timedelta(hours=1)), holds(run, timedelta(seconds=1))]
    sent_by = {op: (by, half_name, length + 2) for op, (by, half_name, length) in quiet().sent_by.items()}
    sent_by |= {f"gpuops-lease-{holder}": (holder, half, 0) for holder in (run, run + 90)}
    night = with_ledger(
        quiet(), [*leases, *quiet().world.ledger], sent_by=sent_by, names={**quiet().names, "lock": LOCK},
        events=(Event("A11", rules_of("A11", {"for_s": 90.0})),),
    )  # fmt: skip
    assert list(one_holder(night)) == []
    theirs = with_ledger(night, [leases[1], leases[0], *quiet().world.ledger])
    assert list(one_holder(theirs))


@pytest.mark.long
def test_a_lock_vm_that_came_in_the_night_and_is_gone_again_is_the_lock_vm() -> None:
    creation = replace(first(quiet(), SUSPEND, desktop=True), moid="vm-9999", name=LOCK)
    night = with_ledger(quiet(), [creation, *quiet().world.ledger])
    assert night.is_lock_vm("vm-9999")
    assert not night.is_lock_vm("vm-9998")


@pytest.mark.long
def test_every_checker_is_seen_to_fail() -> None:
    assert {checker for _, checker, _ in DOCTORED} == {
        checker.__name__ for checker in CHECKERS if checker not in TRUTHS
    }


NIGHTS = yaml.safe_load(Path(__file__).with_name("found.yaml").read_text(encoding="utf-8"))


def event_of(fault: str, rules: dict[str, Any] | None = None, **fields: Any) -> Event:
    """An event of the file; a fault of the simulator has the rules of the catalogue, some of them changed."""
    return Event(fault, rules_of(fault, rules) if fault in catalogue() else (), **fields)


@pytest.mark.quick_cases(11)
@pytest.mark.parametrize(
    "night",
    [pytest.param(night, id=night["about"], marks=[pytest.mark.long] * night.get("long", False)) for night in NIGHTS],
)
def test_a_night_that_broke_holds(night: dict[str, Any]) -> None:
    seed, events = night["seed"], [event_of(**event) for event in night["events"]]
    site = None
    if "prepared" in night:
        site = prepared_site(seed, leased="leased" in night["prepared"], crowded="crowded" in night["prepared"])
    own_events = Nightly(seed).played.events if night.get("own_events") else ()
    played = Nightly(seed, [*events, *own_events], site=site).play()
    assert played.reached or not events, "something struck"
    assert violations(played) == []


@pytest.mark.long
@pytest.mark.parametrize("fault", [pytest.param("V10", id="moved"), pytest.param("V4", id="made anew")])
def test_a_lock_vm_that_is_not_as_it_was_is_known(fault: str) -> None:
    site = prepared_site(1, leased=True, crowded=False)
    night = Nightly(1, [event_of(fault, state=LEASE)], site=site).play()
    assert (fault, LEASE) in night.reached
    assert violations(night) == []
