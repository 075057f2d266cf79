"""Rotation, bounds: what a night may take in all, and until when; and how long each ML VM then runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import chain
from typing import Final

from gpuops.model.ml_queue import QueuedVm
from gpuops.model.rotation import Policy
from gpuops.model.vm import Vm
from gpuops.model.window import Night
from gpuops.plan.rotation.durations import Durations
from gpuops.plan.rotation.return_time import Load, ReturnTime
from gpuops.plan.rotation.start import Start

UNMEASURED_SUSPEND_S: Final = 300.0
UNMEASURED_START_S: Final = 120.0
UNMEASURED_MOVE_S: Final = 300.0
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Run:
    """From when to when an ML VM is expected to run."""

    begins: datetime
    ends: datetime | None
    """When its host's desktops return, or its deadline if that is earlier; None = nobody has said."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one night, with what it has taken so far."""

    policy: Policy
    night: Night | None
    now: datetime
    durations: Durations = field(default_factory=Durations)
    away: tuple[Vm, ...] = ()
    """Desktops that this night has taken already."""
    running: tuple[tuple[Vm, QueuedVm], ...] = ()
    """ML VMs that it has started already."""

    def objection(self, starts: Sequence[Start]) -> str:
        """Why not all of these may start: what the last of them would break; empty = they may."""
        load = self.load(starts)
        *others, last = starts
        return self._too_many(last, load) or self._too_late(last, load) or self._harm(others, load)

    def load(self, starts: Iterable[Start]) -> Load:
        """What there is to return when all of these have started."""
        starts = tuple(starts)
        queued = [entry for _, entry in self.running] + [start.queued for start in starts]
        return Load.of(
            chain(self.away, *(start.desktops for start in starts)),
            chain((vm.host for vm, _ in self.running), (start.host.ref for start in starts)),
            max((entry.checkpoint.grace_s for entry in queued), default=0),
        )

    def return_at(self, host: str | None, load: Load) -> datetime | None:
        """From when on nothing is taken on the host; None = there is no window, and so no deadline."""
        if self.night is None:
            return None
        return ReturnTime(self.policy, self.durations, self.night.back_by).of(host, load)

    def run(self, start: Start, load: Load) -> Run:
        """When the VM would run, if what there is to return is this."""
        begins = self.now + self._lead(start)
        ends = [self.return_at(start.host.ref, load), start.queued.due(self.night)]
        return Run(begins, min((end for end in ends if end is not None), default=None))

    def _lead(self, start: Start) -> timedelta:
        """Until the VM runs: its desktops suspend, it moves, it starts."""
        host = start.host.ref
        rounds = -(-len(start.desktops) // self.policy.limits.per_host)
        seconds = rounds * self.durations.p99_s("SuspendVm", host, UNMEASURED_SUSPEND_S)
        seconds += self.durations.p99_s("PowerOnVm", host, UNMEASURED_START_S)
        if start.moves:
            seconds += self.durations.p99_s("RelocateVm", host, UNMEASURED_MOVE_S)
        return timedelta(seconds=seconds)

    def _too_many(self, start: Start, load: Load) -> str:
        limits, host = self.policy.limits, start.host
        taken, here = sum(load.desktops.values()), load.desktops.get(host.ref, 0)
        if not start.desktops:
            return ""
        if limits.desktops is not None and taken > limits.desktops:
            return f"limit: {taken} desktops would be taken, {limits.desktops} at most in a night"
        if limits.desktops_per_host is not None and here > limits.desktops_per_host:
            return f"limit: {here} desktops of {host.name} would be taken, {limits.desktops_per_host} at most of a host"
        return ""

    def _too_late(self, start: Start, load: Load) -> str:
        run = self.run(start, load)
        if run.ends is None:
            return ""
        due = start.queued.due(self.night)
        until = f"its deadline is {self._clock(run.ends)}" if run.ends == due else self._return(start, run.ends)
        if run.begins >= run.ends:
            return f"too late: {until}, and it would start at {self._clock(run.begins)}"
        least, left = start.queued.minimum_run, run.ends - run.begins
        if left < least:
            return f"would run for {_minutes(left)} min, {_minutes(least)} are the least: {until}"
        return ""

    def _return(self, start: Start, moment: datetime) -> str:
        return f"the return to {start.host.name} begins at {self._clock(moment)}"

    def _harm(self, others: Iterable[Start], load: Load) -> str:
        """More to return is an earlier return: a VM that starts before this one must still have its time."""
        said = ((other, self._too_late(other, load)) for other in others)
        return next((f"then {other.vm.name} {harm}" for other, harm in said if harm), "")

    def _clock(self, moment: datetime) -> str:
        zone: tzinfo | None = self.night.zone if self.night is not None else None
        local = moment.astimezone(zone or moment.tzinfo)
        return f"{local:%H:%M}" if abs(moment - self.now) < _DAY else f"{local:%Y-%m-%d %H:%M}"


def _minutes(length: timedelta) -> int:
    return int(length.total_seconds()) // 60
