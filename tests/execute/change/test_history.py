"""What the journal of a change says: which VMs belong to which host, and which hosts are done."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gpuops.execute.change.unfinished_change import History, history_of
from gpuops.execute.journal.record import Intended, IntentState, Recorded, dump_step
from gpuops.plan.core.steps import (
    ConfigureModule,
    EndTurn,
    EnterMaintenance,
    PowerOnVm,
    RelocateVm,
    ShutDownGuest,
)

SEEN = datetime(2026, 11, 7, 21, tzinfo=UTC)
DONE, FAILED, INTENT = IntentState.DONE, IntentState.FAILED, IntentState.INTENT


def history(*steps: tuple[Recorded, IntentState, str | None]) -> History:
    """Of these steps, with the host that each one's VM was on."""
    intents = []
    for number, (step, state, host) in enumerate(steps, 1):
        before: dict[str, Any] = {"host": host, "name": getattr(step, "vm", "a host")}
        intents.append(Intended(f"gpuops-run-{number}", dump_step(step), SEEN, before, state))
    return history_of(intents)


def stopped_by_vm(past: History, host: str) -> dict[str, bool]:
    """The VMs that are not back, and whether each was shut down."""
    return {ref: departure.stopped for ref, departure in past.taken.get(host, {}).items()}


def test_who_left_a_host_belongs_to_it_until_he_is_back() -> None:
    moved = (RelocateVm("v", "h2"), DONE, "h1")
    assert stopped_by_vm(history(moved), "h1") == {"v": False}
    assert stopped_by_vm(history(moved, (RelocateVm("v", "h1"), INTENT, "h2")), "h1") == {"v": False}
    back = history(moved, (RelocateVm("v", "h1"), DONE, "h2"))
    assert (stopped_by_vm(back, "h1"), stopped_by_vm(back, "h2")) == ({}, {})


def test_a_guest_that_was_asked_counts_as_shut_down_whatever_was_seen_of_it() -> None:
    for state in (DONE, FAILED, INTENT, IntentState.UNKNOWN):
        assert stopped_by_vm(history((ShutDownGuest("v"), state, "h1")), "h1") == {"v": True}
    assert stopped_by_vm(history((ShutDownGuest("v"), DONE, "h1"), (PowerOnVm("v", "h1"), DONE, "h1")), "h1") == {}


def test_a_host_is_under_way_from_its_first_effect_to_the_end_of_its_turn() -> None:
    entering = (EnterMaintenance("h1"), INTENT, None)
    assert history((RelocateVm("v", "h2"), INTENT, "h1")).left_open == {"h1"}
    assert history(entering).left_open == {"h1"}
    assert history((ConfigureModule("h1", "", "a=1"), FAILED, None)).left_open == {"h1"}
    ended = history(entering, (EndTurn("h1"), DONE, None), (EnterMaintenance("h2"), DONE, None))
    assert (set(ended.left_open), ended.ended, ended.begun) == ({"h2"}, {"h1"}, {"h1", "h2"})
