"""The state of a journal, computed record by record: the same records always give the same state.

It stays small: a run that ended and a VM that came back are forgotten after a while, and only the latest durations are
kept. What is open or owed is never forgotten.

A checkpoint of the journal has this state as JSON, which is written and read here too."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, assert_never

from gpuops.execute.journal.record import DurationKey, Intended, IntentState, Kind, OpenRun, Record, Run, Saved
from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation_policy import LATE
from gpuops.model.stored import from_stored, to_stored
from gpuops.model.vcenter.vm import PowerState, VmDrs
from gpuops.plan.rotation.nights.night_refusals import NO_STEP_COUNTS, StepCounts

KEPT_AFTER_RETURN: Final = timedelta(days=3)
"""How long a VM that is back is remembered: a night that continues must not take it again, and a window may span a
weekend."""

KEPT_SUSPENDED: Final = timedelta(days=60)
"""How long an ML VM is remembered that was suspended for desktops: only this journal knows that it is ours."""

DURATIONS_KEPT: Final = 20
"""How many durations are kept for each kind, profile and host: enough for a percentile, and few enough for a
checkpoint."""

TAKING: Final = frozenset({"SuspendVm", "PowerOnVm", "ShutDownGuest"})
"""Steps by which a night takes a VM."""
RETURNING: Final = frozenset({"ResumeVm", "PowerOnVm"})
"""Steps that bring a desktop back: the first of them ends the night, unless the run is limited to some VMs by name."""
MAY_TAKE_EFFECT_LATE: Final = TAKING | {"SetVmDrs"}
"""Steps that a return undoes. If the outcome of one is unknown, it may still take effect after the return looked."""
_UNDONE_BY: Final = {
    Role.DESKTOP: ("ResumeVm",),
    Role.SHUT_DOWN: ("PowerOnVm", "ResumeVm"),
    Role.ML: ("ShutDownGuest", "PowerOffVm", "SuspendVm"),
}
"""The steps that bring a VM back. Once one is seen done, all that the night sent for the VM had happened before it."""


class JournalState:
    """What a run must know about one vCenter to decide what to do. Only `apply` changes it."""

    def __init__(self, vcenter: str) -> None:
        self.vcenter = vcenter
        self.seq = 0
        """The last record in it."""
        self.checkpoint = 0
        """The last record that was a checkpoint."""
        self.runs: dict[str, OpenRun] = {}
        self.policies: dict[str, str] = {}
        """The last policy of each kind of run, the most recent one last."""
        self.originals: dict[tuple[str, str], Saved] = {}
        self.takes: dict[tuple[str, str], int] = {}
        """By night and VM, the number of effects that took it, without those that certainly failed."""
        self.gates: dict[tuple[str, str], tuple[int, str]] = {}
        """By night and VM, the number of effects that closed its gate at the broker, without those that certainly
        failed, and the broker's id of its machine. The entry is removed when the gate is opened."""
        self.lost_closes: dict[tuple[str, str], datetime] = {}
        """By night and VM, when a request to close its gate was last settled as unknown."""
        self.lost: dict[tuple[str, str], datetime] = {}
        """By night and VM, when an effect on it was settled as unknown."""
        self.durations: dict[DurationKey, deque[float]] = {}
        self.setbacks: dict[str, StepCounts] = {}
        """By night, the counts of its steps so far."""
        self.over: set[str] = set()
        """Nights whose return has begun, whether or not any desktop is back yet."""
        self.lease_numbers: dict[str, int] = {}
        """By name of the lock VM, the highest lease number that a run held."""
        self.leases: dict[str, set[int]] = {}
        """By night, the numbers of the leases that its runs held."""
        self.skips: set[tuple[str, str]] = set()
        """Name of the policy and night."""
        self.given_up: dict[str, GivenUp] = {}
        """By ref, the hosts and VMs that an admin gave up and that no run has seen back."""
        self.begun: Counter[str] = Counter()
        """How many runs of each kind have begun in the records that this process has read; not part of a checkpoint."""
        self.changed: datetime | None = None
        """When a run last began, ended or got an outcome."""
        self.return_seen: datetime | None = None
        """When a run that brings back what nights took last began, ended or got an outcome."""

    def apply(self, record: Record) -> None:
        """Apply the next record. Raises KeyError, ValueError or TypeError for a body that gpuops did not write."""
        match record.kind:
            case Kind.INTENT | Kind.SUBMITTED | Kind.SETTLED as effect:  # most of a journal is these
                _EFFECTS[effect](self, record)
            case Kind.BEGUN:
                self._apply_begun(record)
            case Kind.ORIGINAL:
                self._apply_original(record)
            case Kind.RETURNED:
                self._apply_returned(record)
            case Kind.SKIP:
                self._apply_skip(record.body)
            case Kind.GIVEN_UP:
                self._apply_given_up(record)
            case Kind.ENDED:
                self._note_change(record)
                self.runs.pop(record.run, None)
            case Kind.CHECKPOINT:
                self.checkpoint = record.seq
            case _ as never:
                assert_never(never)
        self.seq = record.seq

    def _apply_begun(self, record: Record) -> None:
        body = record.body
        vms = tuple(body.get("vms", ()))
        kind, night, policy, pid = (body[key] for key in ("kind", "night", "policy", "pid"))
        run = Run(record.run, self.vcenter, kind, night, policy, pid, record.at, vms, body.get("order", ""))
        self.runs[run.id] = OpenRun(run)
        self.begun[run.kind] += 1
        if run.policy:
            self.policies.pop(run.kind, None)  # so that this one is the last in the dict
            self.policies[run.kind] = run.policy
        self._forget(record.at - KEPT_AFTER_RETURN)
        if run.night is not None:
            self.setbacks[run.night] = self.setbacks.get(run.night, NO_STEP_COUNTS).with_plan(body.get("steps", 0))
        for lease in body.get("leases", ()):
            self._note_lease(run.night, lease["vm"], lease["number"])
        self._note_change(record)

    def _forget(self, before: datetime) -> None:
        """Forget VMs that returned before this moment, and skips, counts and leases of nights before it."""
        forgotten_keys = [
            key
            for key, saved in self.originals.items()
            if saved.returned is not None
            # an ML VM that was suspended for desktops is remembered longer
            and saved.returned < (before if not _was_suspended_for_desktops(saved) else before - KEPT_SUSPENDED)
            and saved.vm not in self.given_up
        ]
        for key in forgotten_keys:
            del self.originals[key]
            self.takes.pop(key, None)
            self.gates.pop(key, None)
            self.lost_closes.pop(key, None)
            self.lost.pop(key, None)
        since = before.date().isoformat()
        self.skips = {(policy, night) for policy, night in self.skips if night >= since}
        self.setbacks = {night: counts for night, counts in self.setbacks.items() if night >= since}
        self.over = {night for night in self.over if night >= since}
        remembered_nights = {night for night, _ in self.originals}
        self.leases = {
            night: numbers for night, numbers in self.leases.items() if night >= since or night in remembered_nights
        }

    def _note_lease(self, night: str | None, lock_vm: str, number: int) -> None:
        self.lease_numbers[lock_vm] = max(number, self.lease_numbers.get(lock_vm, 0))
        if night is not None:
            self.leases.setdefault(night, set()).add(number)

    def _apply_skip(self, body: Mapping[str, Any]) -> None:
        skip = (body["policy"], body["night"])
        if body["skipped"]:
            self.skips.add(skip)
        else:
            self.skips.discard(skip)

    def _apply_given_up(self, record: Record) -> None:
        """Note a host or VM that an admin gave up, or that is back after all."""
        body = record.body
        ref = body["ref"]
        if not body["given_up"]:
            self.given_up.pop(ref, None)
            return
        if record.run in self.runs:
            self.runs[record.run].given_up.add(ref)
        kind_of_thing, uuid, name, of, runs = (body[key] for key in ("thing", "uuid", "name", "of", "runs"))
        self.given_up[ref] = GivenUp(Thing(kind_of_thing), ref, uuid, name, of, record.at, runs)

    def _apply_original(self, record: Record) -> None:
        """Save a VM as it was before its night took it."""
        body = record.body
        key = self.key_of(body["night"], body["vm"], body["uuid"])
        if key in self.originals:  # a night's saved VM is never changed
            return
        drs = VmDrs(body["drs"]) if "drs" in body else None
        self.originals[key] = Saved(
            *key, Role(body["role"]), body["uuid"], body["name"], body["host"], tuple(body["profiles"]), drs=drs,
            gpu_modes=tuple(sorted(body.get("gpu_modes", {}).items())),
            policy=self._policy_of(record.run, body["night"]),
            suspended_at=_moment_in(body, "suspended"), started_at=_moment_in(body, "started"),
            stopped=body.get("stopped", False),
        )  # fmt: skip
        if body.get("taken", False):  # no record names the run that took it: only its marker does
            self.takes[key] = 1
        if "gate" in body:  # for a VM that was adopted from another vCenter
            self.gates[key] = 1, body["gate"]

    def key_of(self, night: str, vm: str, uuid: str | None) -> tuple[str, str]:
        """Return the key of a VM that a night has saved.

        A VM may have been registered again with a new id, so it is found by its instance uuid; a VM that was not saved
        has its id as key.
        """
        if (night, vm) in self.originals or uuid is None:
            return night, vm
        same = (key for key, saved in self.originals.items() if key[0] == night and saved.uuid == uuid)
        return next(same, (night, vm))

    def _policy_of(self, run: str, night: str) -> str:
        """Return the policy of the run that saved the VM. Older records do not name the run: it had just begun."""
        named_run = self.runs.get(run)
        if named_run is not None:
            return named_run.run.policy
        return next(
            (open_run.run.policy for open_run in reversed(self.runs.values()) if open_run.run.night == night), ""
        )

    def _intent(self, record: Record) -> None:
        """Apply an effect about to be sent. It counts as sent until its outcome says otherwise."""
        body = record.body
        intended = Intended(body["op"], body["step"], datetime.fromisoformat(body["seen"]), body["before"])
        open_run = self.runs.get(record.run)
        if open_run is None:  # `Journal.intend` refuses that; such a record is no reason to distrust all others
            return
        open_run.intents[intended.op_id] = intended
        run, night = open_run.run, open_run.run.night
        if night is not None and intended.kind in TAKING:
            # a VM that a night takes again is no longer given up
            for ref in [
                ref for ref, given_up in self.given_up.items() if _is_of(intended, given_up.ref, given_up.uuid)
            ]:
                del self.given_up[ref]
            self._count_take(night, intended, 1)
            self._note_taken_again(run, night, intended)
        if night is not None and intended.kind == "CloseGate":
            self._count_gate_close(night, intended, 1)
        if run.returns and intended.before.get("power") == PowerState.OFF:  # it had stopped before this return
            self._note_stop(intended, record.at)
        # a return of all VMs has begun to bring desktops back: their nights are over
        if intended.kind in RETURNING and night is None and not run.vms:
            saved_of = (saved for saved in self.originals.values() if _is_of(intended, saved.vm, saved.uuid))
            self.over.update(saved.night for saved in saved_of if saved.returned is None and saved.role is not Role.ML)

    def _note_taken_again(self, run: Run, night: str, intended: Intended) -> None:
        """Note that a night took the VM again: a night that was cut off and closed by a return may be run again."""
        if intended.kind == "PowerOnVm":
            for original in self.originals.values():
                if original.role is Role.ML and _is_of(intended, original.vm, original.uuid):
                    original.suspended_at = None  # it runs again; a later suspend is not the watch's
        saved = self.originals.get(self.key_of(night, intended.vm, intended.uuid))
        if saved is not None:
            saved.returned = saved.suspended_at = None
            saved.started_at = intended.seen if intended.kind == "PowerOnVm" else None
            saved.stopped = False
            saved.policy = run.policy or saved.policy

    def _count_take(self, night: str, intended: Intended, count: int) -> None:
        """Add `count`, which may be negative, to the effects of the night that took this VM."""
        key = self.key_of(night, intended.vm, intended.uuid)
        self.takes[key] = self.takes.get(key, 0) + count

    def _count_gate_close(self, night: str, intended: Intended, count: int) -> None:
        """Add `count`, which may be negative, to the effects of the night that closed the gate of this VM."""
        key = self.key_of(night, intended.vm, intended.uuid)
        self.gates[key] = self.gates.get(key, (0, ""))[0] + count, intended.step["CloseGate"]["machine"]

    def _gate_opened(self, intended: Intended, at: datetime) -> None:
        """Note that users may use the VM again: no night holds its gate any more.

        Exception: a request to close it was lost so recently that it may still arrive.
        """
        for key in [*self.gates]:
            saved = self.originals.get(key)
            if key in self.lost_closes and at - self.lost_closes[key] < LATE:
                continue
            if saved is not None and _is_of(intended, saved.vm, saved.uuid):
                del self.gates[key]

    def _apply_submitted(self, record: Record) -> None:
        intended = self._find_intended(record)
        if intended is not None:
            intended.state, intended.task = IntentState.SUBMITTED, record.body["task"]

    def _apply_returned(self, record: Record) -> None:
        saved = self.originals.get((record.body["night"], record.body["vm"]))
        if saved is not None and saved.returned is None:
            saved.returned = record.at

    def _apply_settled(self, record: Record) -> None:
        """Apply the outcome of an effect, also a later outcome that replaces an earlier one."""
        self._note_change(record)
        intended = self._find_intended(record)
        if intended is None:
            return
        state_before, intended.state = intended.state, _STATES[record.body["state"]]
        night = self.runs[record.run].run.night
        if night is not None:
            self._apply_outcome_to_night(night, intended, state_before, record)
        if intended.state is IntentState.DONE:
            self._forget_lost(intended)  # a step that brings the VM back shows that earlier lost effects are over
            if intended.kind == "OpenGate":
                self._gate_opened(intended, record.at)
            if self.runs[record.run].run.returns and intended.kind in _UNDONE_BY[Role.ML]:
                self._note_stop(intended, record.at)
                if intended.kind == "SuspendVm" and "suspended" in record.body:
                    self._note_suspension(intended, datetime.fromisoformat(record.body["suspended"]))
        duration_s = record.body["duration_s"]
        if intended.state is IntentState.DONE and duration_s is not None:
            profiles = "+".join(sorted(intended.before.get("profiles", ())))
            key = DurationKey(intended.kind, profiles, intended.before.get("host") or "")
            if key not in self.durations:
                self.durations[key] = deque(maxlen=DURATIONS_KEPT)
            self.durations[key].append(duration_s)

    def _apply_outcome_to_night(
        self, night: str, intended: Intended, state_before: IntentState, record: Record
    ) -> None:
        """Apply an outcome to its night."""
        kind = intended.kind
        # the intent was counted: FAILED takes that back (-1), and another outcome after FAILED counts it again (+1)
        count = (state_before is IntentState.FAILED) - (intended.state is IntentState.FAILED)
        if kind in TAKING:
            self._count_take(night, intended, count)
        if kind == "CloseGate":
            self._count_gate_close(night, intended, count)
            if intended.state is IntentState.UNKNOWN:
                self.lost_closes[self.key_of(night, intended.vm, intended.uuid)] = record.at
        if kind in MAY_TAKE_EFFECT_LATE:
            key = self.key_of(night, intended.vm, intended.uuid)
            self.lost.pop(key, None)
            if intended.state is IntentState.UNKNOWN:
                self.lost[key] = record.at
        saved = self.originals.get(self.key_of(night, intended.vm, intended.uuid))
        if saved is not None and "suspended" in record.body:
            saved.suspended_at = datetime.fromisoformat(record.body["suspended"])
        if saved is not None and kind == "ShutDownGuest" and intended.state is IntentState.DONE:
            saved.suspended_at = intended.seen  # the look before: vCenter shows no moment of a shutdown
        if saved is not None and "started" in record.body:
            saved.started_at = datetime.fromisoformat(record.body["started"])
        if state_before is not IntentState.UNKNOWN and record.body.get("counts", True):
            self._count_end(night, intended, refused=record.body.get("refused", False))

    def _note_stop(self, intended: Intended, at: datetime) -> None:
        """Note that the VM's work for nights has stopped, unless a start was lost so recently that it may still
        arrive."""
        for key, saved in self.originals.items():
            is_certain = key not in self.lost or at - self.lost[key] >= LATE
            if saved.role is Role.ML and is_certain and _is_of(intended, saved.vm, saved.uuid):
                saved.stopped = True

    def _note_suspension(self, intended: Intended, moment: datetime) -> None:
        """Note that an ML VM was suspended for desktops: until it is started again, only this journal knows it as
        ours."""
        for saved in self.originals.values():
            if saved.role is Role.ML and _is_of(intended, saved.vm, saved.uuid):
                saved.suspended_at = moment

    def _forget_lost(self, intended: Intended) -> None:
        """Forget lost effects on this VM once they were undone: they need not be waited for any more."""
        for key in [*self.lost]:
            saved = self.originals.get(key)
            if saved is None or not _is_of(intended, saved.vm, saved.uuid):
                continue
            if intended.kind in _UNDONE_BY[saved.role]:
                del self.lost[key]

    def _count_end(self, night: str, intended: Intended, *, refused: bool) -> None:
        failed = intended.state in (IntentState.FAILED, IntentState.UNKNOWN)
        so_far = self.setbacks.get(night, NO_STEP_COUNTS)
        self.setbacks[night] = so_far.with_end(failed=failed, refused=refused, host=intended.before.get("host"))

    def _find_intended(self, record: Record) -> Intended | None:
        """Return the effect, or None if its run has ended: its outcome does not matter any more."""
        open_run = self.runs.get(record.run)
        return open_run.intents[record.body["op"]] if open_run is not None else None

    def _note_change(self, record: Record) -> None:
        self.changed = max(record.at, self.changed or record.at)
        open_run = self.runs.get(record.run)
        if open_run is not None and open_run.run.returns:
            self.return_seen = max(record.at, self.return_seen or record.at)


