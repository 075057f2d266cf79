"""The small vCenter, a journal of it, and an executor that carries out waves of steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.execute.journal import Journal
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation_policy import Limits
from gpuops.plan.core.plan import Outcome, Plan, Wave
from gpuops.plan.core.steps import Step
from gpuops.plan.rotation.nights.guard import Guard
from tests.execute.small_vcenter import SmallVcenter, World, small_world
from tests.execute.steps.guarded_steps import LIMITS, NIGHT, Do


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def journal(tmp_path: Path, world: World) -> Journal:
    return Journal.open(tmp_path / "state", "vc-uuid", lambda: world.now)


@pytest.fixture
def do(world: World, journal: Journal) -> Do:
    def run(*waves: tuple[Step, ...], limits: Limits = LIMITS, guard: Guard | None = NIGHT) -> tuple[Outcome, ...]:
        plan = Plan(waves=tuple(Wave(str(number), steps) for number, steps in enumerate(waves)))
        run_ = journal.begin("test")
        executor = VmExecutor(SmallVcenter(world), journal, run_, world.snapshot(), guard=guard)
        return execute(plan, executor, limits, lambda outcome: None)

    return run
