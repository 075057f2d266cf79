"""What a terminal shows of a run under way, and what a rotation did in desktops and ML VMs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import pytest

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm, VmDrs
from gpuops.model.window import Window
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, Wave
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    RelocateVm,
    ResumeVm,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.report.layout import display_width
from gpuops.report.run_progress import (
    NAMED_VMS,
    VERBS_IN_FLIGHT,
    RunProgress,
    changed_vms,
    changed_vms_line,
    progress_lines,
    start_progress,
)
from tests.execute.small_vcenter import small_world
from tests.execute.steps.guarded_steps import NIGHT as NIGHT_DONE

BERLIN = ZoneInfo("Europe/Berlin")
WINDOW = Window(time(20), time(5), BERLIN, back_by=time(7))
POLICY = Policy("design", (), windows=(WINDOW,))
NOW = datetime(2026, 11, 3, 4, 30, tzinfo=UTC)
"""05:30 in Berlin, after the night of 2 November."""
NAMES = {f"vm-{number}": f"vdi-{number:02d}" for number in range(40)} | {"vm-ml": "ml-01", "vm-ml2": "ml-02"}
BEFORE = Inventory("uuid", "8.0.3.0", NOW, vms={ref: Vm(ref, name) for ref, name in NAMES.items()})

DAY = RotateDay(POLICY, (Original("2026-11-02", Role.DESKTOP, "vm-0", None, "vdi-00", None),))
NIGHT = RotateNight(POLICY)
MORNING: tuple[Step, ...] = (
    ShutDownGuest("vm-ml"),
    *(ResumeVm(f"vm-{number}") for number in range(10)),
    PowerOnVm("vm-10"),
    SetVmDrs("vm-ml", VmDrs.CLUSTER),
    *(SetAttribute(f"vm-{number}", "gpuops.rotation", "") for number in range(11)),
)
EVENING: tuple[Step, ...] = (
    *(SetAttribute(f"vm-{number}", "gpuops.rotation", "2026-11-02 desktop") for number in range(3)),
    SuspendVm("vm-0"),
    SuspendVm("vm-1"),
    ShutDownGuest("vm-2"),
    RelocateVm("vm-ml", "host-1"),
    PowerOnVm("vm-ml"),
    PowerOnVm("vm-ml2"),
)


def at_the_start(request: object, *steps: Step, earlier: RunProgress | None = None) -> RunProgress:
    """The progress of a run that is about to do these steps, at second 0."""
    return start_progress(Report(request, BEFORE, Plan(waves=(Wave("all", steps),))), 0.0, NOW, earlier)


def after(progress: RunProgress, *steps: Step, verdict: Verdict = Verdict.DONE) -> RunProgress:
    """The progress when these have ended too."""
    for step in steps:
        progress = progress.with_outcome(Outcome(step, verdict))
    return progress


def bar(progress: RunProgress) -> str:
    tally = progress.shown_tally
    return f"{tally.label} {tally.completed_steps}/{tally.total}"


@pytest.mark.parametrize(
    ("request_", "steps", "ended", "expected"),
    [
        pytest.param(NIGHT, EVENING, (), "desktops suspended 0/3", id="a night counts desktops"),
        pytest.param(NIGHT, EVENING, EVENING[:3], "desktops suspended 0/3", id="no marker counts"),
        pytest.param(NIGHT, EVENING, EVENING[:5], "desktops suspended 2/3", id="a suspend counts"),
        pytest.param(NIGHT, EVENING, EVENING[:7], "ML VMs started 0/2", id="then ML VMs, and no move"),
        pytest.param(NIGHT, EVENING, EVENING[:8], "ML VMs started 1/2", id="a start counts"),
        pytest.param(NIGHT, EVENING, EVENING, "desktops suspended 3/3", id="at the end what came first"),
        pytest.param(NIGHT, EVENING[6:], (), "ML VMs started 0/2", id="a night on free GPUs"),
        pytest.param(DAY, MORNING, MORNING[:1], "desktops back 0/11", id="no stop of an ML VM counts"),
        pytest.param(DAY, MORNING, MORNING[:12], "desktops back 11/11", id="a power-on counts too"),
        pytest.param(DAY, MORNING, MORNING[1:12], "ML VMs stopped 0/1", id="an ML VM is what remains"),
        pytest.param(DAY, (PowerOffVm("vm-ml"),), (), "ML VMs stopped 0/1", id="a morning of ML VMs alone"),
        pytest.param(DAY, MORNING[13:], MORNING[13:15], "steps 2/11", id="a morning of markers alone"),
        pytest.param(RestoreVms(DAY, ("vdi-01",)), MORNING[1:2], (), "desktops back 0/1", id="a restore"),
        pytest.param(None, EVENING, EVENING[:3], "steps 3/9", id="what is no rotation"),
    ],
)
def test_counted(request_: object, steps: tuple[Step, ...], ended: tuple[Step, ...], expected: str) -> None:
    assert bar(after(at_the_start(request_, *steps), *ended)) == expected


def test_what_was_not_done_is_no_progress_and_is_said() -> None:
    progress = at_the_start(DAY, *MORNING)
    progress = after(progress, *MORNING[1:4])
    progress = after(progress, MORNING[4], verdict=Verdict.FAILED)
    progress = after(progress, MORNING[5], verdict=Verdict.SKIPPED)
    assert (bar(progress), progress.shown_tally.remaining) == ("desktops back 3/11", 6)
    assert progress_lines(progress, 1.0, NOW, 60)[0] == "2 not done"


def test_what_was_done_before_an_outage_stays_counted() -> None:
    progress = after(at_the_start(DAY, *MORNING), *MORNING[1:4])
    replanned = at_the_start(DAY, *MORNING[4:], earlier=after(progress, MORNING[4], verdict=Verdict.UNKNOWN))
    assert bar(replanned) == "desktops back 3/11"
    assert replanned.shown_tally.missed_steps == 0  # it is planned once more


def resumed_names(ended: int, seconds: float, day: object = DAY) -> tuple[str, ...]:
    """What a morning of 11 desktops says when so many are back, so long after the first was sent at second 100."""
    progress = at_the_start(day, *MORNING).with_in_flight([MORNING[0]], 0.0).with_in_flight(MORNING[1:5], 100.0)
    progress = after(progress, *MORNING[1 : 1 + ended])
    return progress_lines(replace(progress, in_flight=()), 100.0 + seconds, NOW, 60)


OVERDUE = Original("2026-11-01", Role.DESKTOP, "vm-1", None, "vdi-01", None)
NO_WINDOWS = RotateDay(replace(POLICY, windows=()))


@pytest.mark.parametrize(
    ("ended", "seconds", "day", "lines"),
    [
        pytest.param(0, 60, DAY, ("back_by 07:00 CET",), id="no basis"),
        pytest.param(2, 60, DAY, ("back_by 07:00 CET",), id="still none"),
        pytest.param(3, 180, DAY, ("ETA 05:38, back_by 07:00 CET",), id="8 more at a minute each"),
        pytest.param(5, 600, DAY, ("ETA 05:42, back_by 07:00 CET",), id="6 more at two minutes each"),
        pytest.param(10, 5, DAY, ("ETA 05:31, back_by 07:00 CET",), id="never earlier than it is"),
        pytest.param(5, 4500, DAY, ("ETA 07:00, back_by 07:00 CET",), id="just in time"),
        pytest.param(5, 4501, DAY, ("late: ETA 07:01 is after back_by 07:00 CET",), id="too late"),
        pytest.param(5, 75_000, DAY, ("late: ETA 2026-11-04 06:30 is after back_by 07:00 CET",), id="the next day"),
        pytest.param(11, 600, DAY, (), id="all are back"),
        pytest.param(5, 600, NO_WINDOWS, ("ETA 04:42 UTC",), id="no window"),
        pytest.param(0, 60, NO_WINDOWS, (), id="nothing known"),
        pytest.param(
            0, 60, RotateDay(POLICY, (OVERDUE,)), ("late: back_by 2026-11-02 07:00 CET is past",), id="overdue"
        ),
        pytest.param(
            5,
            600,
            RotateDay(POLICY, (OVERDUE,)),
            ("late: ETA 05:42 is after back_by 2026-11-02 07:00 CET",),
            id="overdue, with an estimate",
        ),
        pytest.param(
            5, 600, RotateDay(POLICY, (OVERDUE, *DAY.originals)), ("ETA 05:42, back_by 07:00 CET",), id="next due"
        ),
        pytest.param(5, 600, RotateDay(POLICY), ("ETA 05:42, back_by 07:00 CET",), id="markers alone"),
        pytest.param(
            5,
            600,
            RotateDay(NO_WINDOWS.policy, (replace(DAY.originals[0], policy=POLICY),)),
            ("ETA 05:42, back_by 07:00 CET",),
            id="the policy of its night",
        ),
        pytest.param(
            5,
            600,
            RotateDay(POLICY, (replace(DAY.originals[0], night="2026-11-02T22:00Z"),)),
            ("ETA 04:42 UTC",),
            id="a night without a window",
        ),
    ],
)
def test_estimate(ended: int, seconds: float, day: object, lines: tuple[str, ...]) -> None:
    assert resumed_names(ended, seconds, day) == lines


def test_a_night_has_no_estimate() -> None:
    progress = after(at_the_start(NIGHT, *(SuspendVm(f"vm-{number}") for number in range(9))).with_in_flight([], 0.0))
    assert progress_lines(after(progress, *(SuspendVm(f"vm-{n}") for n in range(4))), 60.0, NOW, 60) == ()


def test_the_ones_in_flight_have_their_own_time_the_longest_first() -> None:
    progress = at_the_start(NIGHT, *EVENING).with_in_flight([SuspendVm("vm-0")], 10.0)
    progress = progress.with_in_flight([RelocateVm("vm-ml", "host-1"), SuspendVm("vm-0")], 40.0)
    assert progress_lines(progress, 52.9, NOW, 60) == ("  suspending vdi-00 0:42", "  moving ml-01 0:12")


def test_a_step_that_ended_or_rests_is_in_flight_no_more_and_begins_anew() -> None:
    progress = at_the_start(DAY, *MORNING[1:3]).with_in_flight(MORNING[1:3], 0.0)
    assert progress_lines(after(progress, MORNING[1]), 5.0, NOW, 60)[1:] == ("  resuming vdi-01 0:05",)
    resting = progress.with_in_flight([MORNING[1]], 30.0)
    assert progress_lines(resting.with_in_flight(MORNING[1:3], 90.0), 95.0, NOW, 60)[1:] == (
        "  resuming vdi-00 1:35",
        "  resuming vdi-01 0:05",
    )


@pytest.mark.parametrize(("number", "last"), [(NAMED_VMS, "  resuming vdi-03 0:09"), (NAMED_VMS + 3, "  and 3 more")])
def test_many_are_cut_short(number: int, last: str) -> None:
    steps = [ResumeVm(f"vm-{n}") for n in range(number)]
    lines = progress_lines(at_the_start(DAY, *steps).with_in_flight(steps, 0.0), 9.0, NOW, 60)
    assert lines[-1] == last


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vdi\n\x1b[2J\u202e07", "vdi\\u{a}\\u{1b}[2J\\u{202e}07"),
        ("[bold]vdi[/bold]", "[bold]vdi[/bold]"),
        ("frankfurt-" * 7 + "0042", "frankfurt-frankfur...urt-frankfurt-0042"),
        ("机" * 39 + "7", "机机机机机机机机机...机机机机机机机机7"),
    ],
)
def test_a_name_is_harmless_and_fits(name: str, expected: str) -> None:
    before = replace(BEFORE, vms={"vm-0": Vm("vm-0", name)})
    progress = replace(at_the_start(NIGHT, SuspendVm("vm-0")), before=before).with_in_flight([SuspendVm("vm-0")], 0.0)
    [line] = progress_lines(progress, 3725.0, NOW, 60)
    assert line == f"  suspending {expected} 1:02:05"
    assert display_width(line) <= 60


def test_each_kind_of_step_has_its_word() -> None:
    assert set(VERBS_IN_FLIGHT) == set(get_args(Step))


def test_a_run_before_its_evening_says_the_day() -> None:
    """A morning that somebody calls the evening before: the desktops are due the next day."""
    evening = datetime(2026, 11, 2, 22, tzinfo=BERLIN)
    progress = start_progress(Report(DAY, BEFORE, Plan(waves=(Wave("all", MORNING),))), 0.0, evening)
    assert progress_lines(progress, 0.0, evening, 60) == ("back_by 2026-11-03 07:00 CET",)
    assert progress.back_by == datetime.combine(date(2026, 11, 3), time(7), BERLIN)
    assert progress.back_by.utcoffset() == timedelta(hours=1)


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
    assert changed_vms_line(report(RotateNight(NIGHT_DONE.policy), *ended)) == expected


def test_a_morning_names_each_of_them() -> None:
    ended = ((ShutDownGuest("vm-1"), Verdict.DONE), (ResumeVm("vm-2"), Verdict.DONE), (MARK, Verdict.DONE))
    return_report = report(RotateDay(NIGHT_DONE.policy, ()), *ended)
    assert changed_vms_line(return_report) == "1 desktop resumed, 1 ML VM shut down"
    names = [return_report.before.vm(step.vm).name for step, _ in ended[:2]]
    assert list(changed_vms(return_report)) == [f"{names[0]}: shut down", f"{names[1]}: resumed"]


def test_what_is_no_rotation_is_told_in_steps() -> None:
    host_report = Report(
        object(), small_world().snapshot(), Plan(), (Outcome(PowerOnVm("vm-1", None), Verdict.DONE),), applied=True
    )
    assert list(changed_vms(host_report)) == []
    assert "desktop" not in changed_vms_line(host_report)
