"""Reads the journal of one vCenter: runs and effects that are open, and what is known of earlier nights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from gpuops.errors import Locked, StateDamaged
from gpuops.execute.journal.database import MARKERS_HINT
from gpuops.execute.journal.journal_state import JournalState, load_state
from gpuops.execute.journal.record import DurationKey, Intended, IntentState, Kind, Record, Recorded, Run, load_step
from gpuops.execute.journal.stores import FallbackStore, MemoryStore, Store, look_into_store
from gpuops.execute.state.lock import LockHold
from gpuops.model.nights.history import GivenUp
from gpuops.model.nights.ml_queue import GuestCommand
from gpuops.plan.core.steps import HostStep, RunClusterProgram, Step, VcenterSetting
from gpuops.plan.rotation.nights.night_refusals import StepCounts


class BegunSince(Locked):
    """Another run has begun since this one read the vCenter; nothing was sent."""

    def __init__(self) -> None:
        super().__init__(
            "another run of gpuops has begun on this vCenter since this one read it: nothing was sent",
            hint="gpuops rotate status shows what is under way",
        )


@dataclass(frozen=True, slots=True)
class RunsSeen:
    """How many runs of these kinds had begun, as far as this process has read the journal.

    A run must not begin on a plan that is older than the last of them. The lock of a machine keeps its own runs apart.
    If machines share a journal, a process that was paused between its look and its first record (SIGSTOP, a machine
    that slept) would act on an outdated plan.
    """

    kinds: tuple[str, ...]
    begun: int = 0

    def of(self, state: JournalState) -> RunsSeen:
        """Return the current count for the same kinds."""
        return replace(self, begun=sum(state.begun[kind] for kind in self.kinds))


OPEN_STATES: Final = (IntentState.INTENT, IntentState.SUBMITTED, IntentState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Intent:
    """One intended effect."""

    op_id: str
    step: Step
    state: IntentState
    task: str | None
    seen: datetime
    """vCenter's time of the last look before it was sent: its task is younger."""
    uuid: str | None = None
    """Instance uuid of its VM; None if unknown."""
    login: str = ""
    """The vCenter user that it was sent as; empty if unknown."""


