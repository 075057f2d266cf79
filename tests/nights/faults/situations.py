"""Situations: nights in small worlds in which one thing is as a night does not expect it, again and again.

The schedule of a seed mixes many faults, and one of them seldom meets the few steps that it matters to. Here each night
has one situation and nothing else, aimed at the steps of the engine, so that a few dozen nights show what it makes of
that. Each draws from dice of its own. `test_situations.py` plays them; they judge the drawn mutants too.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from pyVmomi import vim

from gpuops.errors import GpuopsError
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import agreed
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation import Policy
from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.core.steps import SuspendVm
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts
from gpuops.sim.core.call import Call
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.catalogue import rules_of
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.inventory.registration import new_uuid
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events import vms as others
from gpuops.sim.state.vm_state import DynamicBacking, PciDevice, Power
from tests.nights.faults.cron import MORNING
from tests.nights.faults.epidemics import READ_FOR_IDLE
from tests.nights.faults.event import Event
from tests.nights.playing.night import Nightly
from tests.nights.playing.night_world import wakes
from tests.nights.playing.played import Played
from tests.nights.playing.processes import Killed
from tests.nights.world.worlds import DAY, EVENING, LOCK, Site, Size, arranged

SOMETHING: Final = Rule(Effect.HAPPEN, happening="vm.used")
"""What others' doings are told with here."""
LATER: Final = timedelta(minutes=25)


class Situated(Nightly):
    """A night in the situation that its class is about."""

    size = Size(3, 12, 6)
    policy: Mapping[str, Any] = {}
    """What is not as usual about the site."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}:{type(self).__name__}")
        site = self.place(seed)
        super().__init__(seed, self.events(site), site)
        self._in_the_morning = site.policy

    def place(self, seed: int) -> Site:
        return arranged(seed, self.size, **self.policy)

    def events(self, site: Site) -> Sequence[Event]:
        """What goes wrong; an event without rules and target says only that something does."""
        return ()

    def arrange(self) -> None:
        """Before the evening."""

    def met(self, before: bool, step: str, name: str) -> None:
        """Before and after each request, and each append to the journal (`append`)."""

    def _played(self) -> Played:
        with self.world.lock:
            self.arrange()
        return super()._played()

    def _boundary(self, what: str) -> None:
        super()._boundary(what)
        when, step, *name = what.split()
        if name and name[-1] == "append":
            step = "append"
        self.met(when == "before", step, name[-1] if name else "")

    def named(self, name: str) -> VirtualMachine | None:
        return next((vm for vm in self.world.by_type("VirtualMachine") if vm.name == name), None)

    def desktops(self) -> list[VirtualMachine]:
        return [vm for vm in self.world.by_type("VirtualMachine") if vm.name.startswith("desktop-")]

    def at(self, after_s: float, act: Callable[[], object]) -> None:
        self.world.clock.schedule(after_s, act, background=True)


class Woken(Situated):
    """A broker that knows nothing of the night starts each desktop soon after it was suspended."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("H2")]

    def met(self, before: bool, step: str, name: str) -> None:
        vm = self.named(name)
        if not before and step == "SuspendVm" and vm is not None:
            for after_s in (30.0, 60.0, 90.0, 150.0):
                self.at(after_s, partial(wakes, vm))


class LoggedOff(Situated):
    """Desktops are shut down by their users, one after the other, while others are taken."""

    def place(self, seed: int) -> Site:
        return arranged(seed, self.size, floor=self.rng.choice([2, 3, 4, 5, 6]), per_host=1, full=True)

    def events(self, site: Site) -> Sequence[Event]:
        numbers = self.rng.sample(range(1, 13), 8)
        return [
            Event("V7", rules_of("V7", {"target": f"desktop-{each:03}", "at_s": self.rng.uniform(5, 400)}))
            for each in numbers
        ]


