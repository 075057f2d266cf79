"""The `Journal` appends what happens. A call that writes returns when the record is durable."""

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
from gpuops.execute.journal.journal_reads import JournalReads
from gpuops.execute.journal.journal_state import JournalState
from gpuops.execute.journal.journal_state_json import dump_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.remembered import IntentState, Run, Saved
from gpuops.execute.journal.runs_seen import BegunSince, RunsSeen
from gpuops.execute.journal.step_json import Recorded, dump_step
from gpuops.execute.journal.store import FallbackStore, Overtaken, Store
from gpuops.execute.journal.stores import open_store
from gpuops.model.nights.journal import GivenUp
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import Step

CHECKPOINT_EVERY: Final = 2000
"""Records between two checkpoints: so many, and those of one run, are read at the most."""

TRIES: Final = 100
"""So many others may append first before it is called damage."""


Draft = tuple[str, Kind, Mapping[str, Any]]
"""A record without its place: run, kind, body."""


class Journal(JournalReads):
    """The journal of one vCenter.

    Raises StateDamaged where it cannot be read, written or trusted; then the caller sends nothing.
    """

    @classmethod
    def open(
        cls, state_dir: Path, vcenter: str, clock: Callable[[], datetime], *, url: str = "", returning: bool = False
    ) -> Self:
        """The journal in this directory, or in the PostgreSQL database at `url`; made if there is none.

        `returning` is for a run that only brings back: it outlives its journal, see `lost`.
        """

        def opening() -> Store:
            return open_store(state_dir, url, vcenter)

        return cls(FallbackStore(opening) if returning else opening(), vcenter, clock)

    def alive(self) -> None:
        """Tells others of this machine that its run goes on."""
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
        seen: RunsSeen | None = None,
    ) -> Run:
        """A run that is open until `end`. `order` is what a change needs to go on after a crash.

        `seen`: the runs that its plan knew of. Raises BegunSince where another one has begun since.

        `steps`: how many its plan has, when it is a night's. `leases`: name of the lock VM and number of each.
        `free_gpus`: of a night, by host that it uses, the GPUs that were free there.
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

        def drafted(state: JournalState) -> list[Draft]:
            if seen is not None and seen.of(state) != seen:
                raise BegunSince
            return [(run, Kind.BEGUN, body)]

        return self._append(drafted).runs[run].run

    def end(self, run: Run, *, cut_off: bool = False) -> None:
        """The run is over. `cut_off`: another one ends it, and it had not come to its end."""
        body = {"cut_off": True} if cut_off else {}
        state = self._append(lambda _: [(run.id, Kind.ENDED, body)])
        if state.seq - state.checkpoint >= CHECKPOINT_EVERY:
            self._append(lambda state: [("", Kind.CHECKPOINT, dump_state(state))])

    def intend(self, run: Run, step: Recorded, before: Inventory) -> str:
        """The op id of an effect about to be sent. The caller sends nothing when this raises.

        Raises Locked when another gpuops has ended this run meanwhile: whoever took over must not be disturbed.
        """
        what = {"step": dump_step(step), "seen": before.taken_at.isoformat(), "before": _as_seen(step, before)}
        op_id = ""

        def drafted(state: JournalState) -> list[Draft]:
            nonlocal op_id
            mine = state.runs.get(run.id)
            if mine is None:
                raise Locked(
                    f"another gpuops has ended this {run.kind}: nothing more is sent",
                    hint="gpuops rotate status shows what is under way",
                )
            op_id = f"gpuops-{run.id}-{len(mine.intents) + 1}"
            return [(run.id, Kind.INTENT, {"op": op_id, **what})]

        self._append(drafted)
        return op_id

    def submitted(self, op_id: str, task: str) -> None:
        self._append(lambda _: [(_run_of(op_id), Kind.SUBMITTED, {"op": op_id, "task": task})])

    def settled(
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
        """What became of it. `refused`: vCenter would refuse the next one too; not `counts`: it was never asked.

        `suspended_at`: of a suspend, the moment that vCenter shows for it; None = it shows none. `started_at`: of a
        start, likewise.
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
        self._append(lambda _: [(_run_of(op_id), Kind.SETTLED, body)])

    def save(self, originals: Sequence[Mapping[str, Any]], run: Run | None = None) -> None:
        """Keeps VMs as they were, for the night of this run; what is saved already stays as it was saved."""
        of = run.id if run is not None else ""

        def new(state: JournalState) -> list[Draft]:
            return [
                (of, Kind.ORIGINAL, each)
                for each in originals
                if state.key_of(each["night"], each["vm"], each["uuid"]) not in state.originals
            ]

        self._append(new)

    def returned(self, night: str, vm: str) -> None:
        self._append(lambda _: [("", Kind.RETURNED, {"night": night, "vm": vm})])

    def give_up(self, things: Sequence[GivenUp], run: Run | None = None) -> None:
        """Notes hosts and VMs that a person gave up, those of a night among them as returned; once each.

        `run`: the change whose they are. What of it stands in the journal already is not noted again.
        """

        def new(state: JournalState) -> list[Draft]:
            mine = state.runs.get(run.id) if run is not None else None
            known = state.given_up.keys() if mine is None else mine.given_up
            drafts: list[Draft] = []
            for each in things:
                if each.ref not in known:
                    drafts.append((run.id if run is not None else "", Kind.GIVEN_UP, _given_up(each, given_up=True)))
                if run is None:
                    held = [saved for saved in state.originals.values() if _is_held(saved, each)]
                    drafts += [("", Kind.RETURNED, {"night": saved.night, "vm": saved.vm}) for saved in held]
            return drafts

        self._append(new)

    def back(self, things: Sequence[GivenUp]) -> None:
        """Notes those that are back after all."""

        def new(state: JournalState) -> list[Draft]:
            return [
                ("", Kind.GIVEN_UP, _given_up(each, given_up=False)) for each in things if each.ref in state.given_up
            ]

        self._append(new)

    def skip(self, policy: str, night: str, *, skipped: bool) -> None:
        """The night of the policy of this name is not to be taken; or, with `skipped` False, it is."""
        self._append(lambda _: [("", Kind.SKIP, {"policy": policy, "night": night, "skipped": skipped})])

    def _append(self, drafted: Callable[[JournalState], list[Draft]]) -> JournalState:
        """Appends what is drafted on the latest state; when somebody else was first, drafts anew on what they wrote."""
        state = self._state or self.state
        for _ in range(TRIES):
            at = self.clock()
            drafts = drafted(state)
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
            f"the journal did not take a record in {TRIES} tries", hint="gpuops rotate audit verify shows why"
        )


def os_user() -> str:
    """Name of the operating system's user that this process runs as; its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _as_seen(step: Recorded, before: Inventory) -> Mapping[str, Any]:
    """What the step is about, as it was."""
    if not isinstance(step, Step):
        host = before.hosts.get(step.host)
        return {} if host is None else {"host": host.ref, "name": host.name, "uuid": host.uuid}
    vm = before.vms.get(step.vm)
    if vm is None:
        return {}
    shown = {"host": vm.host, "power": vm.power, "profiles": vm.profiles, "name": vm.name, "uuid": vm.instance_uuid}
    return {**shown, "login": before.user} if before.user else shown


def _given_up(each: GivenUp, *, given_up: bool) -> Mapping[str, Any]:
    body = {"ref": each.ref, "given_up": given_up}
    if not given_up:
        return body
    return body | {"thing": each.thing, "uuid": each.uuid, "name": each.name, "of": each.of, "runs": each.runs}


def _is_held(saved: Saved, given: GivenUp) -> bool:
    """Whether a night still holds what is given up."""
    if saved.returned is not None:
        return False
    return saved.uuid == given.uuid if saved.uuid is not None and given.uuid is not None else saved.vm == given.ref


def _run_of(op_id: str) -> str:
    return op_id.split("-")[1]
