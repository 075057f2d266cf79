"""Whatever goes wrong at predicting a step, or at comparing that, the run goes on as without predictions: every desktop
comes back, every step is settled, and what went wrong is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.api import past_predictions, rotate_day, rotate_night
from gpuops.config.policy import load_policy
from gpuops.errors import GpuopsError, LoginRefused, NoPermission, ProtocolError, VcenterUnreachable
from gpuops.execute.steps import predictions, task_history
from gpuops.model.prediction import Compared, Misprediction, PastPredictions, Predicted
from gpuops.model.vcenter.task import GpuTask
from gpuops.plan.core.outcome import Verdict
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.hosts.clusters import cluster, desktops
from tests.wire.hosts.rolling import Start
from tests.wire.steps.test_predictions import LAB_POLICY, Wire

WRONG: Final = Compared((Misprediction(Predicted.GPU, "0000:3b:00.0", "0000:af:00.0"),))

Breaks = Callable[[pytest.MonkeyPatch], None]


def raises(error: Exception) -> Callable[..., Any]:
    """A function that ends in this error, whatever it is called with."""

    def raising(*args: Any, **more: Any) -> Any:
        raise error

    return raising


def no_history(error: Exception) -> Breaks:
    """Each step seems mispredicted, and the question for vCenter's tasks ends in this error."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(predictions, "compare", lambda *args: WRONG)
        patch.setattr(Connection, "gpu_tasks_since", raises(error))

    return breaks


def bug_at(function: str, error: Exception) -> Breaks:
    """`predict` or `compare` ends in this error."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(predictions, function, raises(error))

    return breaks


TOLD: Final[tuple[GpuopsError, ...]] = (
    ProtocolError("no TaskInfo"),
    VcenterUnreachable("no answer within 60 s"),
    LoginRefused("the session ended"),
    NoPermission("lacks System.View"),
)
FAULTS: Final = [
    *(
        pytest.param(no_history(error), f"vCenter does not tell its tasks: {error.message}", id=type(error).__name__)
        for error in TOLD
    ),
    pytest.param(no_history(KeyError("vm-9")), "comparing its prediction failed: KeyError: 'vm-9'", id="history"),
    pytest.param(bug_at("predict", KeyError("vm-9")), "its prediction failed: KeyError: 'vm-9'", id="predict"),
    pytest.param(
        bug_at("compare", AssertionError("one\nseat")),
        "comparing its prediction failed: AssertionError: one seat",
        id="compare",
    ),
]


def check_said(past: PastPredictions, why: str) -> None:
    """No misprediction is noted, and why it cannot be said is."""
    assert past.wrong == ()
    assert past.cannot_say[why] >= 3, dict(past.cannot_say)


def powers(server: SimServer) -> dict[str, Power]:
    return {vm.display_name: vm.state.power for vm in server.world.by_type("VirtualMachine")}


@pytest.mark.long
@pytest.mark.parametrize(("breaks", "why"), FAULTS)
def test_a_return_brings_everything_back(
    lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Breaks, why: str
) -> None:
    wire, policy, before = Wire(lab, tmp_path), load_policy(LAB_POLICY), powers(lab)
    assert wire.do(partial(rotate_night, policy, apply=True)).exit_code == 0
    assert powers(lab) != before
    breaks(monkeypatch)
    day = wire.do(partial(rotate_day, policy, apply=True))
    assert (day.exit_code, {each.verdict for each in day.outcomes}) == (0, {Verdict.DONE})
    assert powers(lab) == before
    check_said(wire.past, why)
    again = wire.do(partial(rotate_day, policy, apply=True))
    assert (again.exit_code, again.outcomes) == (0, ()), "nothing was left in flight"


@pytest.mark.long
@pytest.mark.parametrize(("breaks", "why"), FAULTS)
def test_a_night_takes_and_starts_the_same(
    lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Breaks, why: str
) -> None:
    breaks(monkeypatch)
    wire = Wire(lab, tmp_path)
    night = wire.do(partial(rotate_night, load_policy(LAB_POLICY), apply=True))
    assert (night.exit_code, {each.verdict for each in night.outcomes}) == (0, {Verdict.DONE})
    check_said(wire.past, why)


@pytest.mark.long
@pytest.mark.parametrize(("breaks", "why"), FAULTS)
def test_a_rolling_change_puts_every_host_back_in_service(
    start: Start, monkeypatch: pytest.MonkeyPatch, breaks: Breaks, why: str
) -> None:
    bench = start(cluster(2, [desktops(1, 2, first=1)]))
    before = bench.places()
    breaks(monkeypatch)
    report = bench.roll()
    assert (report.exit_code, [each.verdict for each in report.outcomes]) == (0, [Verdict.DONE] * 2), report.outcomes
    assert bench.places() == before
    assert {host.state.in_maintenance for host in bench.world.by_type("HostSystem")} == {False}
    assert not bench.is_open()
    check_said(past_predictions(bench.state_dir), why)


@pytest.mark.long
def test_a_return_of_which_every_step_differs_asks_for_few_of_them(
    lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, policy, asked = Wire(lab, tmp_path), load_policy(LAB_POLICY), list[object]()
    wire.do(partial(rotate_night, policy, apply=True))
    right, ask = wire.past.right, Connection.gpu_tasks_since

    def counted(self: Connection, since: datetime) -> Sequence[GpuTask] | None:
        asked.append(since)
        return ask(self, since)

    monkeypatch.setattr(Connection, "gpu_tasks_since", counted)
    monkeypatch.setattr(predictions, "compare", lambda *args: WRONG)
    monkeypatch.setattr(task_history, "MOST_STEPS", 2)
    assert wire.do(partial(rotate_day, policy, apply=True)).exit_code == 0
    assert 1 <= len(asked) <= 2
    assert (len(wire.past.wrong), wire.past.right) == (2, right)
    assert wire.past.cannot_say[task_history.ENOUGH] >= 2


@pytest.mark.long
def test_a_rolling_change_shares_them_among_its_rounds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, asked = start(cluster(2, [desktops(1, 2, first=1)])), list[object]()

    def nobody(self: Connection, since: datetime) -> Sequence[GpuTask]:
        asked.append(since)
        return []

    monkeypatch.setattr(Connection, "gpu_tasks_since", nobody)
    monkeypatch.setattr(predictions, "compare", lambda *args: WRONG)
    monkeypatch.setattr(task_history, "MOST_STEPS", 3)
    report = bench.roll()
    assert (report.exit_code, len(report.mispredicted)) == (0, 3)
    assert 1 <= len(asked) <= 3
