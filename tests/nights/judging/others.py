"""Others: VMs that no night started. They are left alone, and named where they are in a desktop's way.

I18 the VMs on the GPUs of a desktop that could not come back are named; a night does not stop a VM that it did not
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.errors import Trouble
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import ResumeVm
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.taken_vms import marker_of
from gpuops.sim.state.vm_state import Power
from tests.nights.judging.doings import MARK, OFF, SHUT_DOWN, START, clones, is_ours, machine_of, takes
from tests.nights.playing.played import Played

QUEUED: Final = timedelta(seconds=45)
"""So long a step may stand in vCenter's queue before it is taken back."""


def others_are_left(night: Played) -> Iterator[str]:
    """I18: the morning stops only a VM that its night started, and once: a start after that, or after it powered itself
    off, is not the night's. On another machine, which has no journal of that night, only one that carries its marker.
    """
    started: set[str] = set()
    marked: dict[str, int] = {}
    """By the machine that did it."""
    anew: dict[str, datetime] = {}
    """Time after a foreign start: a request sent shortly before may have waited in vCenter's queue behind it."""
    for change in night.world.ledger:
        if change.method == START and not is_ours(change) and change.before.get("power") == Power.OFF:
            started.discard(change.moid)
            anew[change.moid] = change.at
        if not is_ours(change) or night.is_lock_vm(change.moid) or change.method not in (START, OFF, SHUT_DOWN, MARK):
            continue
        machine = machine_of(night, change)
        if change.method == MARK and change.after.get(night.site.policy.marker):
            marked[change.moid] = machine
        elif change.method == MARK:
            marked.pop(change.moid, None)
        elif change.method == START:
            started.add(change.moid)
        elif (
            change.moid in anew
            and timedelta() < anew[change.moid] - night.asked.get(change.operation_id, change.at) < QUEUED
        ):
            continue
        elif not takes(change) and change.moid not in started and marked.get(change.moid, machine) == machine:
            yield f"I18: {change.name} was stopped, and no night had started it"
        else:
            started.discard(change.moid)


def clones_are_left(night: Played) -> Iterator[str]:
    """I31: a clone that somebody made in the night is not started, stopped, suspended or moved; the last morning names
    it if it carries a marker in the attribute of that morning's policy."""
    cloned = clones(night)
    for change in night.world.ledger:
        if change.moid in cloned and is_ours(change) and change.method != MARK:
            yield f"I31: {change.method} on {change.name}, a clone that somebody made"
    if not cloned or night.last is None or not isinstance(night.last.request, RotateDay):
        return
    named = {unmet.subject for unmet in night.last.plan.unmet}
    key = night.world.custom_fields.define(marker_of(night.last.request.policy))
    for moid, name in cloned.items():
        vm: Any = night.world.find(moid)
        if vm is not None and key in vm.attributes and name not in named:
            yield f"I31: {name} is a clone with a marker, and the morning does not name it"


def blockers_are_named(night: Played) -> Iterator[str]:
    """I18: in the end, a desktop that could not come back is named with all VMs on the GPUs of its host, unless another
    task on the desktop was in the way.
    """
    if night.last is None:
        return
    for outcome in night.last.outcomes:
        if (
            isinstance(outcome.step, ResumeVm)
            and outcome.verdict is Verdict.FAILED
            and outcome.trouble is not Trouble.BUSY
        ):
            vm: Any = night.world.find(outcome.step.vm)
            for name in sorted(_on_its_gpus(vm)) if vm is not None else ():
                if name not in outcome.reason:
                    yield f"I18: {vm.name} did not come back, and {name}, which is in its way, is not named"


def _on_its_gpus(vm: Any) -> set[str]:
    return {running_vm.name for running_vm in vm.host().running_vms() if running_vm.state.seats}
