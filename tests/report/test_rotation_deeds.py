"""What a rotation did, in desktops and ML VMs."""

from __future__ import annotations

import pytest

from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, Wave
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.report.run_progress import deeds_line, deeds_named
from tests.execute.small_vcenter import small_world
from tests.execute.steps.guarded_steps import NIGHT

MARK = SetAttribute("vm-1", "gpuops.rotation", "x")


def report(request: RotateNight | RotateDay, *ended: tuple[Step, Verdict]) -> Report:
    steps = tuple(step for step, _ in ended)
    plan = Plan(waves=(Wave("all", steps),) if steps else ())
    return Report(request, small_world().snapshot(), plan, tuple(Outcome(*outcome) for outcome in ended), applied=True)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (((MARK, Verdict.DONE), (SuspendVm("vm-1"), Verdict.DONE)), "1 desktop suspended"),
        (
            (
                (SuspendVm("vm-1"), Verdict.DONE),
                (SuspendVm("vm-2"), Verdict.FAILED),
                (PowerOnVm("vm-3", None), Verdict.DONE),
            ),
            "1 desktop suspended, 1 ML VM started, 1 step failed",
        ),
        (((MARK, Verdict.DONE),), "1 step done"),
        ((), "nothing to do"),
    ],
)
def test_a_night_is_told_in_desktops_and_ml_vms(ended: tuple[tuple[Step, Verdict], ...], expected: str) -> None:
    assert deeds_line(report(RotateNight(NIGHT.policy), *ended)) == expected


def test_a_morning_names_each_of_them() -> None:
    ended = ((ShutDownGuest("vm-1"), Verdict.DONE), (ResumeVm("vm-2"), Verdict.DONE), (MARK, Verdict.DONE))
    return_report = report(RotateDay(NIGHT.policy, ()), *ended)
    assert deeds_line(return_report) == "1 desktop resumed, 1 ML VM shut down"
    names = [return_report.before.vm(step.vm).name for step, _ in ended[:2]]
    assert list(deeds_named(return_report)) == [f"{names[0]}: shut down", f"{names[1]}: resumed"]


def test_what_is_no_rotation_is_told_in_steps() -> None:
    host_report = Report(
        object(), small_world().snapshot(), Plan(), (Outcome(PowerOnVm("vm-1", None), Verdict.DONE),), applied=True
    )
    assert list(deeds_named(host_report)) == []
    assert "desktop" not in deeds_line(host_report)
