"""Injected faults: rules that make chosen calls fail, stall or lose their reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuops.sim.objects.task import Task
    from gpuops.sim.world import World


class Injector:
    """The rules of a world; none to begin with."""

    def __init__(self, world: World) -> None:
        self.world = world

    def task_fault(self, task: Task) -> Any:
        """The fault in which this task shall end instead of having its effect, or None."""
        return None