class Failing(Situated):
    """No suspend succeeds, on whatever host, from the first or from a later one on; now and then runs are killed
    before."""

    policy: Mapping[str, Any] = {"per_host": 1, "full": True}

    def events(self, site: Site) -> Sequence[Event]:
        killed = [Event("K1", point=self.rng.randint(2, 30), target=RunKind.NIGHT) for _ in range(3)]
        fails = Event("V1", rules_of("V1", {"times": None, "skip": self.rng.choice([0, 0, 1, 2, 4, 6])}))
        return [fails, *self.rng.choice([[], killed])]


class Refused(Situated):
    """From some step on vCenter refuses whatever takes something, or now and then one of them."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        changes = {"fault": "NoPermission", "method": self.rng.choice(["SuspendVM_Task", "PowerOnVM_Task"])}
        times = self.rng.choice([None, None, 1])
        every, skip = self.rng.choice([1, 1, 2]), self.rng.choice([0, 1, 2])
        return [Event("V2", rules_of("V2", {**changes, "times": times, "every": every, "skip": skip}))]


class Unmarked(Situated):
    """Somebody takes the markers off desktops that are away."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V6")]

    def arrange(self) -> None:
        for vm in self.desktops():
            if self.rng.random() < 0.7:
                self.at(self.rng.uniform(300, 30_000), partial(self._unmark, vm))

    def _unmark(self, vm: VirtualMachine) -> None:
        if vm.is_registered and vm.state.power is Power.SUSPENDED:
            key = self.world.custom_fields.define(self.site.policy.marker)
            call = somebody(self.world, "SetField")
            self.world.get("CustomFieldsManager").SetField(call, vim.VirtualMachine(vm.moid), key, "")


class LeftOver(Situated):
    """Another machine's night of yesterday left markers, and desktops suspended; this one's journal knows of none."""

    size = Size(3, 12, 5)

    def place(self, seed: int) -> Site:
        return arranged(seed, self.size, left_over=5, leased=self.rng.random() < 0.6)

    def events(self, site: Site) -> Sequence[Event]:
        point = self.rng.randint(2, 40)
        killed = Event("K1", point=point, target=RunKind.NIGHT)
        return self.rng.choice([[Event("V6")], [Event("V6"), killed]])  # what was left over may have no room any more

    def _evening(self) -> Sequence[tuple[RunKind, Any]]:
        kind = self.rng.randrange(4)
        if kind == 3:
            return [
                (RunKind.DAY, EVENING),
                (RunKind.DAY, EVENING + timedelta(minutes=4)),
                (RunKind.NIGHT, EVENING + LATER),
            ]
        if kind == 0:
            return [(RunKind.DAY, EVENING), (RunKind.NIGHT, EVENING + timedelta(minutes=25))]
        night = [(RunKind.NIGHT, EVENING), (RunKind.DAY, EVENING + timedelta(minutes=4))]
        return [*night, (RunKind.NIGHT, EVENING + timedelta(minutes=20))] if kind == 1 else [(RunKind.NIGHT, EVENING)]