class JournalReads:
    """The journal of one vCenter, for reading.

    Raises StateDamaged if it cannot be read or trusted.
    """

    def __init__(self, store: Store, vcenter: str, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._state: JournalState | None = None
        self.vcenter = vcenter
        self.clock = clock
        self.hold: LockHold | None = None
        """This machine's lock, as held by the run; None if the journal knows of none."""
        self.own_commands: Callable[[], frozenset[GuestCommand]] | None = None
        """Reads the guest commands that policy files of this machine name. None: the journal is a file of this machine,
        and the commands of its policies are run unchanged."""
        self.unlocked: StateDamaged | None = None
        """Why a return that only plans would continue without the lock."""

    @classmethod
    def look_into(
        cls, state_dir: Path, vcenter: str, clock: Callable[[], datetime], *, url: str = "", returning: bool = False
    ) -> Self | None:
        """Open the journal in this directory, or in the PostgreSQL database at `url`, without any change to it.

        Return None if there is no journal.

        `returning`: for a run that only brings VMs back. It continues if the journal cannot be used (`lost`).
        """

        def open_this_store() -> Store:
            return look_into_store(state_dir, url, vcenter) or MemoryStore()

        store = FallbackStore(open_this_store) if returning else look_into_store(state_dir, url, vcenter)
        return cls(store, vcenter, clock) if store is not None else None

    def close(self) -> None:
        self._store.close()

    @property
    def lost(self) -> StateDamaged | None:
        """Why the records of a returning run are only in memory; None if they are durable."""
        return self._store.lost if isinstance(self._store, FallbackStore) else None

    @property
    def state(self) -> JournalState:
        """The state after all records, those of other processes included."""
        try:
            if self._state is None:
                self._state = self._first_read()
            else:
                for record in self._store.read(self._state.seq):
                    self._state.apply(record)
        except (KeyError, TypeError, ValueError) as error:
            damaged = StateDamaged(
                f"the journal holds a record that this version cannot read: {error!r}",
                hint="use the gpuops that wrote it, or a later one",
            )
            # Raises, except in a return: that continues with the records read so far, which include its own run.
            self._state = self._abandon(damaged, self._state or JournalState(self.vcenter))
        return self._state

    def records(self, after: int = 0) -> Sequence[Record]:
        """Return the records after that one, in order. The time grows with the length of the journal."""
        return self._store.read(after)

    def _first_read(self) -> JournalState:
        """Return the state by the last checkpoint and the records after it.

        If this version cannot use the checkpoint, all records are read from the first.
        """
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
        """Continue in memory after this state in a return, and return the state; in any other run raise `damaged`."""
        if not isinstance(self._store, FallbackStore):
            raise damaged
        self._store.abandon(damaged, state.seq)
        return state

    def open_runs(self, kinds: Sequence[str]) -> tuple[Run, ...]:
        """Return the runs of these kinds that began and did not end, oldest first: killed, or cut off from vCenter."""
        runs = [open_run.run for open_run in self.state.runs.values() if open_run.run.kind in kinds]
        return tuple(sorted(runs, key=lambda run: run.started))

    def runs_seen(self, kinds: Sequence[str]) -> RunsSeen:
        """Return how many runs of these kinds have begun so far; for `begin`."""
        return RunsSeen(tuple(kinds)).of(self.state)

    def last_policy(self, preferred: str) -> str | None:
        """Return the text of the policy of the last run of the preferred kind, or else of the last run of any kind."""
        policies = self.state.policies
        return policies.get(preferred) or next(reversed(policies.values()), None)

    def last_change(self) -> datetime | None:
        """Return when a run on this vCenter last began, ended or got an outcome."""
        return self.state.changed

    def last_return(self) -> datetime | None:
        """Return when a run that brings back what nights took last began, ended or got an outcome."""
        return self.state.return_seen

    def durations(self) -> Mapping[DurationKey, Sequence[float]]:
        """Return the durations of the latest steps in seconds, by kind of step, profiles of the VM and host."""
        return {key: tuple(durations_s) for key, durations_s in self.state.durations.items()}

    def lease_number(self, lock_vm: str) -> int:
        """Return the highest number of a lease on this lock VM that a run held; 0 if no run held one."""
        return self.state.lease_numbers.get(lock_vm, 0)

    def open_intents(self, run: Run) -> tuple[Intent, ...]:
        """Return the run's effects on VMs that have no known outcome, in order."""
        return tuple(_intent(intended, step) for intended, step in self._open_steps(run) if isinstance(step, Step))

    def open_settings(self, run: Run) -> tuple[tuple[str, HostStep | VcenterSetting], ...]:
        """Return the op id and the step of the run's settings of hosts and vCenter that have no known outcome."""
        return tuple(
            (intended.op_id, step)
            for intended, step in self._open_steps(run)
            if isinstance(step, HostStep | VcenterSetting)
        )

    def open_programs(self, run: Run) -> tuple[tuple[str, RunClusterProgram], ...]:
        """Return the op id and the step of the run's programs over clusters that have no known outcome."""
        return tuple(
            (intended.op_id, step) for intended, step in self._open_steps(run) if isinstance(step, RunClusterProgram)
        )

    def _open_steps(self, run: Run) -> list[tuple[Intended, Recorded]]:
        """Return the run's effects that have no outcome yet, with their steps.

        If another version wrote a step that this one cannot read, a return continues without its journal ([]), and any
        other run raises StateDamaged.
        """
        open_run = self.state.runs.get(run.id)
        if open_run is None:
            return []
        try:
            return [
                (intended, load_step(intended.step))
                for intended in open_run.intents.values()
                if intended.state in OPEN_STATES
            ]
        except StateDamaged as damaged:
            by_later_version = StateDamaged(
                damaged.message, hint=f"use the gpuops that wrote it; until then {MARKERS_HINT}"
            )
            self._state = self._abandon(by_later_version, JournalState(self.vcenter))
            return []

    def tasks_of(self, run: Run) -> frozenset[str]:
        """Return the tasks in vCenter that are known to be of this run, whether or not they have ended."""
        open_run = self.state.runs.get(run.id)
        intents = open_run.intents.values() if open_run is not None else ()
        return frozenset(intended.task for intended in intents if intended.task is not None)

    def starts_of(self, run: Run) -> Mapping[str, bool]:
        """Return by VM ref whether its start by the run succeeded; starts without a known outcome are left out."""
        open_run = self.state.runs.get(run.id)
        intents = open_run.intents.values() if open_run is not None else ()
        return {
            intended.vm: intended.state is IntentState.DONE
            for intended in intents
            if intended.kind == "PowerOnVm" and intended.state not in OPEN_STATES
        }

    def given_up(self) -> tuple[GivenUp, ...]:
        """Return the hosts and VMs that an admin gave up and that no run has seen back."""
        return tuple(self.state.given_up.values())

    def setbacks(self) -> Mapping[str, StepCounts]:
        """Return the counts of steps so far, by night."""
        return dict(self.state.setbacks)

    def ended_nights(self) -> frozenset[str]:
        """Return the nights whose return has begun."""
        return frozenset(self.state.over)

    def skipped_nights(self, policy: str) -> frozenset[str]:
        """Return the nights of the policy of this name that are not to be taken."""
        return frozenset(night for name, night in self.state.skips if name == policy)


def _intent(intended: Intended, step: Step) -> Intent:
    return Intent(intended.op_id, step, intended.state, intended.task, intended.seen, intended.uuid, intended.login)
