"""Making room: the few vMotions after which a workload that finds no place would have one.

Asked for workloads that are refused, and only of fleets that are searched in a moment; in larger ones `gpuops defrag`
plans moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState
from gpuops.plan.core.scope import Scope
from gpuops.plan.placement.project import project
from gpuops.plan.queue.nearest import offered
from gpuops.plan.queue.one_workload import Placed, Trial, relaxed

if TYPE_CHECKING:
    from gpuops.plan.moving.result import PlannedMove

_MOST: Final = 3
"""vMotions: who needs more has a fleet to tidy up first."""
_GPUS: Final = 64


@dataclass(frozen=True)
class MakingRoom:
    """In the snapshot `world`, in which all run that have a place or are kept one; in `now` those that really run."""

    world: Inventory
    now: Inventory
    _known: dict[tuple[str, str | None], tuple[PlannedMove, ...]] = field(default_factory=dict)
    """By profile and cluster: many refused requests are alike."""

    def after_moves(self, trial: Trial) -> str:
        """The moves and where the workload fits then; empty when no such moves are known."""
        profile = offered(trial.workload, trial)
        world = self.world
        moves = self._moves(profile, trial.workload.cluster, trial.catalog) if profile else ()
        for number, move in enumerate(moves, 1):
            world = project(move.step, world, trial.catalog)
            answer = replace(relaxed(trial, trial.workload), inventory=world).answer()
            if isinstance(answer, Placed):
                return f"{_words(moves[:number])} it fits on {answer.placement.host.name}"
        return ""

    def _moves(self, profile: str, cluster: str | None, catalog: Catalog) -> tuple[PlannedMove, ...]:
        key = (profile, cluster)
        if key not in self._known:
            self._known[key] = ()
            scope = Scope(cluster)
            if self.now.hot_migrate_enabled and sum(len(host.gpus) for host in scope.hosts(self.world)) <= _GPUS:
                from gpuops.plan.moving.plan import Defrag

                self._known[key] = (
                    Defrag(profile, _MOST, cluster=cluster).planned(self.world, catalog, self._yet_to_run).moves
                )
        return self._known[key]

    @cached_property
    def _yet_to_run(self) -> dict[str, str]:
        """VM ref -> why it cannot move: it runs in that world alone."""
        runs = {ref for ref, vm in self.now.vms.items() if vm.power is PowerState.ON}
        there = (ref for ref, vm in self.world.vms.items() if vm.power is PowerState.ON)
        return {ref: "does not run yet" for ref in there if ref not in runs}


def _words(moves: Sequence[PlannedMove]) -> str:
    return "after vMotion " + ", then ".join(f"of {move.vm.name} to {move.target.name}" for move in moves)
