"""Situations of a night that is not the only one: one before it left something or was killed, or one follows; teams
share several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation import Policy
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.outside_events import vms as others
from gpuops.sim.state.vm_state import Power
from tests.nights.faults.cron import MORNING
from tests.nights.faults.event import Event
from tests.nights.playing.place import Killed
from tests.nights.situations.situated import LATER, SOMETHING, Situated
from tests.nights.world.worlds import DAY, EVENING, Site, Size, arrange_site


class LeftOver(Situated):
    """Another machine's night of yesterday left markers, and desktops suspended; this one's journal knows of none."""

    size = Size(3, 12, 5)

    def place(self, seed: int) -> Site:
        return arrange_site(seed, self.size, left_over=5, leased=self.rng.random() < 0.6)

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


class Forgotten(Situated):
    """The night is killed when it has just sent a start, and is not resumed: vCenter has long forgotten the task when
    the return comes.
    """

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


class NextNight(Situated):
    """A night, its morning, and the next night: meanwhile desktops that were away were deleted, or the lock VM was."""

    def place(self, seed: int) -> Site:
        return arrange_site(seed, self.size, full=True, leased=self.rng.random() < 0.5)

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
        return arrange_site(seed, self.size, full=draw([True, True, False]), relocate=None, shared=json.dumps(shared))

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


class Hooked(Situated):
    """Nothing is wrong; the guests of ML VMs keep their work, each in its own way."""

    policy: Mapping[str, Any] = {"hooked": True}
    size = Size(2, 6, 5)