class Reidentified(Situated):
    """While desktops are away they get another instance uuid, or are deleted, or are made anew."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V4")]

    def arrange(self) -> None:
        for vm in self.desktops():
            act = self.rng.choice([self._another_uuid, partial(others.delete, rule=SOMETHING), None])
            if act is not None:
                self.at(self.rng.choice([self.rng.uniform(20, 400), 20_000.0]), partial(self._happens, vm, act))

    def _happens(self, vm: VirtualMachine, act: Callable[[VirtualMachine], object]) -> None:
        if vm.is_registered and self.world.tasks.running(vm) is None:
            act(vm)

    def _another_uuid(self, vm: VirtualMachine) -> None:
        vm.state.instance_uuid = new_uuid(self.world)
        vm.configuration_changed(renamed=False)


class Redevised(Situated):
    """Desktops are given a DirectPath device after the plan was made: such a VM cannot be suspended, only shut down."""

    policy: Mapping[str, Any] = {"full": True, "directpath": "shut-down-guest"}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V6")]

    def arrange(self) -> None:
        for vm in self.desktops():
            if self.rng.random() < 0.6:
                self.at(self.rng.uniform(5, 300), partial(self._devise, vm))

    def _devise(self, vm: VirtualMachine) -> None:
        if vm.state.power is Power.ON and self.world.tasks.running(vm) is None:
            device = PciDevice(13_077, 77, DynamicBacking(((0x10DE, 0x2235),)))
            vm.state.devices = (*vm.state.devices, device)
            vm.configuration_changed(renamed=False)
            self.played.unsuspendable[vm.moid] = self.world.clock.now()


class ShutDown(Situated):
    """Desktops have a GPU by DirectPath I/O each, and give it up by shutting down. Nothing else is wrong, or somebody
    starts them again, or powers them off first, or a guest shuts down when nobody waits for it any more, or a run is
    killed, or the journal is lost before the morning."""

    policy: Mapping[str, Any] = {"passthrough": True, "directpath": "shut-down-guest"}

    def events(self, site: Site) -> Sequence[Event]:
        killed = Event("K1", point=self.rng.randint(2, 60), target=RunKind.NIGHT)
        self.also = self.rng.choice(["", "", "started", "stopped", "lost", "slow"])
        because = {"started": ["H2"], "stopped": ["V7"], "lost": ["V6"], "slow": ["V3"]}.get(self.also, [])
        return [*map(Event, because), *([killed] if self.rng.random() < 0.4 else [])]

    def arrange(self) -> None:
        if self.also == "lost":
            self.at((MORNING - EVENING).total_seconds() - 5, self.lose_journal)

    def _played(self) -> Played:
        takes_s = self.rng.uniform(300, 3000) if self.also == "slow" else power.GUEST_SHUTDOWN_S
        with patch.object(power, "GUEST_SHUTDOWN_S", takes_s):
            return super()._played()

    def met(self, before: bool, step: str, name: str) -> None:
        vm = self.named(name)
        if before or step != "ShutDownGuest" or vm is None or not name.startswith("desktop-"):
            return
        if self.also == "started":
            self.at(self.rng.choice([30.0, 90.0]), partial(others.power_on, vm, SOMETHING))
        elif self.also == "stopped" and self.rng.random() < 0.5:
            self.at(self.rng.uniform(1, 24), partial(others.power_off, vm, SOMETHING))


class Overtaken(Situated):
    """Just before a request is sent, or while the one before it is under way, somebody else does the very same."""

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("G1")]

    def met(self, before: bool, step: str, name: str) -> None:
        acts = {"PowerOnVm": others.power_on, "ResumeVm": others.power_on, "SuspendVm": others.suspend,
                "PowerOffVm": others.power_off}  # fmt: skip
        vm = self.named(name)
        if before and step in acts and vm is not None and self.rng.random() < 0.4:
            acts[step](vm, SOMETHING)
            if self.rng.random() < 0.5:
                self.world.clock.advance(60)
        elif not before and step == "SuspendVm" and self.rng.random() < 0.2:
            idle = [each for each in self.desktops() if each.state.power is Power.ON and each.name not in self._early]
            for each in idle[:1]:
                others.suspend(each, SOMETHING)
                self._early[each.name] = self._run

    def arrange(self) -> None:
        self._early: dict[str, int] = {}
        """Desktops that somebody else suspended before their turn, and the run that was under way."""

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        super()._half(half, policy)
        if not self.played.told:
            return
        report, _ = self.played.told[-1]
        for outcome in report.outcomes:
            name = self.played.names.get(outcome.step.vm, "")
            skipped = isinstance(outcome.step, SuspendVm) and outcome.verdict is Verdict.SKIPPED
            under_way = outcome.reason.startswith("a task is running")
            if skipped and not under_way and self._early.get(name) == self._run:
                self.played.foretold.append(f"{name} was suspended before its turn, and is told: {outcome.reason}")


class Silent(Situated):
    """A request is not answered, whether it arrived or not, and its VM is not what it was when anybody looks again."""

    policy: Mapping[str, Any] = {"in_flight": 2}

    def place(self, seed: int) -> Site:
        return arranged(seed, Size(3, self.rng.choice([4, 12]), 6), in_flight=2)

    def events(self, site: Site) -> Sequence[Event]:
        self.step, method = self.rng.choice(
            [("RelocateVm", "RelocateVM_Task")] * 3 + [("SuspendVm", "SuspendVM_Task"), ("PowerOnVm", "PowerOnVM_Task")]
        )
        fault = self.rng.choice(["T1", "T1", "T2", "T7"])
        return [Event(fault, rules_of(fault, {"method": method, "times": self.rng.choice([1, 2, None])}))]

    def met(self, before: bool, step: str, name: str) -> None:
        vm = self.named(name)
        if before or step != self.step or vm is None or self.rng.random() < 0.2:
            return
        act = self.rng.choice(
            [others.delete, others.move_to_another_host, others.move_to_another_host, others.rename, others.power_off]
        )
        act(vm, SOMETHING)


class Unread(Situated):
    """The journal is lost in the night, and of some VMs markers, or other properties, are not told until later."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        until = self.rng.choice([20, 60, 200])
        told, fault = self.rng.choice([*[("customValue", "NoPermission")] * 3, *[("runtime.host", "")] * 2])
        names = self.rng.choice(["*desktop-*", "*desktop-*[13579]", "*desktop-00*"])
        hides = {"target": names, "property": told, "fault": fault, "times": until}
        self.hidden = rules_of("A10", hides)[0]
        return [Event("V6" if told == "customValue" else "A10")]

    def arrange(self) -> None:
        self._since = MORNING - EVENING
        self.at(self._since.total_seconds() - 5, self._lose)
        for vm in self.desktops():
            if self.rng.random() < 0.4:
                self.at(self.rng.uniform(900, 20_000), partial(self._rename, vm))

    def _rename(self, vm: VirtualMachine) -> None:
        """To what no pool selects."""
        before = vm.name
        vm.rename(f"old-{before}")
        vm.configuration_changed(renamed=True)
        call = somebody(self.world, "Rename_Task")
        self.world.ledger.record(call, vm, before={"name": before}, after={"name": vm.name})

    def _lose(self) -> None:
        if self.rng.random() < 0.8:
            self.lose_journal()
        self.world.injector.add(self.hidden)


