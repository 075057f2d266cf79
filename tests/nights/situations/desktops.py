"""Situations of desktops: they are woken, shut down, renamed, deleted, used or given devices, before or after they are
taken, and another login does the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from pyVmomi import vim

from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import SuspendVm
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.inventory.managed_entity import new_uuid
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events import vm_events as others
from gpuops.sim.state.vm_state import DynamicBacking, PciDevice, Power
from tests.nights.faults.cron import MORNING
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import READ_FOR_IDLE
from tests.nights.playing.night_world import wakes
from tests.nights.playing.played import Played
from tests.nights.situations.situated import LATER, SOMETHING, Situated
from tests.nights.world.worlds import EVENING, Site, arrange_site


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
        return arrange_site(seed, self.size, floor=self.rng.choice([2, 3, 4, 5, 6]), per_host=1, full=True)

    def events(self, site: Site) -> Sequence[Event]:
        numbers = self.rng.sample(range(1, 13), 8)
        return [
            Event("V7", rules_of("V7", {"target": f"desktop-{number:03}", "at_s": self.rng.uniform(5, 400)}))
            for number in numbers
        ]


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
    starts them again, or powers them off first, or a guest shuts down when no run waits for it any more, or a run is
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

    def _play_night(self) -> Played:
        takes_s = self.rng.uniform(300, 3000) if self.also == "slow" else power.GUEST_SHUTDOWN_S
        with patch.object(power, "GUEST_SHUTDOWN_S", takes_s):
            return super()._play_night()

    def met(self, before: bool, step: str, name: str) -> None:
        vm = self.named(name)
        if before or step != "ShutDownGuest" or vm is None or not name.startswith("desktop-"):
            return
        if self.also == "started":
            self.at(self.rng.choice([30.0, 90.0]), partial(others.power_on, vm, SOMETHING))
        elif self.also == "stopped" and self.rng.random() < 0.5:
            self.at(self.rng.uniform(1, 24), partial(others.power_off, vm, SOMETHING))


class Overtaken(Situated):
    """Just before a request is sent, or during the one before it, another login makes the same request."""

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
            idle = [
                desktop
                for desktop in self.desktops()
                if desktop.state.power is Power.ON and desktop.name not in self._early
            ]
            for desktop in idle[:1]:
                others.suspend(desktop, SOMETHING)
                self._early[desktop.name] = self._run

    def arrange(self) -> None:
        self._early: dict[str, int] = {}
        """Desktops that another login suspended before their turn, and the run that was under way."""

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
                self.played.foretold.append(
                    f"{name} was suspended before its turn, and is reported as: {outcome.reason}"
                )


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
        self._at_work = {f"desktop-{number:03}" for number in self.rng.sample(range(1, 13), 4)}
        return [
            Event("A10", rules_of("A10", {"target": desktop, "property": property_name, "times": None}))
            for desktop in sorted(self._at_work)
            for property_name in READ_FOR_IDLE
        ]

    def arrange(self) -> None:
        for vm in self.desktops():
            if vm.name in self._at_work:
                self._works_from_afar(vm)
