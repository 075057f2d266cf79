"""Each checker can fail: a whole and quiet night, doctored in one place, breaks the invariant that is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.errors import GpuopsError, Locked, LoginRefused
from gpuops.execute.journal.record import Kind
from gpuops.execute.journal.remembered import IntentState
from gpuops.model.nights.rotation import DrsOverride
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import PowerOffVm, ResumeVm, RunInGuest
from gpuops.plan.rotation.lease import KEY
from gpuops.sim.core.ledger import Entry
from gpuops.sim.fault_injection.catalogue import rules_of
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.beside import Beside
from tests.nights.at_once.machines import one_holder
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import CHECKERS, only_ours, violations, what_is_withdrawn_stays
from tests.nights.judging.doings import CALL, MARK, MOVE, OFF, SHUT_DOWN, START, SUSPEND, effects, is_desktop
from tests.nights.judging.hooks import RUN, asked_to_keep
from tests.nights.judging.limits import ml_stops, stays_where_it_is
from tests.nights.judging.overrides import only_the_queue
from tests.nights.judging.teams import teams_of
from tests.nights.judging.truths import TRUTHS
from tests.nights.playing.night import play
from tests.nights.playing.place import Admission
from tests.nights.playing.played import OVERRIDE, Played
from tests.nights.situations.situations import SITUATIONS
from tests.nights.world.worlds import CLOSES, EVENING, LOCK

SEED = 106
"""Of a night with desktops suspended, ML VMs moved, started, shut down and powered off."""

HOOKED = 2
"""Of a night whose ML VMs keep their work by hooks: one does, others fail, hang, or have no VMware Tools."""

Doctor = Callable[[Played], Played]


@cache
def quiet() -> Played:
    night = play(SEED, ())
    done = [entry.method for entry in night.world.ledger]
    assert done.count(SUSPEND) > 2, "there is something to doctor"
    assert {MOVE, MARK, START, OFF, "ShutdownGuest"} <= set(done)
    return night


def with_ledger(night: Played, entries: list[Entry], **fields: Any) -> Played:
    """The night with another ledger, numbered anew."""
    ledger = [replace(entry, sequence=number) for number, entry in enumerate(entries, 1)]
    world: Any = SimpleNamespace(
        ledger=ledger, find=night.world.find, tasks=night.world.tasks, by_type=night.world.by_type, bugs=[]
    )
    return replace(night, world=world, **fields)


def first(night: Played, method: str, *, desktop: bool) -> Entry:
    return next(
        each for each in night.world.ledger if each.method == method and is_desktop(night, each.moid) == desktop
    )


def without(method: str, *, desktop: bool) -> Doctor:
    """The first such effect never was."""

    def doctored(night: Played) -> Played:
        gone = first(night, method, desktop=desktop)
        return with_ledger(night, [entry for entry in night.world.ledger if entry is not gone])

    return doctored


def after(effect: str, *, desktop: bool, **changes: Any) -> Doctor:
    """One more effect right after the first such: the same, but for the changes."""

    def doctored(night: Played) -> Played:
        seen = first(night, effect, desktop=desktop)
        more = replace(seen, **changes)
        entries = [each for entry in night.world.ledger for each in ([entry, more] if entry is seen else [entry])]
        return with_ledger(night, entries)

    return doctored


@cache
def hooked() -> Played:
    night = play(HOOKED, ())
    assert [entry.method for entry in night.world.ledger].count(RUN) > 2
    return night


def unsaved(night: Played) -> Played:
    """No hook ever ran."""
    return with_ledger(night, [entry for entry in night.world.ledger if entry.method != RUN])


def hurried(night: Played) -> Played:
    """Each hook began a second before its VM was stopped."""
    stops = {entry.moid: entry.at for entry in night.world.ledger if entry.method == "ShutdownGuest"}
    late = timedelta(seconds=1)
    entries = [
        replace(entry, at=stops[entry.moid] - late) if entry.method == RUN else entry for entry in night.world.ledger
    ]
    return with_ledger(night, entries)


def never_asked(night: Played) -> Played:
    kept = [(record, length) for record, length in night.kept if "RunInGuest" not in record.body.get("step", {})]
    return replace(night, kept=kept, events=(Event("T1"),), told=[])


def kept_off(*, desktop: bool) -> Doctor:
    """DRS is kept off a VM in the end."""

    def doctored(night: Played) -> Played:
        seen = first(night, START, desktop=desktop)
        more = replace(seen, method=OVERRIDE, before={"overrides": {}}, after={"overrides": {seen.moid: "manual"}})
        return with_ledger(night, [*night.world.ledger, more])

    return doctored


def came_in_the_night(night: Played, *, at_first: bool) -> Played:
    """An ML VM was made anew in the night, renamed before it was first touched or once it was started, and deleted. DRS
    was kept off it."""
    vm = first(night, START, desktop=False)
    names = {moid: name for moid, name in night.names.items() if moid != vm.moid}
    override = replace(vm, moid="c", name="c", method=OVERRIDE, before={"overrides": {}},
                       after={"overrides": {vm.moid: "manual"}})  # fmt: skip
    entries: list[Entry] = []
    for entry in night.world.ledger:
        renamed = entry.moid == vm.moid and (at_first or entry.sequence > vm.sequence)
        entries.append(replace(entry, name="renamed") if renamed else entry)
        entries += [override] if entry is vm else []
    policy = replace(night.site.policy, drs_override=DrsOverride.MANUAL)
    played = with_ledger(night, entries, names=names, site=replace(night.site, policy=policy))
    played.world.find = lambda moid: None if moid == vm.moid else night.world.find(moid)  # type: ignore[method-assign]
    return played


def renamed_at_first(night: Played) -> Played:
    """What was touched was called otherwise before anything was done to it."""
    return came_in_the_night(night, at_first=True)


def late_and_made_anew(night: Played) -> Played:
    """No hook was tried, and each VM that was made anew in the night is told to be late."""
    names = {moid: name for moid, name in night.names.items() if name.startswith("desktop-")}
    report, length = night.told[-1]
    queue = [queued.name for queued in night.site.policy.ml]
    warnings = tuple(f"{name}: 0 s to keep its work, not 240: it is late" for name in queue)
    told = (replace(report, plan=replace(report.plan, warnings=warnings)), length)
    return replace(never_asked(night), names=names, told=[told])


def woken_and_taken_again(night: Played) -> Played:
    taken = first(night, SUSPEND, desktop=True)
    woken = replace(taken, method=START, operation_id="", before=taken.after, after=taken.before)
    entries = [each for entry in night.world.ledger for each in ([entry, woken, taken] if entry is taken else [entry])]
    return with_ledger(night, entries)


def back_too_late(night: Played) -> Played:
    late = CLOSES + timedelta(hours=1)
    return with_ledger(night, [replace(each, at=late) if each.method == START else each for each in night.world.ledger])


def asked_at(moment: Any) -> Doctor:
    return lambda night: replace(night, asked=dict.fromkeys(night.asked, moment))


def a_floor(night: Played) -> Played:
    pool = replace(night.site.policy.pools[0], floor=10_000)
    return replace(night, site=replace(night.site, policy=replace(night.site.policy, pools=(pool,))))


def without_records(kind: Kind) -> Doctor:
    return lambda night: replace(night, kept=[each for each in night.kept if each[0].kind is not kind])


def closed_at_once(night: Played) -> Played:
    """The journal lets go of a desktop as soon as it is suspended."""
    taken = first(night, SUSPEND, desktop=True)
    return replace(
        night,
        kept=[
            (record, taken.sequence if record.kind is Kind.RETURNED and record.body["vm"] == taken.moid else length)
            for record, length in night.kept
        ],
    )


def called_failed(night: Played) -> Played:
    """Every intent is settled as failed before anything happened."""
    return replace(
        night,
        kept=[
            (replace(record, body={**record.body, "state": "failed"}), 0)
            if record.kind is Kind.SETTLED
            else (record, length)
            for record, length in night.kept
        ],
    )


def told_before(night: Played) -> Played:
    """The reports were made before anything was done."""
    return replace(night, told=[(report, 0) for report, _ in night.told])


def morning_told_too_early(night: Played) -> Played:
    taken = first(night, SUSPEND, desktop=True)
    told = [(replace(report, outcomes=()), taken.sequence) for report, _ in night.told]
    return replace(night, told=told)


def no_room(night: Played) -> Played:
    start = first(night, START, desktop=True)
    vm = SimpleNamespace(moid=start.moid, name=start.name)
    call = SimpleNamespace(operation_id=start.operation_id)
    refused = SimpleNamespace(name=START, entity=vm, call=call, error=vim.fault.InsufficientGraphicsResourcesFault())
    night = with_ledger(night, list(night.world.ledger))
    night.world.tasks = SimpleNamespace(history=lambda: [refused])  # type: ignore[assignment]
    return night


def left_running(night: Played) -> Played:
    start = first(night, START, desktop=False)
    on: Any = SimpleNamespace(state=SimpleNamespace(power=Power.ON))
    night = with_ledger(night, list(night.world.ledger))
    night.world.find = lambda moid: on if moid == start.moid else None  # type: ignore[method-assign]
    return night


def two_evenings(night: Played) -> Played:
    """A second evening run that did what the first had not."""
    middle = first(night, SUSPEND, desktop=True).at - timedelta(seconds=1)
    whole = next(told for told in night.told if told[0].exit_code == 0)
    return replace(
        night, calls=[("rotate night", "done", middle), ("rotate night", "done", CLOSES)], told=[whole, whole]
    )


def advised_in_vain(night: Played) -> Played:
    """Two returns that name the same desktop, and advise the same return again."""
    assert night.last is not None
    left = Rejection("desktop-001", "is away", hint="gpuops rotate day")
    report = replace(night.last, plan=replace(night.last.plan, unmet=(left,)))
    return replace(night, told=[(report, 7), (report, 7)])


def not_wholly_done(night: Played) -> Played:
    """An evening whose first step was left out."""
    report, length = night.told[0]
    left_out = replace(report.outcomes[0], verdict=Verdict.SKIPPED, reason="the window has closed")
    return replace(night, told=[(replace(report, outcomes=(left_out, *report.outcomes[1:])), length), *night.told[1:]])


def failed_and_gone_on(night: Played) -> Played:
    """All that settled before the last suspend was asked for had failed."""
    kept = [
        (replace(record, body={**record.body, "state": "failed"}) if record.kind is Kind.SETTLED else record, length)
        for record, length in night.kept
    ]
    return replace(night, kept=kept)


def ended_by_itself(night: Played) -> Played:
    """A night in which nothing goes wrong, and that ends without a report."""
    (name, _, at), *rest = night.calls
    return replace(night, calls=[(name, "NotConnected: vCenter did not answer", at), *rest], told=night.told[1:])


def powered_off_in_its_grace(night: Played) -> Played:
    asked = first(night, "ShutdownGuest", desktop=False)
    return with_ledger(night, [*night.world.ledger, replace(asked, method=OFF)])


def blocked_by_nobody(night: Played) -> Played:
    """A desktop is told not to have come back, and not who is on the GPUs of its host."""
    moid = first(night, START, desktop=True).moid
    assert night.last is not None
    told = Outcome(ResumeVm(moid), Verdict.FAILED, "no graphics resources")
    return replace(night, last=replace(night.last, outcomes=(told,)))


def three_come_back_and_a_fourth_is_taken(night: Played) -> Played:
    taken = first(night, SUSPEND, desktop=True)
    others = [f"vm-{number}" for number in (1, 2, 3)]
    away = [replace(taken, moid=moid) for moid in others]
    back = [replace(taken, moid=moid, method=START, operation_id="", after={"power": Power.ON}) for moid in others]
    late = replace(taken, at=taken.at + timedelta(minutes=3), operation_id="gpuops-9-1")
    return with_ledger(night, [*away, *back, late])


def acts_under_a_lease_that_was_reverted(night: Played) -> Played:
    taken = first(night, SUSPEND, desktop=True)
    lease = {"extra_config": {KEY: "a lease"}}
    reverted = replace(
        taken, moid="lock", name=LOCK, operation_id="", method="RevertToSnapshot_Task", before=lease,
        after={"extra_config": {}},
    )  # fmt: skip
    later = {op_id: (run, half, length + 1) for op_id, (run, half, length) in night.sent_by.items()}
    return with_ledger(night, [reverted, *night.world.ledger], sent_by=later, names={**night.names, "lock": LOCK})


def without_a_lease(night: Played) -> Played:
    """There is a lock VM, and nobody has written to it."""
    policy = replace(night.site.policy, lock_vm=LOCK)
    return replace(night, site=replace(night.site, policy=policy))


def counted_and_never_asked(night: Played) -> Played:
    """A night settles a step as failed that it never asked for."""
    settled = next(each for each in night.kept if each[0].kind is Kind.SETTLED)
    record, length = settled
    failed = replace(record, body={**record.body, "state": IntentState.FAILED, "counts": True})
    kept = [(failed, length) if each is settled else each for each in night.kept]
    return replace(night, kept=kept, asks=[each for each in night.asks if each[0] != record.body["op"]])


def shut_down_beside_its_journal(night: Played) -> Played:
    """A desktop was shut down, by us, and no journal knows it."""
    return after(SUSPEND, desktop=True, moid="vm-0", name="desktop-099", method=SHUT_DOWN)(night)


def stopped_elsewhere_without_its_marker(night: Played) -> Played:
    """By another machine, which knows no more of the night than the markers say."""
    started = {entry.operation_id for entry in effects(night, START) if not is_desktop(night, entry.moid)}
    kept = [each for each in night.world.ledger if each.method != MARK and each.operation_id not in started]
    return with_ledger(night, kept, sent_by={op_id: (-1, half, at) for op_id, (_, half, at) in night.sent_by.items()})


def started_by_somebody_before_it_is_stopped(night: Played) -> Played:
    """An ML VM of the night powers itself off, and its user starts it, minutes before it is stopped."""
    ledger = list(night.world.ledger)
    [stop, *_] = [entry for entry in effects(night, OFF, SHUT_DOWN) if not is_desktop(night, entry.moid)]
    at = ledger.index(stop)
    off, on = {"power": "poweredOff"}, {"power": "poweredOn"}
    minutes_before = stop.at - timedelta(minutes=5)
    theirs = replace(stop, method=START, operation_id="", at=minutes_before, before=off, after=on)
    return with_ledger(night, [*ledger[:at], theirs, *ledger[at:]])


def two_cut_by_a_machine_that_was_paused(night: Played) -> Played:
    """One request may have been past its check."""
    paused = (EVENING, EVENING + timedelta(minutes=15))
    return replace(night, stood=[paused], cut_sessions=[("vm-1", *paused), ("vm-2", *paused)])


def one_moved_and_resumed_late(night: Played, *, moved: timedelta) -> Played:
    """A machine is paused for a quarter of an hour; a desktop that is moved so long after its beginning is resumed
    where it was, when it is over."""
    start = first(night, START, desktop=True)
    since = start.at - timedelta(minutes=15)
    move = replace(start, at=since + moved, operation_id="", method="MigrateVM_Task", before={}, after={})
    late = replace(start, after={**start.after, "host": "host-1"})
    entries = [late if each is start else each for each in night.world.ledger]
    asked = {**night.asked, start.operation_id: start.at}
    return with_ledger(night, [move, *entries], stood=[(since, start.at)], asked=asked)


def started_when_it_was_not_queued_any_more(night: Played) -> Played:
    start = first(night, START, desktop=False)
    at = start.at - timedelta(minutes=5)
    renamed = replace(start, at=at, operation_id="", method="Rename_Task", before={}, after={"name": "retired"})
    return with_ledger(night, [renamed, *night.world.ledger])


def beside(error: GpuopsError | None, lock: Admission, sent: int = 0) -> Doctor:
    """A run was begun while another was under way, and ended so."""
    return lambda night: replace(night, beside=[Beside(error, lock, sent)])


@cache
def shared() -> Played:
    """Two nights of a full site that teams share."""
    return next(
        night
        for seed in range(7_100_000, 7_100_040, 2)
        if len(json.loads((night := SITUATIONS["Teams"](seed).play()).site.policy.text)["fair_share"]["teams"]) == 3
        and sum("fair share:" in choice.reason for report, _ in night.told for choice in report.plan.choices) > 3
    )


def with_teams(night: Played, teams: dict[str, object]) -> Played:
    """The policy says this of them."""
    written = json.loads(night.site.policy.text)
    text = json.dumps({**written, "fair_share": {**written["fair_share"], "teams": teams}})
    return replace(night, site=replace(night.site, policy=replace(night.site.policy, text=text)))


def limited(limit: str) -> Doctor:
    """No team may have anything."""
    return lambda night: with_teams(shared(), {team: {"at_most": {limit: 0}} for team in (*TEAMS, "(no owner)")})


def the_first_come_last(night: Played) -> Played:
    """The weights are such that each VM that started had a team with far more than that of one that stayed."""
    stays = {
        moid
        for report, _ in shared().told
        for choice in report.plan.choices
        for moid, name in shared().names.items()
        if name == choice.subject and "fair share:" in choice.reason
    }
    teams = teams_of(shared())
    least = sorted(teams[moid] for moid in stays)[0]
    return with_teams(shared(), {team: {"weight": 1000 if team == least else 0.001} for team in (*TEAMS, "(no owner)")})


def stays_for_nothing(night: Played) -> Played:
    """Nobody is told why it waits."""
    told = [
        (replace(report, plan=replace(report.plan, choices=tuple(
            replace(each, reason=each.reason if each.chosen else "") for each in report.plan.choices))), length)
        for report, length in shared().told
    ]  # fmt: skip
    return replace(shared(), told=told)


TEAMS = ("red", "green", "blue")
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
    ("I8", "work_is_kept", lambda night: unsaved(hooked())),
    ("I8", "work_is_kept", lambda night: hurried(hooked())),
    ("I8", "asked_to_keep", lambda night: never_asked(hooked())),
    ("I21", "nothing_on_a_wrong_clock", lambda night: replace(
        night, events=(Event("K7", rules_of("K7", {"delay_s": -3600})),))),
    ("I21", "nothing_on_a_wrong_clock", lambda night: replace(
        night, on_a_wrong_clock=[("before SuspendVm desktop-001", EVENING)])),
    ("I23", "put_back", kept_off(desktop=False)),
    ("I24", "each_step_is_told", lambda night: replace(
        night, told=[(replace(report, outcomes=()), length) for report, length in night.told])),
    ("I24", "done_was_done", told_before),
    ("I24", "told_is_back", morning_told_too_early),
    ("I29", "teams_within_limits", limited("gpus")),
    ("I29", "teams_within_limits", limited("gpu_hours_per_week")),
    ("I30", "fair_order_kept", the_first_come_last),
    ("I30", "fair_order_kept", stays_for_nothing),
]  # fmt: skip


def test_the_nights_that_are_doctored_are_whole() -> None:
    assert violations(quiet()) == []
    assert violations(hooked()) == []
    assert violations(shared()) == []


def test_hooks_end_in_every_way_and_none_keeps_desktops_from_coming_back() -> None:
    reasons = {
        outcome.reason
        for report, _ in hooked().told
        for outcome in report.outcomes
        if isinstance(outcome.step, RunInGuest)
    }
    assert "" in reasons, "one that saved"
    assert any("still runs after" in reason for reason in reasons), "one that hung, and was not waited for longer"
    assert any("VMware Tools" in reason for reason in reasons), "one that could not be asked"
    assert not hooked().left_behind


@pytest.mark.parametrize(
    ("invariant", "checker", "doctor"),
    DOCTORED,
    ids=[f"{each[0]}-{each[1]}-{index}" for index, each in enumerate(DOCTORED)],
)
def test_a_checker_fails_where_its_invariant_is_broken(invariant: str, checker: str, doctor: Doctor) -> None:
    says = next(each for each in CHECKERS if each.__name__ == checker)
    said = list(says(doctor(quiet())))
    assert said, f"{checker} says nothing"
    assert {each.partition(":")[0] for each in said} == {invariant}


def test_what_a_vm_that_came_in_the_night_is_called_later_changes_nothing() -> None:
    renamed = came_in_the_night(quiet(), at_first=False)
    assert [*only_ours(renamed), *only_the_queue(renamed), *stays_where_it_is(renamed)] == []
    assert list(asked_to_keep(late_and_made_anew(hooked()))) == []


def test_one_request_of_a_machine_that_was_paused_may_resume_a_desktop_where_it_was() -> None:
    moved = one_moved_and_resumed_late(quiet(), moved=timedelta())
    assert list(stays_where_it_is(moved)) == []
    assert list(stays_where_it_is(replace(moved, stood=[])))
    assert list(stays_where_it_is(one_moved_and_resumed_late(quiet(), moved=-timedelta(minutes=2))))


def test_what_is_withdrawn_may_be_suspended_by_the_call_that_was_past_its_check_and_by_no_later_one() -> None:
    def suspended(after: timedelta) -> list[str]:
        return list(what_is_withdrawn_stays(replace(quiet(), in_spite=[("vm-1", EVENING, EVENING + after)])))

    assert suspended(CALL) == []
    assert suspended(CALL + timedelta(milliseconds=1))


def test_an_ml_vm_with_a_task_that_hangs_may_run_on_where_the_last_return_says_so() -> None:
    night = without(OFF, desktop=False)(quiet())
    stuck = next(each for each in quiet().world.ledger if each.method == OFF)
    vm = SimpleNamespace(moid=stuck.moid, state=SimpleNamespace(power=Power.ON))
    world: Any = SimpleNamespace(ledger=night.world.ledger, find=lambda moid: vm if moid == stuck.moid else None)
    world.tasks = SimpleNamespace(running=lambda vm: "task-1")
    assert night.last is not None
    failed = replace(night.last, outcomes=(Outcome(PowerOffVm(stuck.moid), Verdict.FAILED, "a task is running"),))
    assert list(ml_stops(replace(night, world=world))), "nobody is told"
    assert list(ml_stops(replace(night, world=world, last=failed))) == []
    world.tasks.running = lambda vm: None
    assert list(ml_stops(replace(night, world=world, last=failed)))


def test_a_lease_that_a_run_has_just_taken_is_its_own_where_vcenter_tells_old_values() -> None:
    taken = first(quiet(), SUSPEND, desktop=True)
    run, half, _ = quiet().sent_by[taken.operation_id]

    def holds(holder: int, before: timedelta) -> Entry:
        text = f'{{"epoch": {holder}, "expires": "{CLOSES.isoformat()}", "format": 1, "nonce": "n", "owner": "o"}}'
        lease = {"extra_config": {KEY: text}}
        at = EVENING - before
        return replace(taken, at=at, moid="lock", name=LOCK, operation_id=f"gpuops-lease-{holder}", after=lease)

    leases = [holds(run + 90, timedelta(hours=1)), holds(run, timedelta(seconds=1))]
    sent_by = {op: (by, what, length + 2) for op, (by, what, length) in quiet().sent_by.items()}
    sent_by |= {f"gpuops-lease-{holder}": (holder, half, 0) for holder in (run, run + 90)}
    night = with_ledger(
        quiet(), [*leases, *quiet().world.ledger], sent_by=sent_by, names={**quiet().names, "lock": LOCK},
        events=(Event("A11", rules_of("A11", {"for_s": 90.0})),),
    )  # fmt: skip
    assert list(one_holder(night)) == []
    theirs = with_ledger(night, [leases[1], leases[0], *quiet().world.ledger])
    assert list(one_holder(theirs))


def test_a_lock_vm_that_came_in_the_night_and_is_gone_again_is_the_lock_vm() -> None:
    made = replace(first(quiet(), SUSPEND, desktop=True), moid="vm-9999", name=LOCK)
    night = with_ledger(quiet(), [made, *quiet().world.ledger])
    assert night.is_lock_vm("vm-9999")
    assert not night.is_lock_vm("vm-9998")


def test_every_checker_is_seen_to_fail() -> None:
    assert {checker for _, checker, _ in DOCTORED} == {
        checker.__name__ for checker in CHECKERS if checker not in TRUTHS
    }
