"""Reads all records of one vCenter in their order, and says which nights and changes they tell of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.journal.remembered import IntentState
from gpuops.execute.past.past_night import (
    RETURNED_BY,
    ROLE_OF_RETURN,
    TAKEN_BY,
    NightSoFar,
    RunSoFar,
    VmSoFar,
    in_order,
)
from gpuops.execute.runs.run_kind import CHANGE, ROTATION_RUNS
from gpuops.model.nights.history import GAVE_UP, Incident, PastChange, PastNight, PastStep, RunBy

_VERBS: Final = {
    "setscheduler": "scheduler set",
    "setmode": "mode set",
    "setpassthrough": "passthrough",
    "setmig": "mig set",
    "rotatemark": "rotate mark",
}
"""The commands of runs whose kind is the name of a request."""
_TOLD: Final = {
    "SuspendVm": "suspend", "ResumeVm": "resume", "PowerOnVm": "start", "PowerOffVm": "power-off",
    "ShutDownGuest": "shutdown", "ReconfigureVm": "change", "RelocateVm": "move", "RunInGuest": "checkpoint hook",
    "SetVmDrs": "override of DRS", "SetAttribute": "marker", "CloseGate": "gate",
    "OpenGate": "opening of the gate", "EnterMaintenance": "maintenance mode",
    "LeaveMaintenance": "end of maintenance mode", "RebootHost": "reboot",
    "PowerOffForRemoval": "power-off for removal", "RemoveVm": "removal",
}  # fmt: skip
"""What a kind of step is called in sentences; any other is a change of settings."""


@dataclass(slots=True)
class StepSoFar:
    """An effect that was intended."""

    run: RunSoFar
    kind: str
    ref: str
    name: str
    at: datetime
    vm: VmSoFar | None = None
    """The VM of a night that it is about."""


@dataclass(slots=True)
class ChangeSoFar:
    """A change, as far as its records were read."""

    run: RunSoFar
    subjects: dict[str, bool] = field(default_factory=dict)
    """By name of a host or VM, whether the last step on it failed."""
    incidents: dict[str, Incident] = field(default_factory=dict)


class PastEventsReader:
    """What the records read so far come to. `take` is its only way to change."""

    def __init__(self, vcenter: str) -> None:
        self.vcenter = vcenter
        self._runs: dict[str, RunSoFar] = {}
        """Those that have not ended."""
        self._nights: dict[str, NightSoFar] = {}
        self._changes: dict[str, ChangeSoFar] = {}
        self._steps: dict[str, StepSoFar] = {}
        """By op id, those of runs that have not ended."""
        self._latest: dict[str, VmSoFar] = {}
        """By managed object id, and by instance uuid, the VM of the latest night that saved it."""

    def take(self, record: Record) -> None:
        """The next record. Raises KeyError, TypeError or ValueError for a body that is none of ours."""
        taking = _TAKING.get(record.kind)
        if taking is not None:
            taking(self, record)

    def nights(self) -> tuple[PastNight, ...]:
        return tuple(night.past(self.vcenter) for night in self._nights.values())

    def changes(self) -> tuple[PastChange, ...]:
        return tuple(
            PastChange(
                change.run.id,
                self.vcenter,
                _verb(change.run),
                change.run.past(),
                tuple(change.subjects),
                in_order(change.incidents.values()),
                any(change.subjects.values()),
            )
            for change in self._changes.values()
        )

    def _begun(self, record: Record) -> None:
        body = record.body
        by = body.get("by", {})
        who = RunBy(by.get("user"), by.get("machine"), body["pid"])
        run = RunSoFar(record.run, body["kind"], who, record.at, body["night"], body.get("order", ""))
        self._runs[run.id] = run
        if run.night is not None:
            night = self._night(run.night, record.at)
            night.policy = body["policy"] or night.policy
            night.by_markers = False
            night.joined_by(run)
            if "free_gpus" in body:
                night.noted_free(body["free_gpus"], record.at)
        elif run.kind not in ROTATION_RUNS:
            self._changes[run.id] = ChangeSoFar(run)

    def _night(self, id: str, at: datetime, *, by_markers: bool = False) -> NightSoFar:
        return self._nights.setdefault(id, NightSoFar(id, at, by_markers=by_markers))

    def _original(self, record: Record) -> None:
        body = record.body
        vm = self._night(body["night"], record.at, by_markers=body.get("taken", False)).saved(body)
        self._remember(vm)

    def _remember(self, vm: VmSoFar) -> None:
        self._latest[vm.ref] = vm
        if vm.uuid is not None:
            self._latest[vm.uuid] = vm

    def _intent(self, record: Record) -> None:
        run, body = self._runs.get(record.run), record.body
        if run is None:
            return
        [(kind, fields)] = body["step"].items()
        ref = fields.get("vm") or fields["host"]
        step = StepSoFar(run, kind, ref, str(body["before"].get("name", ref)), record.at)
        if run.id in self._changes:
            self._changes[run.id].subjects.setdefault(step.name, False)
        else:
            step.vm = self._vm_of(run, kind, ref, body["before"])
            if step.vm is not None:
                step.vm.steps[body["op"]] = PastStep(_TOLD.get(kind, "setting"), step.at)
        self._steps[body["op"]] = step

    def _vm_of(self, run: RunSoFar, kind: str, ref: str, before: Mapping[str, Any]) -> VmSoFar | None:
        """The VM of a night that a step of a rotation is about; a return may be of one that only its marker names."""
        uuid = before.get("uuid")
        vm = self._latest.get(uuid or ref) or self._latest.get(ref)
        known = vm is not None and (not run.returns or not vm.closed)
        if vm is None or not known:
            if not run.returns or kind not in ROLE_OF_RETURN:
                return None
            night = self._night(run.id, run.begins, by_markers=True)
            what = {"vm": ref, "uuid": uuid, "name": before.get("name", ref), "role": ROLE_OF_RETURN[kind]}
            vm = night.saved(what | {"profiles": before.get("profiles", ())})
            self._remember(vm)
        vm.night.joined_by(run)
        return vm

    def _settled(self, record: Record) -> None:
        body = record.body
        step = self._steps.get(body["op"])
        if step is None:
            return
        state = IntentState(body["state"])
        self._told(body["op"], step, state, record)
        vm = step.vm
        if vm is None:
            return
        done = {IntentState.DONE: True, IntentState.FAILED: False}.get(state)
        vm.steps[body["op"]] = PastStep(_TOLD.get(step.kind, "setting"), step.at, record.at, done)
        if state is IntentState.DONE and step.kind in TAKEN_BY[vm.role] and not step.run.returns:
            vm.took(_moment(body.get("suspended") or body.get("started"), step.at, record.at))
        elif state is IntentState.DONE and step.kind in RETURNED_BY[vm.role]:
            vm.brought_back(_moment(body.get("started"), step.at, record.at))
        elif state is IntentState.UNKNOWN and step.kind in TAKEN_BY[vm.role]:
            vm.unsure = True

    def _told(self, op_id: str, step: StepSoFar, state: IntentState, record: Record) -> None:
        """An incident where it went wrong; none any more where it turned out to be done."""
        change = self._changes.get(step.run.id)
        places = [change] if change is not None else [step.vm.night] if step.vm is not None else step.run.nights
        wrong = state in (IntentState.FAILED, IntentState.UNKNOWN)
        noun = _TOLD.get(step.kind, "setting")
        what = f"{noun} failed" if state is IntentState.FAILED else f"{noun}: outcome unknown"
        for place in places:
            place.incidents.pop(op_id, None)
            if wrong:
                place.incidents[op_id] = Incident(record.at, step.name, what, record.body["reason"])
        if change is not None:
            change.subjects[step.name] = wrong

    def _returned(self, record: Record) -> None:
        night = self._nights.get(record.body["night"])
        vm = night.vms.get(record.body["vm"]) if night is not None else None
        if vm is None:
            return
        if not vm.given_up:
            vm.brought_back(record.at, by_itself=True)
        vm.closed = True
        for run in self._runs.values():
            if run.returns:
                vm.night.joined_by(run)

    def _given_up(self, record: Record) -> None:
        body = record.body
        vm, change = self._latest.get(body["ref"]), self._changes.get(record.run)
        if not body["given_up"]:
            if vm is not None:
                vm.given_up = False
            return
        incident = Incident(record.at, body["name"], GAVE_UP)
        if change is not None:
            change.incidents[body["ref"]] = incident
        elif vm is not None and body["of"] == f"night {vm.night.id}":
            vm.given_up = True
            vm.night.incidents[f"given up {vm.ref}"] = incident

    def _ended(self, record: Record) -> None:
        run = self._runs.pop(record.run, None)
        if run is None:
            return
        run.ends = record.at
        # journals written before that was noted: whoever goes on begins before it ends what was cut off
        followed = run.kind in ROTATION_RUNS and any(
            other.kind in ROTATION_RUNS and other.begins >= run.begins for other in self._runs.values()
        )
        run.cut_off = record.body.get("cut_off", False) or followed
        self._steps = {op: step for op, step in self._steps.items() if step.run is not run}
        if run.cut_off:
            told = "killed, or cut off from vCenter; another run went on"
            for night in run.nights:
                night.incidents[f"cut off {run.id}"] = Incident(record.at, run.kind, "cut off", told)


_TAKING: Final[Mapping[Kind, Callable[[PastEventsReader, Record], None]]] = {
    Kind.BEGUN: PastEventsReader._begun,
    Kind.ORIGINAL: PastEventsReader._original,
    Kind.INTENT: PastEventsReader._intent,
    Kind.SETTLED: PastEventsReader._settled,
    Kind.RETURNED: PastEventsReader._returned,
    Kind.GIVEN_UP: PastEventsReader._given_up,
    Kind.ENDED: PastEventsReader._ended,
}
"""The other kinds say nothing of what is past."""


def read_events(vcenter: str, records: Iterable[Record]) -> PastEventsReader:
    """What these records, all of the vCenter, come to."""
    reader = PastEventsReader(vcenter)
    for record in records:
        reader.take(record)
    return reader


def _moment(shown: str | None, intended: datetime, noted: datetime) -> datetime:
    """When it happened: as vCenter showed it, where that is between the intent and its outcome; else the latter."""
    if shown is None:
        return noted
    return min(max(datetime.fromisoformat(shown), intended), noted)


def _verb(run: RunSoFar) -> str:
    """The command that began a change."""
    if run.kind != CHANGE:
        return _VERBS.get(run.kind, run.kind)
    try:
        return str(json.loads(run.order)["verb"])
    except (ValueError, KeyError, TypeError):
        return run.kind