class ReadAnew(Situated):
    """The clock of vCenter is set while desktops are taken."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        change = {"method": "*", "at_s": self.rng.uniform(1, 120), "delay_s": self.rng.choice([-7200, -90, 90, 7200])}
        return [Event("K7", rules_of("K7", change))]


class Late(Situated):
    """A night begins shortly before its return, and its suspends take ten times as long."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V3", rules_of("V3", {"times": None}))]

    def _evening(self) -> Sequence[tuple[RunKind, datetime]]:
        return [(RunKind.NIGHT, EVENING + timedelta(hours=9, minutes=self.rng.uniform(-10, 14)))]


class SlowDisk(Situated):
    """Now and then an append to the journal takes longer than a look may be old; nothing else is wrong."""

    policy: Mapping[str, Any] = {"full": True}

    def met(self, before: bool, step: str, name: str) -> None:
        if before and step == "append" and self.rng.random() < 0.15:
            self.world.clock.advance(self.rng.uniform(31, 45))


class SlowDiskAtWork(SlowDisk):
    """The same, and meanwhile users sit down at their desktops."""

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("H1")]

    def met(self, before: bool, step: str, name: str) -> None:
        if before and step == "append" and self.rng.random() < 0.4:
            for vm in self.rng.sample(self.desktops(), 2):
                self._sits_down(vm)
            self.world.clock.advance(self.rng.uniform(31, 45))


class Forgotten(Situated):
    """The night is killed when it has just asked for a start, and nobody goes on with it: vCenter has long forgotten
    the task when the return comes."""

    policy: Mapping[str, Any] = {"full": True}
    size = Size(2, 4, 3)

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("K1")]

    def arrange(self) -> None:
        self._left = self.rng.randint(1, 2)

    def met(self, before: bool, step: str, name: str) -> None:
        if not before and step == "PowerOnVm" and self._running == RunKind.NIGHT:
            self._left -= 1
            if self._left == 0:
                raise Killed(name)

    def _to_its_end(self, half: RunKind, policy: Policy | None = None) -> None:
        self._half(half, policy)


