"""Guests whose containers are made up: what runs, how far it is, what is saved, and what a guest refuses.

A container lives as long as its VM runs without a break, by the simulator's own ledger. Its files stay on the disk of
the VM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from gpuops.errors import StepFailed
from gpuops.extras.jobs.job import ContainerJob
from gpuops.model.guests.guest import CheckpointEnd, ContainerPhase, ContainerState
from gpuops.model.vcenter.vm import Vm
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World

MINUTE = timedelta(minutes=1)
BOOTS = 2 * MINUTE
"""So long after its start a guest answers."""


@dataclass
class MadeContainer:
    """One attempt at a job in a guest."""

    vm: str
    job: str
    attempt: str
    began: datetime
    ends: datetime
    """When it comes to its end, if it is let."""
    exit_code: int
    resumed: bool
    progress: timedelta
    """What was done when it began."""
    stopped: datetime | None = None
    """When somebody ended it."""
    cleared: bool = False


@dataclass
class Work:
    """What a job needs in all, and how it ends."""

    needs: timedelta
    exit_code: int = 0
    saved: timedelta = timedelta()


@dataclass
class MadeGuests:
    """Implements `JobGuests`. `point` is called before and after each call: where a run can be killed."""

    world: World
    work: dict[str, Work]
    rng: Random
    point: Callable[[str], None]
    troubled: bool = True
    """Whether guests refuse, and checkpoints fail."""
    made: list[MadeContainer] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)
    met: Counter[str] = field(default_factory=Counter)

    def start(self, vm: Vm, job: ContainerJob, attempt: str, *, resume: bool) -> None:
        self._reach_guest(vm, "start")
        if attempt in self.revoked:
            self.met["start of what is revoked"] += 1
        elif not any(container.attempt == attempt for container in self.made):
            work, now = self.work[job.name], self.now
            progress = work.saved if resume else timedelta()
            self.made.append(
                MadeContainer(
                    vm.ref, job.name, attempt, now, now + work.needs - progress, work.exit_code, resume, progress
                )
            )
        else:
            self.met["started twice"] += 1
        self._leave_guest("start")

    def look(self, vm: Vm, attempt: str) -> ContainerState:
        self._reach_guest(vm, "look")
        state = self.state(attempt)
        self.met[f"look {state.state}"] += 1
        self._leave_guest("look")
        return state

    def revoke(self, vm: Vm, attempt: str) -> ContainerState:
        self._reach_guest(vm, "revoke")
        if self._container_of(attempt) is None:
            self.revoked.add(attempt)
            self.met["revoked"] += 1
        self._leave_guest("revoke")
        return self.state(attempt)

    def output(self, vm: Vm, attempt: str, offset: int, limit: int) -> bytes:
        self._reach_guest(vm, "output")
        container = self._container_of(attempt)
        return b"" if container is None else output_until(container, self._until(container))[offset : offset + limit]

    def checkpoint(self, vm: Vm, job: ContainerJob, attempt: str, limit: timedelta) -> CheckpointEnd:
        self._reach_guest(vm, "checkpoint")
        drawn = self.rng.random() if self.troubled else 1.0
        if drawn < 0.1:
            self.met["checkpoint fails"] += 1
            return CheckpointEnd(saved=False, reason="exit code 1")
        takes = timedelta(seconds=self.rng.choice([5, 40, 90]))
        if drawn < 0.2 or takes > limit:
            self.world.clock.advance(limit.total_seconds())
            self.met["checkpoint too slow"] += 1
            return CheckpointEnd(saved=False, reason="took longer")
        self.world.clock.advance(takes.total_seconds())
        container = self._container_of(attempt)
        if container is None or self.state(attempt).state is not ContainerPhase.RUNNING:
            self.met["ended while it saved"] += 1
            return CheckpointEnd(saved=False, reason="it does not run")
        self.work[container.job].saved = container.progress + self.now - container.began
        self.met["saved"] += 1
        self._leave_guest("checkpoint")
        return CheckpointEnd(saved=True)

    def stop(self, vm: Vm, attempt: str, grace: timedelta) -> ContainerState:
        self._reach_guest(vm, "stop")
        container = self._container_of(attempt)
        if container is not None and self.state(attempt).state is ContainerPhase.RUNNING:
            container.stopped = self.now
        self._leave_guest("stop")
        return self.state(attempt)

    def clear(self, vm: Vm, attempt: str) -> None:
        self._reach_guest(vm, "clear")
        container = self._container_of(attempt)
        if container is not None:
            container.cleared = True
        self._leave_guest("clear")

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def state(self, attempt: str) -> ContainerState:
        """As its guest would tell it now; what somebody has stopped ends with the exit code 0, as programs that catch
        the signal do."""
        container = self._container_of(attempt)
        if container is None or container.cleared:
            return ContainerState(ContainerPhase.ABSENT)
        until = self._until(container)
        if until is None:
            return ContainerState(ContainerPhase.RUNNING, began=container.began)
        if until == container.ends:
            return ContainerState(ContainerPhase.ENDED, container.exit_code, container.began, container.ends)
        if until == container.stopped:
            return ContainerState(ContainerPhase.ENDED, 0, container.began, until, asked_to_end=True)
        return ContainerState(ContainerPhase.ENDED, None, container.began)

    def came_to_its_end(self, container: MadeContainer) -> bool:
        return self._until(container) == container.ends

    def ran_until(self, container: MadeContainer) -> datetime:
        return self._until(container) or self.now

    def _until(self, container: MadeContainer) -> datetime | None:
        """When it ended; None = it runs."""
        down = next(
            (
                change.at
                for change in self.world.ledger
                if change.moid == container.vm
                and change.at >= container.began
                and change.after.get("power", Power.ON) != Power.ON
            ),
            None,
        )
        ends = [
            moment
            for moment in (container.stopped, down, container.ends if container.ends <= self.now else None)
            if moment is not None
        ]
        return min(ends, default=None)

    def _container_of(self, attempt: str) -> MadeContainer | None:
        return next((container for container in self.made if container.attempt == attempt), None)

    def _reach_guest(self, vm: Vm, call: str) -> None:
        """Raises StepFailed for a guest that does not answer."""
        self.point(f"before {call}")
        self.world.clock.advance(2)
        vm_entity: Any = self.world.find(vm.ref)
        started = max((change.at for change in self.world.ledger if change.moid == vm.ref), default=None)
        if vm_entity is None or vm_entity.state.power is not Power.ON or (started and self.now - started < BOOTS):
            self.met["guest not up"] += 1
            raise StepFailed(f"{vm.name}: VMware Tools do not answer")
        if self.troubled and self.rng.random() < 0.05:
            self.met[f"{call} refused"] += 1
            raise StepFailed(f"{vm.name}: its guest refuses")

    def _leave_guest(self, call: str) -> None:
        self.point(f"after {call}")


def output_until(container: MadeContainer, until: datetime | None) -> bytes:
    """What it wrote, a line a minute."""
    minutes = int(((until or container.ends) - container.began) / MINUTE) if until is not None else 0
    return b"".join(f"{container.attempt} {minute}\n".encode() for minute in range(max(minutes, 0)))
