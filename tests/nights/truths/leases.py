"""Truths of leases: I6 the number of one grows, and none is asked for without end; I1 a return goes on without."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from gpuops.execute.runs import RunKind
from gpuops.plan.rotation.lease import TTL_S
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import lease_in
from tests.nights.judging.doings import (
    CALL,
    has_one_journal,
    is_ours,
    machine_of,
    takes,
)
from tests.nights.playing.played import Played
from tests.nights.world.worlds import LOCK

LEASE_OP: Final = "gpuops-lease-"
ASKED_AT_MOST: Final = 6
"""So often in a minute a run asks for its lease: three tries to take it, and three to renew it."""
MARKERS_STAY: Final = {"K1", "K2", "K6", "K7", "K11", "G1"}
"""What takes no marker off, and no VM out of its pool, and keeps no journal from being written."""


def numbers_grow(night: Played) -> Iterator[str]:
    """I6: no machine writes a lease with a lower number than the current one, or over one that another machine holds;
    and no machine one with a lower number than one under which it changed anything, whatever lock VM and clock say: it
    knows that by its journal, or by the marker of a desktop that is away.
    """
    highest: dict[int, int] = {}
    written: dict[int, int] = {}
    last: tuple[int, str, datetime] | None = None
    """The lease that was written last: its machine and nonce, and until when it is held. One whose write was queued
    for minutes may have expired before it was there."""
    struck = {event.fault for event in night.events}
    is_readable, steady = struck <= MARKERS_STAY, "K7" not in struck
    suspended_vms: set[str] = set()
    for change in night.world.ledger:
        if takes(change):
            suspended_vms.add(change.moid)
        elif change.after.get("power") == Power.ON or not change.after:
            suspended_vms.discard(change.moid)
        if not is_ours(change):
            continue
        machine = machine_of(night, change)
        if change.name != LOCK or "extra_config" not in change.after:
            highest[machine] = max(written.get(machine, 0), highest.get(machine, 0))
            continue
        before, after = lease_in(change.before), lease_in(change.after)
        if after is None:
            continue
        if before is not None and after.epoch < before.epoch:
            yield f"I6: lease number {after.epoch} was written where {before.epoch} was"
        elif after.epoch < highest.get(machine, 0) and is_readable and (suspended_vms or not night.lost_journal):
            yield f"I6: lease number {after.epoch} was written, and {highest[machine]} had been before"
        elif steady and before is not None and before.nonce and _holds(last, before.nonce, machine, change.at):
            yield f"I6: lease number {after.epoch} was written over one that another machine held"
        held_until = min(after.expires, change.at + timedelta(seconds=TTL_S))
        written[machine], last = after.epoch, (machine, after.nonce, held_until)


def _holds(last: tuple[int, str, datetime] | None, nonce: str, machine: int, at: datetime) -> bool:
    """Whether another machine than this wrote the lease of this nonce last, and holds it at that moment."""
    if last is None:
        return False
    wrote, its_nonce, until = last
    return nonce == its_nonce and machine != wrote and at < until - CALL


def asked_at_most(night: Played) -> Iterator[str]:
    """I6: a return whose lease cannot be written does not ask for it again and again: a few tries in each minute."""
    requests: dict[str, list[datetime]] = {}
    for op, at, _ in night.asks:
        if op.startswith(LEASE_OP) and night.sent_by.get(op, (0, "", 0))[1] == RunKind.DAY:
            lately = [moment for moment in requests.get(op, ()) if at - moment < timedelta(seconds=50)]
            requests[op] = [*lately, at]
            if len(requests[op]) > ASKED_AT_MOST:
                yield f"I6: a lease was asked for {len(requests[op])} times in less than a minute, at {at:%H:%M:%S}"
                return


def no_return_is_kept_away(night: Played) -> Iterator[str]:
    """I1: a return goes on if its lock VM was reverted or is gone, and no other machine has taken the lease."""
    if not has_one_journal(night) or any(run == -1 for run, _, _ in night.sent_by.values()):
        return
    for name, ended, at in night.calls:
        if name == RunKind.DAY and ended.startswith("Locked") and "pid " not in ended:
            yield f"I1: {name} at {at:%H:%M} ended with: {ended}"
