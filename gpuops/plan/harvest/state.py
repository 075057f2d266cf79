"""State: a whole night while it is searched, and how much may still be thought about it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpuops.plan.harvest.packing import HostPacking, Run
from gpuops.plan.harvest.problem import Problem
from gpuops.plan.harvest.windows import Windows


@dataclass(slots=True)
class Effort:
    """How much may still be thought. A unit is a look at one job for one stretch: half a microsecond or so."""

    units: int
    keep_going: Callable[[], bool] = lambda: True

    def spend(self, units: int) -> None:
        self.units -= units

    @property
    def left(self) -> bool:
        return self.units > 0 and self.keep_going()


@dataclass(frozen=True, slots=True)
class State:
    """Windows, and what runs in them on each host."""

    windows: Windows
    hosts: dict[str, HostPacking]
    worth: int

    def runs(self) -> list[Run]:
        return [run for packing in self.hosts.values() for run in packing.runs()]

    def placed(self) -> set[int]:
        """The jobs that run."""
        return {job for packing in self.hosts.values() for job in packing.jobs()}

    def used(self) -> set[int]:
        """The GPUs on which something runs."""
        return {number for run in self.runs() for number in run.gpus}

    def on_used(self, problem: Problem) -> State:
        """The same without the GPUs on which nothing runs."""
        used = self.used()
        if used == set(self.windows.of):
            return self
        return State(self.windows.on(problem, used), _on(self.hosts, used), self.worth)


def _on(hosts: dict[str, HostPacking], gpus: Collection[int]) -> dict[str, HostPacking]:
    found = {name: packing.on(gpus) for name, packing in hosts.items()}
    return {name: packing for name, packing in found.items() if packing.jobs()}
