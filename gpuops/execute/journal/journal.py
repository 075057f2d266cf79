"""The `Journal` appends what happens. A method that writes returns when the record is durable."""

from __future__ import annotations

import os
import pwd
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from gpuops.errors import Locked, StateDamaged
from gpuops.execute.journal.journal_reads import BegunSince, JournalReads, RunsSeen
from gpuops.execute.journal.journal_state import JournalState, dump_state
from gpuops.execute.journal.record import IntentState, Kind, Record, Recorded, Run, Saved, dump_step
from gpuops.execute.journal.stores import FallbackStore, Overtaken, Store, open_store
from gpuops.model.nights.history import GivenUp
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import CreationStep, EndTurn, HostStep, HostTask, VcenterSetting

CHECKPOINT_EVERY: Final = 2000
"""Records between two checkpoints: at most this many records, and those of one run, are read."""

TRIES: Final = 100
"""How often other processes may append first before gpuops gives up."""


Draft = tuple[str, Kind, Mapping[str, Any]]
"""A record without its position: run, kind, body."""


class Journal(JournalReads):
    """The journal of one vCenter.

    Raises StateDamaged if it cannot be read, written or trusted; the caller must then send nothing.
    """

    @classmethod
    def open(
        cls, state_dir: Path, vcenter: str, clock: Callable[[], datetime], *, url: str = "", returning: bool = False
    ) -> Self:
        """Open the journal in this directory, or in the PostgreSQL database at `url`; create it if it does not exist.

        `returning`: for a run that only brings VMs back. It continues if the journal cannot be used (`lost`).
        """

        def open_this_store() -> Store:
            return open_store(state_dir, url, vcenter)

        return cls(FallbackStore(open_this_store) if returning else open_this_store(), vcenter, clock)

    def alive(self) -> None:
        """Tell other processes of this machine that the run is alive."""
        if self.hold is not None:
            self.hold.alive(self.clock())

    def begin(
        self,
        kind: str,
        *,
        night: str | None = None,
        policy: str = "",
        policy_digest: str = "",
        vms: Sequence[str] = (),
        order: str = "",
        steps: int = 0,
        leases: Sequence[tuple[str, int]] = (),
        free_gpus: Mapping[str, float | None] | None = None,
        known_runs: RunsSeen | None = None,
    ) -> Run:
        """Begin a run, which is open until `end`. `order` is what a change needs to continue after a crash.

        `known_runs`: the runs that its plan knew of. Raises BegunSince if another run has begun since.

        `steps`: the number of steps in a night's plan. `leases`: name of the lock VM and number of each lease.
        `free_gpus`: for a night, the GPUs that were free on each host that it uses.
        """
        run = uuid.uuid4().hex[:12]
        body: dict[str, Any] = {
            "kind": kind,
            "night": night,
            "policy": policy,
            "pid": os.getpid(),
            "by": {"user": os_user(), "machine": socket.gethostname()},
            "digest": policy_digest,
        }
        if vms:
            body["vms"] = list(vms)
        if order:
            body["order"] = order
        if steps:
            body["steps"] = steps
        if free_gpus is not None:
            body["free_gpus"] = dict(free_gpus)
        if leases:
            body["leases"] = [{"vm": lock_vm, "number": number} for lock_vm, number in leases]

        def draft(state: JournalState) -> list[Draft]:
            if known_runs is not None and known_runs.of(state) != known_runs:
                raise BegunSince
            return [(run, Kind.BEGUN, body)]

        return self._append(draft).runs[run].run

    def end(self, run: Run, *, cut_off: bool = False) -> None:
        """End the run. `cut_off`: another run ends it, because it did not finish."""
        body = {"cut_off": True} if cut_off else {}
        state = self._append(lambda _: [(run.id, Kind.ENDED, body)])
        if state.seq - state.checkpoint >= CHECKPOINT_EVERY:
            self._append(lambda state: [("", Kind.CHECKPOINT, dump_state(state))])

    def intend(self, run: Run, step: Recorded, before: Inventory) -> str:
        """Write the intent of an effect about to be sent, and return its op id. The caller sends nothing if this
        raises.

        Raises Locked if another gpuops has ended this run meanwhile: the run that took over must not be disturbed.
        """
        effect = {"step": dump_step(step), "seen": before.taken_at.isoformat(), "before": _state_before(step, before)}
        op_id = ""

        def draft(state: JournalState) -> list[Draft]:
            nonlocal op_id
            open_run = state.runs.get(run.id)
            if open_run is None:
                raise Locked(
                    f"another gpuops has ended this {run.kind}: nothing more is sent",
                    hint="gpuops rotate status shows what is under way",
                )
            op_id = f"gpuops-{run.id}-{len(open_run.intents) + 1}"
            return [(run.id, Kind.INTENT, {"op": op_id, **effect})]

        self._append(draft)
        return op_id

    def record_task(self, op_id: str, task: str) -> None:
        self._append(lambda _: [(_run_id_of(op_id), Kind.SUBMITTED, {"op": op_id, "task": task})])

    def record_outcome(
        self,
        op_id: str,
        state: IntentState,
        reason: str = "",
        duration_s: float | None = None,
        *,
        refused: bool = False,
        counts: bool = True,
        suspended_at: datetime | None = None,
        started_at: datetime | None = None,
    ) -> None:
        """Record the outcome of an effect.

        `refused`: vCenter would also refuse the next step. `counts` is False if the effect was never sent to vCenter.
        `suspended_at`: for a suspend, the moment that vCenter shows; None if it shows none. `started_at`: the same for
        a start.
        """
        body: dict[str, Any] = {"op": op_id, "state": state, "reason": reason, "duration_s": duration_s}
        if refused:
            body["refused"] = True
        if not counts:
            body["counts"] = False
        if suspended_at is not None:
            body["suspended"] = suspended_at.isoformat()
        if started_at is not None:
            body["started"] = started_at.isoformat()
        self._append(lambda _: [(_run_id_of(op_id), Kind.SETTLED, body)])

    def save(self, originals: Sequence[Mapping[str, Any]], run: Run | None = None) -> None:
        """Store VMs as they are before the night of this run takes them; what is already stored is not changed."""
        run_id = run.id if run is not None else ""

        def draft(state: JournalState) -> list[Draft]:
            return [
                (run_id, Kind.ORIGINAL, original)
                for original in originals
                if state.key_of(original["night"], original["vm"], original["uuid"]) not in state.originals
            ]

        self._append(draft)

    def record_return(self, night: str, vm: str) -> None:
        self._append(lambda _: [("", Kind.RETURNED, {"night": night, "vm": vm})])

    def give_up(self, given_up: Sequence[GivenUp], run: Run | None = None) -> None:
        """Record hosts and VMs that an admin gave up, once each.

        `run`: the change that they belong to; None = they are VMs of nights, and are also recorded as returned, so
        that no return waits for them.
        """

        def draft(state: JournalState) -> list[Draft]:
            open_run = state.runs.get(run.id) if run is not None else None
            noted_refs = state.given_up.keys() if open_run is None else open_run.given_up
            drafts: list[Draft] = []
            for thing in given_up:
                if thing.ref not in noted_refs:
                    drafts.append(
                        (run.id if run is not None else "", Kind.GIVEN_UP, _give_up_body(thing, given_up=True))
                    )
                if run is None:
                    held_vms = [saved for saved in state.originals.values() if _is_held(saved, thing)]
                    drafts += [("", Kind.RETURNED, {"night": saved.night, "vm": saved.vm}) for saved in held_vms]
            return drafts

        self._append(draft)

    def record_back(self, returned: Sequence[GivenUp]) -> None:
        """Record the hosts and VMs that were given up and are back after all."""

        def draft(state: JournalState) -> list[Draft]:
            return [
                ("", Kind.GIVEN_UP, _give_up_body(thing, given_up=False))
                for thing in returned
                if thing.ref in state.given_up
            ]

        self._append(draft)

    def skip(self, policy: str, night: str, *, skipped: bool) -> None:
        """Record that the night of the policy of this name is not to be taken; with `skipped` False, that it is."""
        self._append(lambda _: [("", Kind.SKIP, {"policy": policy, "night": night, "skipped": skipped})])

    def _append(self, make_drafts: Callable[[JournalState], list[Draft]]) -> JournalState:
        """Append what `make_drafts` returns for the latest state; if another process appended first, call it again."""
        # the state may be old: the store refuses an append after a record that this process has not read (Overtaken)
        state = self._state or self.state
        for _ in range(TRIES):
            at = self.clock()
            drafts = make_drafts(state)
            if not drafts:
                return state
            records = [Record(seq, run, kind, at, body) for seq, (run, kind, body) in enumerate(drafts, state.seq + 1)]
            try:
                self._store.append(records)
            except Overtaken:
                state = self.state
                continue
            for record in records:
                state.apply(record)
            return state
        raise StateDamaged(
            f"other processes wrote to the journal first in each of {TRIES} tries to write a record",
            hint="run the command again; if this repeats, check the journal: gpuops rotate audit verify",
        )