class TakenOver(Situated):
    """When the night is over, somebody starts ML VMs that it had, and suspends desktops that it brought back."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("G1")]

    def arrange(self) -> None:
        later_s = (MORNING - EVENING).total_seconds() + 3600
        for vm in self.world.by_type("VirtualMachine"):
            act = others.power_on if vm.name.startswith("ml-") else others.suspend
            if self.rng.random() < 0.3:
                self.at(later_s + self.rng.uniform(0, 600), partial(act, vm, SOMETHING))


class Hooked(Situated):
    """Nothing is wrong; the guests of ML VMs keep their work, each in its own way."""

    policy: Mapping[str, Any] = {"hooked": True}
    size = Size(2, 6, 5)


class Calm(Situated):
    """Nothing is wrong, and there is a lock VM."""

    policy: Mapping[str, Any] = {"leased": True, "full": True}
    size = Size(3, 12, 6)


class Paused(Situated):
    """The machine at work is paused in its evening, once or twice, while another one acts."""

    policy: Mapping[str, Any] = {"leased": True, "full": True}

    def events(self, site: Site) -> Sequence[Event]:
        points = sorted(self.rng.sample(range(4, 60), self.rng.choice([1, 1, 2])))
        return [
            Event("K6", point=point, at_s=float(self.rng.choice([70, 200, 400])), target=RunKind.NIGHT)
            for point in points
        ]


class Reverted(Situated):
    """The lock VM is reverted to what it was in the evening while desktops are brought back."""

    policy: Mapping[str, Any] = {"leased": True, "full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("K11", point=self.rng.randint(3, 40), target=RunKind.DAY)]


class SetBack(Situated):
    """Before a return, or in the middle of it, the lock VM is reverted, and vCenter's clock set back to before the
    evening. The journal is lost as well, or another machine begins to return just then, and is killed."""

    policy: Mapping[str, Any] = {"leased": True, "full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("K11")]

    def arrange(self) -> None:
        self._left = self.rng.choice([0, self.rng.randint(2, 30)])
        self._also = self.rng.choice(["", "lost", "taken", "taken"])

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        if half is RunKind.DAY and self._left == 0:
            self._left = -1
            self._happens()
        super()._half(half, policy)

    def met(self, before: bool, step: str, name: str) -> None:
        if self._running == RunKind.DAY and not self._machines.other_acts and self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._happens()

    def _happens(self) -> None:
        self._machines.revert()
        self.world.skew = timedelta(hours=-self.rng.uniform(1, 12))
        if self._also == "lost":
            self.lose_journal()
        elif self._also == "taken":
            with self._another_process():
                self._machines.begin_a_return(self._states / "other", self._connect, self.rng.randint(2, 12))


class LockGone(Situated):
    """Somebody deletes the lock VM, takes its name, or writes something else where the lease is: before the evening, or
    while desktops are brought back."""

    policy: Mapping[str, Any] = {"leased": True, "full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V4")]

    def arrange(self) -> None:
        self._act = self.rng.choice([others.delete, others.rename, None])
        self._left = self.rng.choice([0, self.rng.randint(2, 20)])
        if self._left == 0:
            self._happens()

    def met(self, before: bool, step: str, name: str) -> None:
        if self._running == RunKind.DAY and name != LOCK and self._left:
            self._left -= 1
            if self._left == 0:
                self._happens()

    def _happens(self) -> None:
        vm = self.named(LOCK)
        if self._act is None:
            self._machines.overwrite()
        elif vm is not None:
            self._act(vm, SOMETHING)


class LockBusy(Situated):
    """From some moment of a return on, the lock VM takes no change any more."""

    policy: Mapping[str, Any] = {"leased": True, "full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("A1")]

    def arrange(self) -> None:
        self._left = self.rng.randint(2, 20)
        self._refuses = replace(
            rules_of("A2")[0], method="ReconfigVM_Task", target=LOCK, fault="TaskInProgress", times=None
        )

    def met(self, before: bool, step: str, name: str) -> None:
        if self._running == RunKind.DAY and name != LOCK:
            self._left -= 1
            if self._left == 0:
                self.world.injector.add(self._refuses)


class NextNight(Situated):
    """A night, its morning, and the next night: meanwhile desktops that were away were deleted, or the lock VM was."""

    def place(self, seed: int) -> Site:
        return arranged(seed, self.size, full=True, leased=self.rng.random() < 0.5)

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("V4")]

    def arrange(self) -> None:
        for vm in self.desktops():
            if self.rng.random() < 0.3:
                self.at(self.rng.uniform(300, 30_000), partial(self._is_deleted, vm))

    def _is_deleted(self, vm: VirtualMachine) -> None:
        if vm.is_registered and self.world.tasks.running(vm) is None:
            others.delete(vm, SOMETHING)

    def _evening(self) -> Sequence[tuple[RunKind, datetime]]:
        return [(RunKind.NIGHT, EVENING), (RunKind.DAY, MORNING), (RunKind.NIGHT, EVENING + DAY)]


class Teams(Situated):
    """Two nights that teams share, with weights and limits; ML VMs end by themselves and free GPUs again, and runs are
    killed now and then."""

    size = Size(3, 12, 9)

    def place(self, seed: int) -> Site:
        draw = self.rng.choice
        teams = {
            name: {"weight": draw([1, 2, 3]), **({"at_most": most} if (most := draw(_AT_MOST)) else {})}
            for name in ("red", "green", "blue")[: draw([1, 2, 3, 3])]
        }
        shared = {"by": "attribute:team", "half_life_days": draw([0.5, 7]), "teams": teams}
        return arranged(seed, self.size, full=draw([True, True, False]), relocate=None, shared=json.dumps(shared))

    def events(self, site: Site) -> Sequence[Event]:
        killed = [Event("K1", point=self.rng.randint(1, 60)) for _ in range(self.rng.choice([0, 0, 1, 2]))]
        return [Event("A1"), *killed]

    def arrange(self) -> None:
        for vm in self.world.by_type("VirtualMachine"):
            if vm.name.startswith("ml-") and self.rng.random() < 0.3:
                self.at(self.rng.uniform(3600, 30_000), partial(self._is_done, vm))

    def _is_done(self, vm: VirtualMachine) -> None:
        if vm.is_registered and vm.state.power is Power.ON and self.world.tasks.running(vm) is None:
            others.power_off(vm, SOMETHING)

    def _evening(self) -> Sequence[tuple[RunKind, datetime]]:
        later = [(RunKind.NIGHT, EVENING + LATER)] if self.rng.random() < 0.5 else []
        return [(RunKind.NIGHT, EVENING), *later, (RunKind.DAY, MORNING), (RunKind.NIGHT, EVENING + DAY)]


_AT_MOST: Final[Sequence[dict[str, float]]] = (
    {},
    {},
    {"gpus": 1},
    {"gpus": 2, "gpu_hours_per_week": 18},
    {"gpu_hours_per_week": 12},
)


class Looked(Situated):
    """Somebody looks at what each run would do, just before it does; runs are killed now and then."""

    def place(self, seed: int) -> Site:
        return arranged(seed, self.size, leased=self.rng.random() < 0.3, in_flight=self.rng.choice([1, 4]))

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("K1", point=self.rng.randint(1, 60)) for _ in range(self.rng.choice([1, 2, 3]))]

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        under_way: list[Any] = self.world.tasks.unfinished()
        seen, entries = self._foreseen(half), len(self.world.ledger)
        if len(self.world.ledger) != entries:
            self.played.foretold.append("looking at it changed something")
        told = len(self.played.told)
        super()._half(half, policy)
        if seen is not None and len(self.played.told) > told:
            self.played.foretold += differences(seen, self.played.told[-1][0], settled=not under_way)

    def _foreseen(self, half: RunKind | None) -> Report | None:
        vcenter: Any = self._connect(lambda what: None)
        try:
            place = self._place(vcenter)
            if half is None:
                return resume(place, apply=False, consent=agreed)
            policy = self.site.policy if half is RunKind.NIGHT else self._in_the_morning
            return rotate(half, policy, place, apply=False, consent=agreed)
        except GpuopsError:
            return None
        finally:
            vcenter.close()


class Stated(Situated):
    """Somebody asks for `rotate status` before each run, with a policy or without, and others shut down, delete or
    suspend VMs of the night; now and then a run was killed, or the journal is lost."""

    def place(self, seed: int) -> Site:
        given_up_by: dict[str, Any] = self.rng.choice(
            [{"full": True}, {"full": True}, {"passthrough": True, "directpath": "shut-down-guest"}]
        )
        return arranged(seed, self.size, **given_up_by)

    def events(self, site: Site) -> Sequence[Event]:
        killed = Event("K1", point=self.rng.randint(2, 60), target=RunKind.NIGHT)
        self._lost = self.rng.random() < 0.3
        because = Event("V6" if self._lost else "V4")
        return self.rng.choice([[because], [because, killed]])

    def arrange(self) -> None:
        if self._lost:
            self.at((MORNING - EVENING).total_seconds() - 5, self.lose_journal)
            return
        for vm in self.world.by_type("VirtualMachine"):
            act = self.rng.choice([others.power_off, others.delete, others.suspend, others.power_on, None, None])
            if act is not None and vm.name != LOCK:
                self.at(self.rng.uniform(300, 30_000), partial(self._is_changed, vm, act))

    def _is_changed(self, vm: VirtualMachine, act: Callable[[VirtualMachine, Rule], object]) -> None:
        if vm.is_registered and self.world.tasks.running(vm) is None:
            act(vm, SOMETHING)

    def _half(self, half: RunKind | None, policy: Policy | None = None) -> None:
        vcenter: Any = self._connect(lambda what: None)
        try:
            told = status(self._place(vcenter), self.rng.choice([self.site.policy, None]))
        finally:
            vcenter.close()
        self.played.foretold += (f"status: {said}" for each in told.vms if (said := self._wrongly(each)))
        super()._half(half, policy)

    def _wrongly(self, told: TakenVm) -> str:
        """What is not so of what `rotate status` says of a VM; empty where it is."""
        found = [vm for vm in self.world.by_type("VirtualMachine") if vm.state.instance_uuid == told.original.uuid]
        power = found[0].state.power if found else None
        taken = {Role.ML: Power.ON, Role.SHUT_DOWN: Power.OFF}.get(told.original.role, Power.SUSPENDED)
        said = next((state for words, state in SAID.items() if told.reason.startswith(words)), power)
        true = {
            Whereabouts.AWAY: power is taken,
            Whereabouts.BACK: power is not None and power is not taken and told.original.taken,
            Whereabouts.LOST: power is Power.OFF,
            Whereabouts.GONE: power is None,
            Whereabouts.UNTOUCHED: power is not None or not told.original.taken,
        }
        if true.get(told.whereabouts, True) and said is power:
            return ""
        return f"{told.original.name} is {told.whereabouts} ({told.reason}), and is {power}"


SAID: Final = {
    "is running": Power.ON,
    "runs": Power.ON,
    "started in": Power.ON,
    "suspended in": Power.SUSPENDED,
    "was suspended": Power.SUSPENDED,
    "shut down in": Power.OFF,
    "is powered off": Power.OFF,
}
"""What state of a VM is told by reasons that begin so."""


class MarkersStay(Situated):
    """No return can clear a marker; when all are back, somebody starts ML VMs that the night had."""

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("G1")]

    def arrange(self) -> None:
        refuses = replace(rules_of("A2")[0], method="SetField", fault="TaskInProgress", times=None)
        morning_s = (MORNING - EVENING).total_seconds()
        self.at(morning_s - 5, partial(self.world.injector.add, refuses))
        for vm in self.world.by_type("VirtualMachine"):
            if vm.name.startswith("ml-"):
                self.at(morning_s + self.rng.uniform(2400, 3000), partial(others.power_on, vm, SOMETHING))


class Belated(Situated):
    """Suspends get no reply and leave no task, and arrive when a return has looked, soon after the night."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        lost = {"method": "SuspendVM_Task", "times": None, "skip": self.rng.choice([0, 1, 2])}
        return [Event("T1", rules_of("T1", lost))]

    def arrange(self) -> None:
        self._on_the_way: set[str] = set()

    def _evening(self) -> Sequence[tuple[RunKind, datetime]]:
        return [(RunKind.NIGHT, EVENING), (RunKind.DAY, EVENING + timedelta(minutes=4))]

    def met(self, before: bool, step: str, name: str) -> None:
        vm = self.named(name)
        if before or step != "SuspendVm" or vm is None or name in self._on_the_way:
            return
        if vm.state.power is Power.ON and self.world.tasks.running(vm) is None:
            self._on_the_way.add(name)
            call = replace(somebody(self.world, "SuspendVM_Task"), operation_id=self.played.asks[-1][0])
            self.at(self.rng.uniform(360, 560), partial(self._arrives, vm, call))

    def _arrives(self, vm: VirtualMachine, call: Call) -> None:
        if vm.is_registered and vm.state.power is Power.ON and self.world.tasks.running(vm) is None:
            power.suspend(vm, call)


