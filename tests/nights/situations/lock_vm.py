"""Situations of the lock VM, and of machines that share it: it is reverted, deleted or busy, a machine is paused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation import Policy
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.outside_events import vms as others
from tests.nights.faults.event import Event
from tests.nights.situations.situated import SOMETHING, Situated
from tests.nights.world.worlds import LOCK, Site, Size


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