def _moment_in(body: Mapping[str, Any], field: str) -> datetime | None:
    return datetime.fromisoformat(body[field]) if field in body else None


def _was_suspended_for_desktops(saved: Saved) -> bool:
    return saved.role is Role.ML and saved.suspended_at is not None


def _is_of(intended: Intended, ref: str, uuid: str | None) -> bool:
    """Return whether the effect is on this VM, whatever its id is now."""
    if uuid is not None and intended.uuid is not None:
        return uuid == intended.uuid
    return ref == intended.vm


_STATES: Final = {state.value: state for state in IntentState}
_EFFECTS: Final[Mapping[Kind, Callable[[JournalState, Record], None]]] = {
    Kind.INTENT: JournalState._intent,
    Kind.SUBMITTED: JournalState._apply_submitted,
    Kind.SETTLED: JournalState._apply_settled,
}


FOLD: Final = 18
"""The version of `dump_state`. A checkpoint of another version is not used: the first record on is read instead."""


def dump_state(state: JournalState) -> dict[str, Any]:
    """Return the complete state without its position, which is that of the checkpoint record."""
    # VMs of one night share a policy: each text is stored once, and VMs refer to it by number
    texts = {
        text: number for number, text in enumerate(dict.fromkeys(saved.policy for saved in state.originals.values()))
    }
    # in each row, `*key` is the night and the VM
    return {
        "fold": FOLD,
        "texts": list(texts),
        "runs": [_dump_run(open_run) for open_run in state.runs.values()],
        "policies": [[kind, text] for kind, text in state.policies.items()],
        "originals": [
            [*_dump_saved(saved), state.takes.get(key, 0), texts[saved.policy]]
            for key, saved in state.originals.items()
        ],
        "gpu_modes": [[*key, dict(saved.gpu_modes)] for key, saved in state.originals.items() if saved.gpu_modes],
        "takes": [[*key, count] for key, count in state.takes.items() if key not in state.originals],
        "gates": [[*key, count, machine] for key, (count, machine) in state.gates.items()],
        "lost_closes": [[*key, at.isoformat()] for key, at in state.lost_closes.items()],
        "lost": [[*key, at.isoformat()] for key, at in state.lost.items()],
        "durations": [[*key, *durations_s] for key, durations_s in state.durations.items()],
        "setbacks": {night: to_stored(counts) for night, counts in state.setbacks.items()},
        "over": sorted(state.over),
        "lease_numbers": state.lease_numbers,
        "leases": {night: sorted(numbers) for night, numbers in state.leases.items()},
        "skips": sorted(state.skips),
        "given_up": [_dump_given_up(given_up) for given_up in state.given_up.values()],
        "changed": _moment(state.changed),
        "return_seen": _moment(state.return_seen),
    }


