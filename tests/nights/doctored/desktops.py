"""Nights that are doctored in what happened to desktops."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

from pyVmomi import vim

from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import ResumeVm
from gpuops.sim.state.vm_state import Power
from tests.nights.doctored.nights import first, with_ledger
from tests.nights.judging.doings import START, SUSPEND
from tests.nights.playing.played import Played
from tests.nights.world.worlds import CLOSES, EVENING


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
