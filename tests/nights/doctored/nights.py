"""Whole nights that are doctored in one place: a ledger without an effect, or with one more, another end of desktops,
or other journals, reports, locks and leases."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any

from pyVmomi import vim

from gpuops.errors import GpuopsError
from gpuops.execute.journal.record import IntentState, Kind
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import ResumeVm
from gpuops.plan.rotation.lease_rules import KEY
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import Beside
from tests.nights.judging.doings import MARK, MOVE, OFF, SHUT_DOWN, START, SUSPEND, is_desktop
from tests.nights.judging.ml_vms import RUN
from tests.nights.playing.night import play
from tests.nights.playing.place import Admission
from tests.nights.playing.played import Played
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
    methods = [change.method for change in night.world.ledger]
    assert methods.count(SUSPEND) > 2, "there is something to doctor"
    assert {MOVE, MARK, START, OFF, "ShutdownGuest"} <= set(methods)
    return night


@cache
def night_with_hooks() -> Played:
    night = play(HOOKED, ())
    assert [change.method for change in night.world.ledger].count(RUN) > 2
    return night


@cache
def night_with_teams() -> Played:
    """Two nights of a full site that teams share."""
    return next(
        night
        for seed in range(7_100_000, 7_100_040, 2)
        if len(json.loads((night := SITUATIONS["Teams"](seed).play()).site.policy.text)["fair_share"]["teams"]) == 3
        and sum("fair share:" in choice.reason for report, _ in night.told for choice in report.plan.choices) > 3
    )


def with_ledger(night: Played, entries: list[Entry], **fields: Any) -> Played:
    """The night with another ledger, numbered anew."""
    ledger = [replace(entry, sequence=number) for number, entry in enumerate(entries, 1)]
    world: Any = SimpleNamespace(
        ledger=ledger,
        find=night.world.find,
        tasks=night.world.tasks,
        by_type=night.world.by_type,
        custom_fields=night.world.custom_fields,
        bugs=[],
    )
    return replace(night, world=world, **fields)


def first(night: Played, method: str, *, desktop: bool) -> Entry:
    return next(
        change for change in night.world.ledger if change.method == method and is_desktop(night, change.moid) == desktop
    )


def without(method: str, *, desktop: bool) -> Doctor:
    """The first such effect never was."""

    def doctor_night(night: Played) -> Played:
        removed_effect = first(night, method, desktop=desktop)
        return with_ledger(night, [change for change in night.world.ledger if change is not removed_effect])

    return doctor_night


def after(effect: str, *, desktop: bool, **changes: Any) -> Doctor:
    """One more effect right after the first such: the same, but for the changes."""

    def doctor_night(night: Played) -> Played:
        effect_before = first(night, effect, desktop=desktop)
        effect_added = replace(effect_before, **changes)
        entries = [
            entry
            for change in night.world.ledger
            for entry in ([change, effect_added] if change is effect_before else [change])
        ]
        return with_ledger(night, entries)

    return doctor_night


def woken_and_taken_again(night: Played) -> Played:
    suspend = first(night, SUSPEND, desktop=True)
    woken = replace(suspend, method=START, operation_id="", before=suspend.after, after=suspend.before)
    entries = [
        entry
        for change in night.world.ledger
        for entry in ([change, woken, suspend] if change is suspend else [change])
    ]
    return with_ledger(night, entries)


def back_too_late(night: Played) -> Played:
    late = CLOSES + timedelta(hours=1)
    return with_ledger(
        night, [replace(change, at=late) if change.method == START else change for change in night.world.ledger]
    )


def a_floor(night: Played) -> Played:
    pool = replace(night.site.policy.pools[0], floor=10_000)
    return replace(night, site=replace(night.site, policy=replace(night.site.policy, pools=(pool,))))


def no_room(night: Played) -> Played:
    start = first(night, START, desktop=True)
    vm = SimpleNamespace(moid=start.moid, name=start.name)
    call = SimpleNamespace(operation_id=start.operation_id)
    refused = SimpleNamespace(name=START, entity=vm, call=call, error=vim.fault.InsufficientGraphicsResourcesFault())
    night = with_ledger(night, list(night.world.ledger))
    night.world.tasks = SimpleNamespace(history=lambda: [refused])  # type: ignore[assignment]
    return night


def blocked_by_nobody(night: Played) -> Played:
    """The report names a desktop that did not come back, but not the VMs on the GPUs of its host."""
    moid = first(night, START, desktop=True).moid
    assert night.last is not None
    outcome = Outcome(ResumeVm(moid), Verdict.FAILED, "no graphics resources")
    return replace(night, last=replace(night.last, outcomes=(outcome,)))


def three_come_back_and_a_fourth_is_taken(night: Played) -> Played:
    suspend = first(night, SUSPEND, desktop=True)
    moids = [f"vm-{number}" for number in (1, 2, 3)]
    suspends = [replace(suspend, moid=moid) for moid in moids]
    back = [replace(suspend, moid=moid, method=START, operation_id="", after={"power": Power.ON}) for moid in moids]
    late = replace(suspend, at=suspend.at + timedelta(minutes=3), operation_id="gpuops-9-1")
    return with_ledger(night, [*suspends, *back, late])


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
    entries = [late if change is start else change for change in night.world.ledger]
    asked_at = {**night.asked, start.operation_id: start.at}
    return with_ledger(night, [move, *entries], stood=[(since, start.at)], asked=asked_at)


def asked_at(moment: Any) -> Doctor:
    return lambda night: replace(night, asked=dict.fromkeys(night.asked, moment))


def without_records(kind: Kind) -> Doctor:
    return lambda night: replace(
        night, kept=[kept_record for kept_record in night.kept if kept_record[0].kind is not kind]
    )


def closed_at_once(night: Played) -> Played:
    """The journal lets go of a desktop as soon as it is suspended."""
    suspend = first(night, SUSPEND, desktop=True)
    return replace(
        night,
        kept=[
            (record, suspend.sequence if record.kind is Kind.RETURNED and record.body["vm"] == suspend.moid else length)
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
    suspend = first(night, SUSPEND, desktop=True)
    reports = [(replace(report, outcomes=()), suspend.sequence) for report, _ in night.told]
    return replace(night, told=reports)


def two_evenings(night: Played) -> Played:
    """A second evening run that did what the first had not."""
    middle = first(night, SUSPEND, desktop=True).at - timedelta(seconds=1)
    whole = next(report_kept for report_kept in night.told if report_kept[0].exit_code == 0)
    return replace(
        night, calls=[("rotate night", "done", middle), ("rotate night", "done", CLOSES)], told=[whole, whole]
    )


def advised_in_vain(night: Played) -> Played:
    """Two returns that name the same desktop, and advise the same return again."""
    assert night.last is not None
    refusal = Rejection("desktop-001", "is away", hint="gpuops rotate day")
    report = replace(night.last, plan=replace(night.last.plan, unmet=(refusal,)))
    return replace(night, told=[(report, 7), (report, 7)])


def not_wholly_done(night: Played) -> Played:
    """An evening whose first step was left out."""
    report, length = night.told[0]
    left_out = replace(report.outcomes[0], verdict=Verdict.SKIPPED, reason="the window has closed")
    return replace(night, told=[(replace(report, outcomes=(left_out, *report.outcomes[1:])), length), *night.told[1:]])


def failed_and_gone_on(night: Played) -> Played:
    """All that settled before the last suspend was asked for had failed."""
    records = [
        (replace(record, body={**record.body, "state": "failed"}) if record.kind is Kind.SETTLED else record, length)
        for record, length in night.kept
    ]
    return replace(night, kept=records)


def ended_by_itself(night: Played) -> Played:
    """A night in which nothing goes wrong, and that ends without a report."""
    (name, _, at), *other_calls = night.calls
    return replace(night, calls=[(name, "NotConnected: vCenter did not answer", at), *other_calls], told=night.told[1:])


def acts_under_a_lease_that_was_reverted(night: Played) -> Played:
    suspend = first(night, SUSPEND, desktop=True)
    lease = {"extra_config": {KEY: "a lease"}}
    reverted = replace(
        suspend, moid="lock", name=LOCK, operation_id="", method="RevertToSnapshot_Task", before=lease,
        after={"extra_config": {}},
    )  # fmt: skip
    later = {op_id: (run, half, length + 1) for op_id, (run, half, length) in night.sent_by.items()}
    return with_ledger(night, [reverted, *night.world.ledger], sent_by=later, names={**night.names, "lock": LOCK})


def without_a_lease(night: Played) -> Played:
    """There is a lock VM without a lease."""
    policy = replace(night.site.policy, lock_vm=LOCK)
    return replace(night, site=replace(night.site, policy=policy))


def counted_and_never_asked(night: Played) -> Played:
    """A night settles a step as failed that it never asked for."""
    settled = next(kept_record for kept_record in night.kept if kept_record[0].kind is Kind.SETTLED)
    record, length = settled
    failed = replace(record, body={**record.body, "state": IntentState.FAILED, "counts": True})
    records = [(failed, length) if kept_record is settled else kept_record for kept_record in night.kept]
    return replace(
        night, kept=records, asks=[kept_record for kept_record in night.asks if kept_record[0] != record.body["op"]]
    )


def shut_down_beside_its_journal(night: Played) -> Played:
    """A desktop was shut down, by us, and no journal knows it."""
    return after(SUSPEND, desktop=True, moid="vm-0", name="desktop-099", method=SHUT_DOWN)(night)


def beside(error: GpuopsError | None, lock: Admission, sent: int = 0) -> Doctor:
    """A run was begun while another was under way, and ended so."""
    return lambda night: replace(night, beside=[Beside(error, lock, sent)])