def load_state(vcenter: str, record: Record) -> JournalState | None:
    """Return the state that this checkpoint holds; None if another version with another `FOLD` wrote it.

    Raises KeyError, ValueError or TypeError for a body that gpuops did not write.
    """
    body = record.body
    if body["fold"] != FOLD:
        return None
    state = JournalState(vcenter)
    state.seq = state.checkpoint = record.seq
    state.runs = {run_body["id"]: _load_run(vcenter, run_body) for run_body in body["runs"]}
    state.policies = dict(body["policies"])
    # each row has the fields of `_dump_saved`, then the number of takes and of the text of the policy
    for night, vm, role, uuid, name, host, profiles, returned, drs, suspended, started, *other in body["originals"]:
        stopped, count, text = other
        drs_before = VmDrs(drs) if drs is not None else None
        state.originals[night, vm] = Saved(
            night, vm, Role(role), uuid, name, host, tuple(profiles), _load_moment(returned), drs_before,
            body["texts"][text], _load_moment(suspended), _load_moment(started), stopped,
        )  # fmt: skip
        if count:
            state.takes[night, vm] = count
    for night, vm, modes in body.get("gpu_modes", ()):  # an older gpuops stored none
        state.originals[night, vm].gpu_modes = tuple(modes.items())
    state.takes |= {(night, vm): count for night, vm, count in body["takes"]}
    state.gates = {(night, vm): (count, machine) for night, vm, count, machine in body["gates"]}
    state.lost_closes = {(night, vm): datetime.fromisoformat(at) for night, vm, at in body["lost_closes"]}
    state.lost = {(night, vm): datetime.fromisoformat(at) for night, vm, at in body["lost"]}
    state.durations = {
        DurationKey(step, profiles, host): deque(durations_s, maxlen=DURATIONS_KEPT)
        for step, profiles, host, *durations_s in body["durations"]
    }
    state.setbacks = {night: from_stored(StepCounts, counts) for night, counts in body["setbacks"].items()}
    state.over = set(body["over"])
    state.lease_numbers = dict(body["lease_numbers"])
    state.leases = {night: set(numbers) for night, numbers in body["leases"].items()}
    state.skips = {(policy, night) for policy, night in body["skips"]}
    state.given_up = {given_up["ref"]: _load_given_up(given_up) for given_up in body["given_up"]}
    state.changed = _load_moment(body["changed"])
    state.return_seen = _load_moment(body["return_seen"])
    return state