def os_user() -> str:
    """Return the name of the operating system's user of this process, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _state_before(step: Recorded, before: Inventory) -> Mapping[str, Any]:
    """Return the state of the step's host, VM or login before the step; {} if the snapshot lacks it."""
    if isinstance(step, VcenterSetting):
        return {"login": before.user}
    if isinstance(step, HostStep | HostTask | EndTurn):
        host = before.hosts.get(step.host)
        return {} if host is None else {"host": host.ref, "name": host.name, "uuid": host.uuid}
    if isinstance(step, CreationStep):
        return {"name": step.name, "login": before.user}
    vm = before.vms.get(step.vm)
    if vm is None:
        return {}
    seen_vm = {"host": vm.host, "power": vm.power, "profiles": vm.profiles, "name": vm.name, "uuid": vm.instance_uuid}
    return {**seen_vm, "login": before.user} if before.user else seen_vm


def _give_up_body(thing: GivenUp, *, given_up: bool) -> Mapping[str, Any]:
    body = {"ref": thing.ref, "given_up": given_up}
    if not given_up:
        return body
    return body | {"thing": thing.thing, "uuid": thing.uuid, "name": thing.name, "of": thing.of, "runs": thing.runs}


def _is_held(saved: Saved, thing: GivenUp) -> bool:
    """Return whether a night still holds the VM that is given up."""
    if saved.returned is not None:
        return False
    return saved.uuid == thing.uuid if saved.uuid is not None and thing.uuid is not None else saved.vm == thing.ref


def _run_id_of(op_id: str) -> str:
    """Return the id of the run in an op id of `intend`: `gpuops-RUN-NUMBER`."""
    return op_id.split("-")[1]
