"""Night: one seed from evening to morning, by the engine itself: cron, kills, an operator who resumes, and the end.

Evening: `rotate night`, and `rotate resume` while it is cut off. Morning: `rotate day` every ten minutes. At seven all
faults stop; then the engine has its last say, and everything that the checkers need to know is written down.
There a VM or host that was registered again has the id of the evening (`FirstIds`); the night itself was played with
the ids that vCenter gave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pyVmomi import vmodl

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.execute.rotation.open_nights import abandon_vm
from gpuops.execute.rotation.rotation import restore
from gpuops.execute.runs import RunKind
from gpuops.execute.site import agreed
from gpuops.model.nights.rotation_policy import LATE, Policy
from gpuops.plan.core.plan import Report
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.host_admission import place
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.nights.at_once.machines import leases_of_a_seed
from tests.nights.at_once.several import Several, begins_first, returns_first, second_policy_later
from tests.nights.faults.cron import CRON, DEADLINE, MORNING, evening_of, patience_of
from tests.nights.faults.event import GIVEN_UP, Event
from tests.nights.playing.place import NightPlace, folder_in_memory
from tests.nights.playing.played import Played
from tests.nights.playing.processes import NightProcesses
from tests.nights.world.worlds import EVENING, policies_read_quickly

_PLAIN: Final = (int, float, bytes, type(None))


def first_ids(world: World) -> dict[str, str]:
    """The first id of each VM and host that has had several, by its later ones."""
    first: dict[str, str] = {}
    for change in world.ledger:
        if "moid" in change.after:
            first[str(change.after["moid"])] = first.get(str(change.before["moid"]), str(change.before["moid"]))
    return first


class FirstIds:
    """Writes values anew with first ids; what has none of the later ones stays the same object."""

    def __init__(self, first: Mapping[str, str]) -> None:
        self._first = first
        self._written: dict[int, tuple[Any, Any]] = {}
        """By identity: what it was, which is kept for its identity, and what it is now."""

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._first.get(value, value) if type(value) is str else value
        if isinstance(value, _PLAIN):
            return value
        if id(value) not in self._written:
            self._written[id(value)] = value, self._anew(value)
        return self._written[id(value)][1]

    def _anew(self, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            now = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            changed = {name: new for name, old in now.items() if (new := self.of(old)) is not old}
            return replace(value, **changed) if changed else value
        if isinstance(value, Mapping):
            written = {self.of(key): self.of(converted) for key, converted in value.items()}
            same = all(key in written and written[key] is converted for key, converted in value.items())
            return value if same else written
        if isinstance(value, list | tuple | set | frozenset):
            converted = [self.of(element) for element in value]
            if all(new is old for new, old in zip(converted, value, strict=True)):
                return value
            return type(value)(*converted) if hasattr(value, "_fields") else type(value)(converted)
        return value


def name_by_first_ids(world: World, first: Mapping[str, str]) -> None:
    """In the world itself: its ledger, and each VM and host that is there now, which is found under both ids."""
    ids = FirstIds(first)
    world.ledger._entries[:] = [ids.of(change) for change in world.ledger]
    for kind in ("VirtualMachine", "HostSystem"):
        for thing in list(world.by_type(kind)):
            if thing.moid in first:
                world.registry._objects[first[thing.moid]] = thing
                thing.moid = first[thing.moid]


_TOLD: Final = (
    "told", "told_elsewhere", "last", "last_elsewhere", "given_up", "asked_for", "cut_sessions", "in_spite",
    "unsuspendable",
)  # fmt: skip
"""What is written down of a night with ids of VMs."""
QUIET: Final = 2
"""After so many mornings in a row with nothing to do the next ones would have nothing to do either."""
RESUMES: Final = 5


class Nightly(NightProcesses):
    """The night of a seed, or of a seed's world under other events."""

    def play(self) -> Played:
        """The whole night, in one thread that holds the world's lock all the time."""
        with self.world.lock, policies_read_quickly(), leases_of_a_seed(self.played.seed):
            return self._play()

    def _play(self) -> Played:
        locking = any(event.fault == "K5" for event in self.played.events)
        if not locking and self.site.policy.lock_vm is None:
            return self._play_night()
        with folder_in_memory() as locks:
            self._states = locks
            self._locks = self._states if locking else None
            return self._play_night()

    def _play_night(self) -> Played:
        with self.world.lock:
            self._let_happen()
        for half, moment in self._evening():
            other_first = self._second is not None and half is RunKind.NIGHT and begins_first(self.played.seed)
            if self._second is not None and other_first:
                self._other_night(moment)
                moment += self._second.later
            self._wait_until(moment)
            self._to_its_end(half)
            if half is RunKind.NIGHT and not other_first:
                self._other_night(moment + (self._second.later if self._second is not None else timedelta()))
        self._wait_until(MORNING)
        quiet = 0
        while self.world.clock.now() < DEADLINE and quiet < QUIET:
            self._let_people_act()
            quiet = quiet + 1 if self._mornings() else 0
            self._wait_until(self.world.clock.now() + CRON)
        self._wait_until(DEADLINE)
        with self.world.lock:
            self._calm()
        self._mornings()
        self._wait_until(self.world.clock.now() + LATE)  # what was lost may come until then, and is waited for
        self._mornings()
        before = len(self.world.ledger)
        self._mornings()
        self.played.second = sum(
            1
            for entry in list(self.world.ledger)[before:]
            if entry.operation_id and not self.played.is_lock_vm(entry.moid)
        )
        self._tally()
        return self.played

    def _evening(self) -> Iterable[tuple[RunKind, datetime]]:
        return evening_of(self.played.seed)

    def _other_night(self, moment: datetime) -> None:
        """The night of the other policy, or of the other machine."""
        if self._second is not None:
            self._wait_until(moment)
            with self._on_the_other_machine():
                self._to_its_end(RunKind.NIGHT)
        elif self.site.several is Several.POLICIES:
            self._wait_until(moment + second_policy_later(self.played.seed))
            self._to_its_end(RunKind.NIGHT, self.site.policies[1])

    def _mornings(self) -> bool:
        """A return on each machine; whether none of them has anything left to do."""
        if self._second is None:
            return self._morning()
        first = returns_first(self.played.seed)
        return all([self._morning(other_machine=first), self._morning(other_machine=not first)])

    def _morning(self, *, other_machine: bool = False) -> bool:
        if not other_machine:
            self._half(RunKind.DAY)
            return self._nothing_to_do(self.played.last)
        with self._on_the_other_machine():
            self._half(RunKind.DAY)
            return self._nothing_to_do(self.played.last_elsewhere)

    @contextmanager
    def _on_the_other_machine(self) -> Iterator[None]:
        self._machine = 1
        try:
            yield
        finally:
            self._machine = 0

    def _let_people_act(self) -> None:
        """P1, P2: commands of people about one VM, whose time has come."""
        passed_s = (self.world.clock.now() - EVENING).total_seconds()
        for event in [event for event in self._people if event.at_s <= passed_s]:
            self._people.remove(event)
            if event.fault == GIVEN_UP:
                self._process("rotate give-up", partial(self._give_up, event.target))
            else:
                self._process(RunKind.RESTORE.value, partial(self._ask_for, event.target))

    def _give_up(self, name: str, place: NightPlace) -> None:
        abandoned = abandon_vm(place, name, None, apply=True, consent=lambda means: None)
        self.played.given_up |= {thing.ref for thing in abandoned.things}

    def _ask_for(self, name: str, place: NightPlace) -> Report:
        refs = (vm.moid for vm in self.world.by_type("VirtualMachine") if vm.name == name)
        self.played.asked_for |= set(refs)
        return restore(self.site.policy, place, (name,), from_markers=False, apply=True, consent=agreed)

    def _to_its_end(self, half: RunKind, policy: Policy | None = None) -> None:
        """A half, and `rotate resume` while it is cut off."""
        self._half(half, policy)
        left_to_cron = half is RunKind.DAY and any(event.target == half for event in self.played.events)
        for _ in range(RESUMES):
            if left_to_cron or self.played.calls[-1][1] in ("done", "refused"):
                break
            self._wait_until(self.world.clock.now() + patience_of(self.played.seed))
            self._half(None)

    def _nothing_to_do(self, report: Report | None) -> bool:
        return (
            self.played.calls[-1][1] == "done"
            and report is not None
            and not report.plan.steps
            and report.exit_code == 0
        )

    def _tally(self) -> None:
        self._go_by_first_ids()
        played = self.played
        for fault, ended in (("K1", "killed"), ("K2", "interrupted")):
            if any(event.fault == fault for event in played.events):
                played.struck[fault] = sum(1 for call in played.calls if call[1] == ended)
        if played.beside:
            played.struck["K5"] = len(played.beside)
        played.left_behind = frozenset(
            vm.moid
            for vm in self.world.by_type("VirtualMachine")
            if played.uuids.get(vm.moid) == vm.state.instance_uuid and _may_resume(vm)
        )
        steps: dict[str, str] = {}
        states: dict[str, str] = {}
        stores = [(self._store, 0), (self._other_store, 1), (self._machines.store, 2)]
        stores += [(store, 0) for store in self._lost_stores]
        every = [(number, list(zip(store.records, store.lengths, strict=True))) for store, number in stores]
        played.kept = sorted(
            (record_and_length for _, records in every for record_and_length in records),
            key=lambda record_and_length: record_and_length[1],
        )
        played.kept_on = {id(record): number for number, records in every for record, _ in records}
        by_people = {event.target for event in played.events if event.fault == GIVEN_UP}
        for record, _ in played.kept:
            if record.kind is Kind.GIVEN_UP and record.body.get("name") in by_people:
                played.given_up |= {record.body["ref"]}  # also where the process ended just after it had written that
            elif record.kind is Kind.INTENT:
                steps[record.body["op"]] = next(iter(record.body["step"].values()))["vm"]
            elif record.kind is Kind.SETTLED:
                states[record.body["op"]] = record.body["state"]
        played.doubtful = frozenset(vm for op, vm in steps.items() if states.get(op) != IntentState.FAILED)

    def _go_by_first_ids(self) -> None:
        first = first_ids(self.world)
        if not first:
            return
        ids, played = FirstIds(first), self.played
        name_by_first_ids(self.world, first)
        for store in (self._store, self._other_store, self._machines.store, *self._lost_stores):
            store.records[:] = [ids.of(record) for record in store.records]
        for name in _TOLD:
            setattr(played, name, ids.of(getattr(played, name)))


def _may_resume(vm: VirtualMachine) -> bool:
    """Whether it is suspended, and the simulator's own admission lets it run on its host."""
    if vm.state.power is not Power.SUSPENDED or not vm.is_registered or vm.world.tasks.running(vm):
        return False
    try:
        place(vm, vm.host())
    except vmodl.MethodFault:
        return False
    return True


def play(seed: int, events: Sequence[Event] | None = None) -> Played:
    """The night of a seed."""
    return Nightly(seed, events).play()