def _dump_run(open_run: OpenRun) -> dict[str, Any]:
    run = open_run.run
    return {
        "id": run.id,
        "kind": run.kind,
        "night": run.night,
        "policy": run.policy,
        "pid": run.pid,
        "started": run.started.isoformat(),
        "vms": run.vms,
        "order": run.order,
        "intents": [
            [intended.op_id, intended.step, intended.seen.isoformat(), intended.before, intended.state, intended.task]
            for intended in open_run.intents.values()
        ],
        "given_up": sorted(open_run.given_up),
    }


def _load_run(vcenter: str, body: Mapping[str, Any]) -> OpenRun:
    started = datetime.fromisoformat(body["started"])
    vms = tuple(body.get("vms", ()))
    kind, night, policy, pid = (body[key] for key in ("kind", "night", "policy", "pid"))
    run = Run(body["id"], vcenter, kind, night, policy, pid, started, vms, body.get("order", ""))
    intents = {
        op_id: Intended(op_id, step, datetime.fromisoformat(looked_at), before, IntentState(state), task)
        for op_id, step, looked_at, before, state, task in body["intents"]
    }
    return OpenRun(run, intents, set(body["given_up"]))


def _dump_given_up(given_up: GivenUp) -> dict[str, Any]:
    body: dict[str, Any] = to_stored(given_up)
    return body | {"at": given_up.at.isoformat()}


def _load_given_up(body: Mapping[str, Any]) -> GivenUp:
    read = {"thing": Thing(body["thing"]), "at": datetime.fromisoformat(body["at"])}
    return from_stored(GivenUp, {**body, **read})


def _dump_saved(saved: Saved) -> list[Any]:
    returned, suspended, started = _moment(saved.returned), _moment(saved.suspended_at), _moment(saved.started_at)
    return [
        saved.night, saved.vm, saved.role, saved.uuid, saved.name, saved.host, saved.profiles, returned, saved.drs,
        suspended, started, saved.stopped,
    ]  # fmt: skip


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _load_moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
