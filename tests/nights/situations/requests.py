"""Situations of requests and answers: vCenter refuses, fails, is silent or late, does not tell, or tells another time;
the disk of the journal is slow. And of the lock VM, and of machines that share it: it is reverted, deleted or busy, a
machine is paused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation_policy import Policy
from gpuops.sim.core.call import Call
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events import vm_events as others
from gpuops.sim.state.vm_state import Power
from tests.nights.faults.cron import MORNING
from tests.nights.faults.event import Event
from tests.nights.situations.situated import SOMETHING, Situated
from tests.nights.world.worlds import EVENING, LOCK, Site, Size, arrange_site


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


class Silent(Situated):
    """A request is not answered, whether it arrived or not, and its VM is not what it was when anybody looks again."""

    policy: Mapping[str, Any] = {"in_flight": 2}

    def place(self, seed: int) -> Site:
        return arrange_site(seed, Size(3, self.rng.choice([4, 12]), 6), in_flight=2)

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
        property_name, fault = self.rng.choice([*[("customValue", "NoPermission")] * 3, *[("runtime.host", "")] * 2])
        names = self.rng.choice(["*desktop-*", "*desktop-*[13579]", "*desktop-00*"])
        hides = {"target": names, "property": property_name, "fault": fault, "times": until}
        self.hidden = rules_of("A10", hides)[0]
        return [Event("V6" if property_name == "customValue" else "A10")]

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
