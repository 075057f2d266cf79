"""Build the past nights and changes of one vCenter from all its records, read in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from gpuops.catalog import load
from gpuops.config.policy import parse_policy
from gpuops.errors import PolicyError, StateDamaged
from gpuops.execute.journal.orders import load_change_order
from gpuops.execute.journal.record import IntentState, Kind, Record
from gpuops.execute.runs import CHANGE, ROTATION_RUNS, RunKind
from gpuops.extensions import run_commands
from gpuops.model.nights.history import (
    GAVE_UP,
    FreeGpus,
    HeldPeriod,
    Incident,
    PastChange,
    PastNight,
    PastRun,
    PastStep,
    PastVm,
    RunBy,
)
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.stored import from_stored
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of
from gpuops.plan.rotation.returns.return_time import nights_called

TAKEN_BY: Final = {
    Role.DESKTOP: frozenset({"SuspendVm"}),
    Role.SHUT_DOWN: frozenset({"ShutDownGuest"}),
    Role.ML: frozenset({"PowerOnVm"}),
}
"""The steps by which a night takes a VM."""
RETURNED_BY: Final = {
    Role.DESKTOP: frozenset({"ResumeVm", "PowerOnVm"}),
    Role.SHUT_DOWN: frozenset({"ResumeVm", "PowerOnVm"}),
    Role.ML: frozenset({"ShutDownGuest", "PowerOffVm", "SuspendVm"}),
}
"""The steps that bring a VM back."""
ROLE_OF_RETURN: Final = {
    "ResumeVm": Role.DESKTOP,
    "PowerOnVm": Role.SHUT_DOWN,
    "ShutDownGuest": Role.ML,
    "PowerOffVm": Role.ML,
    "SuspendVm": Role.ML,
}
"""The role of a VM of which only the return is known, by the step of that return."""


@dataclass(slots=True)
class RunSoFar:
    """A run, from the records read so far."""

    id: str
    kind: str
    by: RunBy
    begins: datetime
    night: str | None
    order: str = ""
    ends: datetime | None = None
    cut_off: bool = False
    nights: list[NightSoFar] = field(default_factory=list)
    """The nights whose VMs it took or brought back."""

    @property
    def returns(self) -> bool:
        return self.kind in (RunKind.DAY, RunKind.RESTORE)

    def past(self) -> PastRun:
        return PastRun(self.id, self.kind, self.by, self.begins, self.ends, self.cut_off)


@dataclass(slots=True)
class VmSoFar:
    """A VM of a night, from the records read so far."""

    ref: str
    uuid: str | None
    name: str
    role: Role
    profiles: tuple[str, ...]
    night: NightSoFar
    held_periods: list[HeldPeriod] = field(default_factory=list)
    may_be_taken: bool = False
    """Whether the reply to the step that takes it was lost."""
    owner: NotedOwner | None = None
    closed: bool = False
    given_up: bool = False
    steps: dict[str, PastStep] = field(default_factory=dict)
    """By op id."""

    @property
    def is_held(self) -> bool:
        return bool(self.held_periods) and self.held_periods[-1].ends is None

    def note_taken(self, at: datetime) -> None:
        """Note that the night holds the VM from this moment on."""
        self.may_be_taken = self.closed = False
        if not self.is_held:
            self.held_periods.append(HeldPeriod(at))

    def note_back(self, at: datetime, *, by_itself: bool = False) -> None:
        """Note that the VM is back since this moment; `by_itself`: since an earlier moment that was not recorded."""
        if self.is_held:
            self.held_periods[-1] = HeldPeriod(self.held_periods[-1].begins, at, by_itself)
        # no record of the taking, but a step that brought it back: it was taken, at an unknown moment
        elif (self.may_be_taken or self.night.by_markers) and not by_itself:
            self.held_periods.append(HeldPeriod(None, at))
        self.may_be_taken = False

    def past(self) -> PastVm:
        return PastVm(
            self.ref, self.uuid, self.name, self.role, self.profiles, _gpus(self.profiles), tuple(self.held_periods),
            self.closed, self.given_up, tuple(self.steps.values()), self.owner,
        )  # fmt: skip


@dataclass(slots=True)
class NightSoFar:
    """A night, from the records read so far."""

    id: str
    began: datetime
    policy: str = ""
    """The text of its policy file."""
    runs: list[RunSoFar] = field(default_factory=list)
    vms: dict[str, VmSoFar] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    """Incidents by their cause; an incident is removed when its cause is repaired."""
    by_markers: bool = False
    free: dict[str, FreeGpus] | None = None
    """Host -> free GPUs on it; None = an older version of gpuops did not record them."""

    def note_free_gpus(self, by_host: Mapping[str, float | None], at: datetime) -> None:
        """Note the GPUs that a run found free on hosts that no earlier run of the night used."""
        free_gpus = {host: FreeGpus(gpus, at) for host, gpus in by_host.items()}
        self.free = {**free_gpus, **(self.free or {})}

    def add_run(self, run: RunSoFar) -> None:
        """Note that the run took VMs in this night, or brought some of them back."""
        if run not in self.runs:
            self.runs.append(run)
            run.nights.append(self)

    def save_vm(self, body: Mapping[str, Any]) -> VmSoFar:
        """Return the VM of this record, adding it if it is new; a VM that is already saved is not changed."""
        ref, uuid = body["vm"], body["uuid"]
        saved_vm = self.vms.get(ref) or next(
            (vm for vm in self.vms.values() if uuid is not None and vm.uuid == uuid), None
        )
        if saved_vm is None:
            owner = from_stored(NotedOwner, body["owner"]) if "owner" in body else None
            saved_vm = VmSoFar(ref, uuid, body["name"], Role(body["role"]), tuple(body["profiles"]), self, owner=owner)
            self.vms[ref] = saved_vm
        return saved_vm

    def past(self, vcenter: str) -> PastNight:
        """Return the night by the records read so far."""
        policy = _policy(self.policy)
        return PastNight(
            self.id,
            vcenter,
            self.began,
            policy.name if policy is not None else None,
            tuple(run.past() for run in self.runs),
            tuple(sorted((vm.past() for vm in self.vms.values()), key=lambda vm: (vm.is_ml, vm.name))),
            in_order(self.incidents.values()),
            self.by_markers,
            tuple(self.free.values()) if self.free is not None else None,
            _back_by(policy, self.id) if policy is not None else None,
        )


def in_order(incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    return tuple(sorted(incidents, key=lambda incident: incident.at))


@lru_cache(maxsize=256)
def _gpus(profiles: tuple[str, ...]) -> float | None:
    return gpus_of(profiles, load(profiles=profiles))


@lru_cache(maxsize=16)
def _policy(text: str) -> Policy | None:
    """Return the policy of this text; None if this version cannot read it, or the text is empty."""
    try:
        return parse_policy(text, "the journal", accepted_before=True) if text else None
    except PolicyError:
        return None


def _back_by(policy: Policy, night: str) -> datetime | None:
    """Return when the desktops of this night must be back; None for a night without a window."""
    return max((named_night.back_by for named_night in nights_called(night, policy)), default=None)


_COMMANDS: Final = {
    "setscheduler": "scheduler set",
    "setmode": "mode set",
    "setpassthrough": "passthrough",
    "setmig": "mig set",
    "rotatemark": "rotate mark",
    **run_commands(),
}
"""By kind of run, the command that begins it; a kind that is missing is the command itself."""
_STEP_NOUNS: Final = {
    "SuspendVm": "suspend", "ResumeVm": "resume", "PowerOnVm": "start", "PowerOffVm": "power-off",
    "ShutDownGuest": "shutdown", "ReconfigureVm": "change", "RelocateVm": "move", "RunInGuest": "checkpoint hook",
    "SetVmDrs": "override of DRS", "SetAttribute": "marker", "CloseGate": "gate",
    "OpenGate": "opening of the gate", "EnterMaintenance": "maintenance mode",
    "LeaveMaintenance": "end of maintenance mode", "RebootHost": "reboot",
    "CloneVm": "clone", "CreateVm": "creation", "PowerOffForRemoval": "power-off for removal", "RemoveVm": "removal",
    "DefineAttribute": "definition", "SetRole": "role", "RunClusterProgram": "program",
}  # fmt: skip
"""The noun for a kind of step in sentences; any other kind is a setting."""


@dataclass(slots=True)
class StepSoFar:
    """A step whose intent was recorded."""

    run: RunSoFar
    kind: str
    ref: str
    name: str
    at: datetime
    vm: VmSoFar | None = None
    """The VM of a night that the step changes."""


@dataclass(slots=True)
class ChangeSoFar:
    """A change, from the records read so far."""

    run: RunSoFar
    subjects: dict[str, bool] = field(default_factory=dict)
    """Name of a host or VM -> whether the last step on it failed."""
    incidents: dict[str, Incident] = field(default_factory=dict)


class PastEventsReader:
    """The nights and changes in the records read so far. Only `take` changes it."""

    def __init__(self, vcenter: str) -> None:
        self.vcenter = vcenter
        self._runs: dict[str, RunSoFar] = {}
        """Runs that have not ended, by id."""
        self._nights: dict[str, NightSoFar] = {}
        self._changes: dict[str, ChangeSoFar] = {}
        self._steps: dict[str, StepSoFar] = {}
        """Steps of runs that have not ended, by op id."""
        self._latest: dict[str, VmSoFar] = {}
        """Managed object id, and instance uuid -> the VM of the latest night that saved it."""

    def take(self, record: Record) -> None:
        """Process the next record. Raises KeyError, TypeError or ValueError for a body that gpuops did not write."""
        handler = _HANDLERS.get(record.kind)
        if handler is not None:
            handler(self, record)

    def nights(self) -> tuple[PastNight, ...]:
        return tuple(night.past(self.vcenter) for night in self._nights.values())

    def changes(self) -> tuple[PastChange, ...]:
        """Return the changes by the records read so far."""
        return tuple(
            PastChange(
                change.run.id,
                self.vcenter,
                _command_of(change.run),
                change.run.past(),
                tuple(change.subjects),
                in_order(change.incidents.values()),
                any(change.subjects.values()),  # whether the last step on one of them failed
            )
            for change in self._changes.values()
        )

    def _take_begin(self, record: Record) -> None:
        """Note a run, and its night or change."""
        body = record.body
        by = body.get("by", {})
        run_by = RunBy(by.get("user"), by.get("machine"), body["pid"])
        run = RunSoFar(record.run, body["kind"], run_by, record.at, body["night"], body.get("order", ""))
        self._runs[run.id] = run
        if run.night is not None:
            night = self._night(run.night, record.at)
            night.policy = body["policy"] or night.policy
            night.by_markers = False  # a night of which earlier records knew only the markers has a run after all
            night.add_run(run)
            if "free_gpus" in body:
                night.note_free_gpus(body["free_gpus"], record.at)
        elif run.kind not in ROTATION_RUNS:
            self._changes[run.id] = ChangeSoFar(run)

    def _night(self, id: str, at: datetime, *, by_markers: bool = False) -> NightSoFar:
        return self._nights.setdefault(id, NightSoFar(id, at, by_markers=by_markers))

    def _take_original(self, record: Record) -> None:
        body = record.body
        vm = self._night(body["night"], record.at, by_markers=body.get("taken", False)).save_vm(body)
        self._remember(vm)

    def _remember(self, vm: VmSoFar) -> None:
        self._latest[vm.ref] = vm
        if vm.uuid is not None:
            self._latest[vm.uuid] = vm

    def _take_intent(self, record: Record) -> None:
        """Note a step, on its change or on the VM of its night."""
        run, body = self._runs.get(record.run), record.body
        if run is None:  # the run has ended: another run settled its steps
            return
        [(kind, fields)] = body["step"].items()
        ref = fields.get("vm") or fields.get("host") or fields["name"]  # a setting of vCenter has a name
        step = StepSoFar(run, kind, ref, str(body["before"].get("name", ref)), record.at)
        if run.id in self._changes:
            self._changes[run.id].subjects.setdefault(step.name, False)
        else:
            step.vm = self._vm_of(run, kind, ref, body["before"])
            if step.vm is not None:
                step.vm.steps[body["op"]] = PastStep(_STEP_NOUNS.get(kind, "setting"), step.at)
        self._steps[body["op"]] = step

    def _vm_of(self, run: RunSoFar, kind: str, ref: str, before: Mapping[str, Any]) -> VmSoFar | None:
        """Return the VM of a night that a step changes; None if it is not a VM of a night.

        A return may change a VM that only its marker names: that VM gets a night of its own.
        """
        uuid = before.get("uuid")
        # by its uuid, because a VM that was registered again has a new ref; by its ref if its night saved no uuid
        vm = self._latest.get(uuid or ref) or self._latest.get(ref)
        # a return that changes a VM whose night is closed follows a marker
        if vm is None or (run.returns and vm.closed):
            if not run.returns or kind not in ROLE_OF_RETURN:
                return None
            night = self._night(run.id, run.begins, by_markers=True)
            body = {"vm": ref, "uuid": uuid, "name": before.get("name", ref), "role": ROLE_OF_RETURN[kind]}
            vm = night.save_vm(body | {"profiles": before.get("profiles", ())})
            self._remember(vm)
        vm.night.add_run(run)
        return vm

    def _take_outcome(self, record: Record) -> None:
        """Note the outcome of a step, and whether it took a VM for the night or brought one back."""
        body = record.body
        step = self._steps.get(body["op"])
        if step is None:
            return
        state = IntentState(body["state"])
        self._note_incident(body["op"], step, state, record)
        vm = step.vm
        if vm is None:
            return
        is_done = {IntentState.DONE: True, IntentState.FAILED: False}.get(state)
        vm.steps[body["op"]] = PastStep(_STEP_NOUNS.get(step.kind, "setting"), step.at, record.at, is_done)
        if state is IntentState.DONE and step.kind in TAKEN_BY[vm.role] and not step.run.returns:
            # vCenter's moment if it showed one, within the time that the step took
            vm.note_taken(_clamp_moment(body.get("suspended") or body.get("started"), step.at, record.at))
        elif state is IntentState.DONE and step.kind in RETURNED_BY[vm.role]:
            vm.note_back(_clamp_moment(body.get("started"), step.at, record.at))
        elif state is IntentState.UNKNOWN and step.kind in TAKEN_BY[vm.role]:
            vm.may_be_taken = True  # it may have been taken: a later return shows that it was

    def _note_incident(self, op_id: str, step: StepSoFar, state: IntentState, record: Record) -> None:
        """Add an incident for a failed step or an unknown outcome; remove it if the step turns out to be done."""
        change = self._changes.get(step.run.id)
        # a step on no VM of a night, such as a setting, counts for all nights of its run
        owners = [change] if change is not None else [step.vm.night] if step.vm is not None else step.run.nights
        went_wrong = state in (IntentState.FAILED, IntentState.UNKNOWN)
        noun = _STEP_NOUNS.get(step.kind, "setting")
        event = f"{noun} failed" if state is IntentState.FAILED else f"{noun}: outcome unknown"
        for owner in owners:
            owner.incidents.pop(op_id, None)
            if went_wrong:
                owner.incidents[op_id] = Incident(record.at, step.name, event, record.body["reason"])
        if change is not None:
            change.subjects[step.name] = went_wrong

    def _take_return(self, record: Record) -> None:
        """Note that a VM was seen in its state before the night, and the returns in progress as runs of that night."""
        night = self._nights.get(record.body["night"])
        vm = night.vms.get(record.body["vm"]) if night is not None else None
        if vm is None:
            return
        if not vm.given_up:
            vm.note_back(record.at, by_itself=True)
        vm.closed = True
        for run in self._runs.values():
            if run.returns:
                vm.night.add_run(run)

    def _take_giving_up(self, record: Record) -> None:
        """Note that an admin gave up a host or VM or, if `given_up` is False, that it is back."""
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

    def _take_end(self, record: Record) -> None:
        """Note the end of a run, and whether another run ended it because it was cut off."""
        run = self._runs.pop(record.run, None)
        if run is None:
            return
        run.ends = record.at
        # older journals lack `cut_off`: there, a run that continues begins before it ends the run that was cut off
        was_continued = run.kind in ROTATION_RUNS and any(
            other_run.kind in ROTATION_RUNS and other_run.begins >= run.begins for other_run in self._runs.values()
        )
        run.cut_off = record.body.get("cut_off", False) or was_continued
        self._steps = {op: step for op, step in self._steps.items() if step.run is not run}
        if run.cut_off:
            reason = "it was killed or lost vCenter, and another run continued it"
            for night in run.nights:
                night.incidents[f"cut off {run.id}"] = Incident(record.at, run.kind, "cut off", reason)


_HANDLERS: Final[Mapping[Kind, Callable[[PastEventsReader, Record], None]]] = {
    Kind.BEGUN: PastEventsReader._take_begin,
    Kind.ORIGINAL: PastEventsReader._take_original,
    Kind.INTENT: PastEventsReader._take_intent,
    Kind.SETTLED: PastEventsReader._take_outcome,
    Kind.RETURNED: PastEventsReader._take_return,
    Kind.GIVEN_UP: PastEventsReader._take_giving_up,
    Kind.ENDED: PastEventsReader._take_end,
}
"""Other kinds of record do not matter for the past."""


def read_events(vcenter: str, records: Iterable[Record]) -> PastEventsReader:
    """Return a reader that has processed these records, which must be all records of the vCenter."""
    reader = PastEventsReader(vcenter)
    for record in records:
        reader.take(record)
    return reader


def _clamp_moment(shown_text: str | None, intended: datetime, noted: datetime) -> datetime:
    """Return when a step took effect: vCenter's time, limited to the span from its intent to its recorded outcome."""
    if shown_text is None:
        return noted
    return min(max(datetime.fromisoformat(shown_text), intended), noted)


def _command_of(run: RunSoFar) -> str:
    """Return the command that began a change."""
    if run.kind != CHANGE:
        return _COMMANDS.get(run.kind, run.kind)
    try:
        return load_change_order(run.order).verb
    except StateDamaged:
        return run.kind
