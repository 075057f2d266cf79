"""What the journal of one vCenter tells: runs and effects that are open, and what is known of nights before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import MARKERS_HINT
from gpuops.execute.journal.journal_state import JournalState
from gpuops.execute.journal.journal_state_json import load_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.remembered import DurationKey, Intended, IntentState, Run
from gpuops.execute.journal.runs_seen import RunsSeen
from gpuops.execute.journal.step_json import load_step
from gpuops.execute.journal.store import FallbackStore, MemoryStore, Store
from gpuops.execute.journal.stores import look_into_store
from gpuops.execute.state.lock import LockHold
from gpuops.model.nights.journal import GivenUp
from gpuops.model.nights.ml_queue import GuestCommand
from gpuops.plan.core.steps import Step
from gpuops.plan.rotation.nights.stop_conditions import StepCounts

OPEN_STATES: Final = (IntentState.INTENT, IntentState.SUBMITTED, IntentState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Intent:
    """One effect that was intended."""

    op_id: str
    step: Step
    state: IntentState
    task: str | None
    seen: datetime
    """When vCenter was last looked at before it was sent, by vCenter's clock: its task is younger."""
    uuid: str | None = None
    """Instance uuid of its VM; None = not known."""
    login: str = ""
    """The user of vCenter as whom it was sent; empty = not known."""


class JournalReads:
    """The journal of one vCenter, to read from.

    Raises StateDamaged where it cannot be read or trusted.
    """

    def __init__(self, store: Store, vcenter: str, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._state: JournalState | None = None
        self.vcenter = vcenter
        self.clock = clock
        self.hold: LockHold | None = None
        """The lock of this machine that its run holds; None = it does not know of one."""
        self.own_commands: Callable[[], frozenset[GuestCommand]] | None = None
        """Reads the commands for guests that policy files of this machine name; None = the journal is a file of this
        machine, and commands of its policies are run as they stand."""
        self.unlocked: StateDamaged | None = None
        """Why a return that is only looked at would go on without the lock."""

    @classmethod
    def look_into(
        cls, state_dir: Path, vcenter: str, clock: Callable[[], datetime], *, url: str = "", returning: bool = False
    ) -> Self | None:
        """What lies in this directory, or in the PostgreSQL database at `url`: nothing is made or changed.

        None = there is none. `returning` is for a run that only brings back: it outlives its journal, see `lost`.
        """

        def opening() -> Store:
            return look_into_store(state_dir, url, vcenter) or MemoryStore()

        store = FallbackStore(opening) if returning else look_into_store(state_dir, url, vcenter)
        return cls(store, vcenter, clock) if store is not None else None

    def close(self) -> None:
        self._store.close()

    @property
    def lost(self) -> StateDamaged | None:
        """Why the records of a returning run are kept in memory alone; None = they are durable."""
        return self._store.lost if isinstance(self._store, FallbackStore) else None

    @property
    def state(self) -> JournalState:
        """What all records come to, those of other processes included."""
        try:
            if self._state is None:
                self._state = self._first_read()
            else:
                for record in self._store.read(self._state.seq):
                    self._state.apply(record)
        except (KeyError, TypeError, ValueError) as error:
            damaged = StateDamaged(f"the journal holds a record that this version cannot read: {error!r}")
            # half way it goes on by what it has read: its own run is in it
            self._state = self._abandon(damaged, self._state or JournalState(self.vcenter))
        return self._state

    def records(self, after: int = 0) -> Sequence[Record]:
        """Those behind that one, in their order; it takes as long as the journal is."""
        return self._store.read(after)

    def _first_read(self) -> JournalState:
        records = self._store.read(None)
        state = load_state(self.vcenter, records[0]) if records and records[0].kind is Kind.CHECKPOINT else None
        if state is None and records and records[0].seq > 1:
            records = self._store.read(0)
        state = state or JournalState(self.vcenter)
        for record in records:
            if record.seq > state.seq:
                state.apply(record)
        return state

    def _abandon(self, damaged: StateDamaged, state: JournalState) -> JournalState:
        if not isinstance(self._store, FallbackStore):
            raise damaged
        self._store.abandon(damaged, state.seq)
        return state

    def open_runs(self, kinds: Sequence[str]) -> tuple[Run, ...]:
        """Runs of these kinds that began and did not end, oldest first: killed, or cut off from vCenter."""
        found = [each.run for each in self.state.runs.values() if each.run.kind in kinds]
        return tuple(sorted(found, key=lambda run: run.started))

    def runs_seen(self, kinds: Sequence[str]) -> RunsSeen:
        """How many runs of these kinds have begun so far; for `begin`."""
        return RunsSeen(tuple(kinds)).of(self.state)

    def last_policy(self, preferred: str) -> str | None:
        """The text of the policy that the last run of the preferred kind had; where there is none, of any kind."""
        policies = self.state.policies
        return policies.get(preferred) or next(reversed(policies.values()), None)

    def last_change(self) -> datetime | None:
        """When a run on this vCenter last began, ended or was given an outcome."""
        return self.state.changed

    def last_return(self) -> datetime | None:
        """The same of runs that bring back what nights took."""
        return self.state.return_seen

    def durations(self) -> Mapping[DurationKey, Sequence[float]]:
        """How long the latest steps took, in seconds, by kind of step, profiles of the VM and host."""
        return {key: tuple(values) for key, values in self.state.durations.items()}

    def lease_number(self, lock_vm: str) -> int:
        """The highest number of a lease on the lock VM of this name that a run held; 0 = none did."""
        return self.state.lease_numbers.get(lock_vm, 0)

    def open_intents(self, run: Run) -> tuple[Intent, ...]:
        """Effects of the run on VMs whose end nobody saw, in order."""
        mine = self.state.runs.get(run.id)
        if mine is None:
            return ()
        try:
            found = ((each, load_step(each.step)) for each in mine.intents.values() if each.state in OPEN_STATES)
            return tuple(_intent(each, step) for each, step in found if isinstance(step, Step))
        except StateDamaged as damaged:
            later = StateDamaged(damaged.message, hint=f"use the gpuops that wrote it; until then {MARKERS_HINT}")
            self._state = self._abandon(later, JournalState(self.vcenter))
            return ()

    def starts_of(self, run: Run) -> Mapping[str, bool]:
        """By VM (ref), whether its start by the run did well; one whose end nobody saw is left out."""
        mine = self.state.runs.get(run.id)
        starts = [each for each in mine.intents.values() if each.kind == "PowerOnVm"] if mine is not None else []
        return {each.vm: each.state is IntentState.DONE for each in starts if each.state not in OPEN_STATES}

    def given_up(self) -> tuple[GivenUp, ...]:
        """Hosts and VMs that a person gave up and that no run has seen back."""
        return tuple(self.state.given_up.values())

    def setbacks(self) -> Mapping[str, StepCounts]:
        """By night, how it went so far."""
        return dict(self.state.setbacks)

    def over(self) -> frozenset[str]:
        """Nights whose return has begun."""
        return frozenset(self.state.over)

    def skipped(self, policy: str) -> frozenset[str]:
        """Nights of the policy of this name that are not to be taken."""
        return frozenset(night for name, night in self.state.skips if name == policy)


def _intent(each: Intended, step: Step) -> Intent:
    return Intent(each.op_id, step, each.state, each.task, each.seen, each.uuid, each.login)
