"""A step that vCenter queues behind a foreign task must not run long after the check that allowed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.config.policy import load_policy
from gpuops.model.nights.rotation_policy import Limits
from gpuops.plan.core.plan import Verdict
from gpuops.sim.fault_injection.rule import Effect
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, Wire, busy_reasons

pytestmark = pytest.mark.long

ANOTHER_S = 1800.0
"""How long foreign tasks occupy the desktops."""


@pytest.fixture
def wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    policy = replace(load_policy(LAB_POLICY), limits=Limits(in_flight=1))
    wire = Wire(lab, tmp_path / "state", policy, ("rotate", "--policy", str(LAB_POLICY)))
    yield wire
    wire.check_ledger()
    assert lab.world.bugs == []


def begin_another_task(wire: Wire, for_s: float) -> None:
    """Somebody does so between the look at a desktop and the request to suspend it."""
    wire.trouble(Effect.HAPPEN, "SuspendVM_Task", happening="vm.busy", target="vdi-*", for_s=for_s)


def let_pass(wire: Wire, seconds: float) -> None:
    with wire.server.world.lock:
        wire.server.world.clock.advance(seconds)


@pytest.mark.parametrize("queues", [True, False], ids=["vCenter queues it", "a host refuses it"])
def test_a_desktop_that_was_used_by_the_time_of_its_turn_is_not_suspended(wire: Wire, *, queues: bool) -> None:
    wire.server.world.tasks.queues = queues
    begin_another_task(wire, ANOTHER_S)
    wire.trouble(Effect.HAPPEN, "*", happening="vm.used", target="vdi-*", at_s=300.0)
    report = wire.night()
    let_pass(wire, 2 * ANOTHER_S)
    assert wire.to_power("suspended") == Counter()
    assert {outcome.verdict for outcome in report.outcomes} == {Verdict.DONE, Verdict.SKIPPED}, (
        "and what is done is a start"
    )
    assert any("a task is running: ReconfigVM_Task" in reason for reason in busy_reasons(report)), busy_reasons(report)


@pytest.mark.parametrize(("for_s", "taken_back"), [(5.0, 0), (30.0, 1)])
def test_a_suspend_whose_turn_does_not_come_soon_is_taken_back_and_tried_again(
    wire: Wire, for_s: float, taken_back: int
) -> None:
    begin_another_task(wire, for_s)
    wire.night()
    tasks = [task for task in wire.server.world.tasks.history() if task.name == "SuspendVM_Task"]
    cancelled = [task.entity.display_name for task in tasks if task.cancelled]
    assert len(cancelled) == taken_back
    assert wire.to_power("suspended").keys() >= {tasks[0].entity.display_name, *cancelled}
    assert wire.to_power("suspended").total() >= len(DESKTOPS) - taken_back, "one was skipped meanwhile"


class Killed(BaseException):
    """The process of a run ends."""


def test_what_a_run_left_in_the_queue_is_taken_back_by_the_next_one(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> Any:
        raise Killed

    begin_another_task(wire, ANOTHER_S)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Connection, "wait", kill)
        wire.night()
    wire.resume()
    let_pass(wire, 2 * ANOTHER_S)
    assert wire.to_power("suspended") == Counter()
    [task] = [task for task in wire.server.world.tasks.history() if task.name == "SuspendVM_Task"]
    assert task.cancelled
