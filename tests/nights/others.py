"""Others: VMs that no night started. They are left alone, and named where they are in a desktop's way.

I18 who holds the GPUs of a desktop that could not come back is told by name; whoever a night did not start is not
stopped by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuops.plan.outcome import Verdict
from gpuops.plan.steps import ResumeVm
from gpuops.sim.ledger import Entry
from tests.nights.doings import MARK, OFF, SHUT_DOWN, START, effects
from tests.nights.night import Played


def others_are_left(night: Played) -> Iterator[str]:
    """I18: only a VM that a night started is stopped by its morning; on another machine, which has no journal of that
    night, only one that carries its marker."""
    started: set[str] = set()
    marked: set[str] = set()
    for entry in effects(night, START, OFF, SHUT_DOWN, MARK):
        if entry.method == MARK:
            (marked.add if entry.after.get(night.site.policy.marker) else marked.discard)(entry.moid)
        elif entry.method == START:
            started.add(entry.moid)
        elif entry.moid not in (started | marked if _of_another_machine(night, entry) else started):
            yield f"I18: {entry.name} was stopped, and no night had started it"


def _of_another_machine(night: Played, entry: Entry) -> bool:
    run, _, _ = night.sent_by.get(entry.operation_id, (0, "", 0))
    return run == -1


def blockers_are_named(night: Played) -> Iterator[str]:
    """I18: in the end, a desktop that could not come back is told with everybody who is on the GPUs of its host."""
    if night.last is None:
        return
    for outcome in night.last.outcomes:
        if isinstance(outcome.step, ResumeVm) and outcome.verdict is Verdict.FAILED:
            vm: Any = night.world.find(outcome.step.vm)
            for name in sorted(_on_its_gpus(vm)) if vm is not None else ():
                if name not in outcome.reason:
                    yield f"I18: {vm.name} did not come back, and {name}, which is in its way, is not named"


def _on_its_gpus(vm: Any) -> set[str]:
    return {other.name for other in vm.host().running_vms() if other.state.seats}