class Queued(Situated):
    """Somebody begins a task of a desktop between the look and the suspend, which vCenter queues or a host refuses; by
    the end of a long one somebody works with that desktop."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        return [Event("A1")]

    def arrange(self) -> None:
        self.world.tasks.queues = self.rng.random() < 0.8

    def met(self, before: bool, step: str, name: str) -> None:
        vm = self.named(name)
        if not before or step != "SuspendVm" or vm is None or self.rng.random() < 0.5:
            return
        for_s = self.rng.choice([10.0, 30.0, 1800.0])
        others.start_task(vm, replace(SOMETHING, for_s=for_s))
        if for_s > LATER.total_seconds():
            self.at(LATER.total_seconds(), partial(self._works_from_afar, vm))


class Untold(Situated):
    """Of desktops that are worked with, how much they are used is not told."""

    policy: Mapping[str, Any] = {"full": True}

    def events(self, site: Site) -> Sequence[Event]:
        self._at_work = {f"desktop-{each:03}" for each in self.rng.sample(range(1, 13), 4)}
        return [
            Event("A10", rules_of("A10", {"target": desktop, "property": told, "times": None}))
            for desktop in sorted(self._at_work)
            for told in READ_FOR_IDLE
        ]

    def arrange(self) -> None:
        for vm in self.desktops():
            if vm.name in self._at_work:
                self._works_from_afar(vm)


def differences(seen: Report, done: Report, *, settled: bool = True) -> list[str]:
    """Where a report of what would be done and the one of what was done are not the same.

    Where tasks of a killed run are still under way (not `settled`) their effects come between the two, and the reasons
    for which VMs stay tell of them: the free space of a datastore, for one.
    """
    found = []
    for what, of in (
        ("steps", lambda report: {re.sub(r" lease=\d+", "", str(step)) for step in report.plan.steps}),
        ("what is left out", lambda report: {(each.subject, each.rule) for each in report.plan.unmet}),
        ("why", lambda report: {(each.subject, each.chosen, each.reason) for each in report.plan.choices}),
        ("refusals", lambda report: {each.rule for each in report.plan.rejections}),
    ):
        looked, was = of(seen), of(done)
        if looked != was and (settled or what != "why"):
            found.append(f"{what}: {sorted(map(str, looked ^ was))[0]}")
    return found


SITUATIONS: Final[Mapping[str, type[Situated]]] = {
    each.__name__: each
    for each in (
        Woken, LoggedOff, Failing, Refused, Unmarked, LeftOver, Reidentified, Redevised, ShutDown, Overtaken, Silent,
        Unread, Forgotten, ReadAnew, Late, SlowDisk, SlowDiskAtWork, TakenOver, Hooked, Calm, Paused, Reverted, SetBack,
        LockBusy, LockGone, NextNight, Looked, Stated, MarkersStay, Belated, Queued, Untold,
        Teams,
    )
}  # fmt: skip
