"""What a run tells on stderr while it goes on."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gpuops.console import output
from gpuops.console.output import Manners
from gpuops.console.running import Progress
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, Wave
from gpuops.plan.core.steps import SetAttribute, Step, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.report.layout import lines
from gpuops.report.plan_text import report_text, step_key

STEPS = tuple(SuspendVm(f"vm-{number}") for number in range(3))
VMS = {step.vm: Vm(step.vm, f"desk-{number}") for number, step in enumerate(STEPS)}
BEFORE = Inventory("uuid", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), vms=VMS)
LONG = SuspendVm("vm-long")
NIGHT_STEPS: tuple[Step, ...] = (SetAttribute(LONG.vm, "marker", "x"), *STEPS, LONG)
NIGHT = Report(
    RotateNight(Policy("design", ())),
    replace(BEFORE, vms=VMS | {"vm-long": Vm("vm-long", f"[bold]vdi-{'x' * 60}-0042"), "vm-umlaut": Vm("", "büro")}),
    Plan(waves=(Wave("make room", NIGHT_STEPS),)),
)
REPORT = Report(None, BEFORE, Plan(waves=(Wave("make room", STEPS),)))


@pytest.fixture(autouse=True)
def as_ever() -> Iterator[None]:
    """What an earlier test chose in this process is forgotten."""
    output.behave(Manners())
    yield
    output.behave(Manners())


def two_of_three() -> None:
    with Progress() as progress:
        progress.begin(REPORT)
        progress(Outcome(STEPS[0], Verdict.DONE, duration_s=3.14))
        progress(Outcome(STEPS[1], Verdict.FAILED, "no space\non the datastore"))


def test_steps_are_told_once_by_the_report_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    two_of_three()
    assert capsys.readouterr() == ("", "")


def test_verbose_is_a_line_per_step_with_the_time_of_day(capsys: pytest.CaptureFixture[str]) -> None:
    output.behave(Manners(verbose=True))
    two_of_three()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in captured.err.splitlines()] == [
        "[1/3] done     suspend desk-0  3.1 s",
        "[2/3] failed   suspend desk-1  no space\\u{a}on the datastore",
    ]


class Unheard(io.StringIO):
    """A stderr that takes nothing: its reader left, or its disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_a_run_goes_on_when_nobody_listens(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Unheard(number))
    with Progress() as progress:
        progress.begin(REPORT)
        for step in STEPS:
            progress(Outcome(step, Verdict.DONE))
    assert progress.ended == len(STEPS)


def test_a_quiet_run_draws_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    output.behave(Manners(quiet=True))
    two_of_three()
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress.begin(REPORT)
        progress(Outcome(STEPS[0], Verdict.DONE))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1/3" in captured.err
    assert captured.err.rstrip().endswith("\x1b[2K")


def frames(written: str) -> list[list[str]]:
    """The pictures that rich drew one over the other, as lines of plain text."""
    drawn = re.split(r"\r|\x1b\[2K|\x1b\[\d*A", written)
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame) for frame in drawn]
    return [frame.strip("\n").split("\n") for frame in plain if frame.strip()]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 60) -> None:
    """stderr is one of so many columns. In the test itself: pytest gives each phase another stderr."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal_shows_desktops_and_what_is_in_flight(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, columns)
    with Progress() as progress:
        progress.begin(NIGHT)
        progress(Outcome(STEPS[0], Verdict.DONE))
        progress(Outcome(STEPS[1], Verdict.FAILED, "no space"))
        progress.in_flight([LONG])
    picture = frames(capsys.readouterr().err)[-1]
    assert re.fullmatch(r"desktops suspended \S+ 1/4 0:\d\d", picture[0].rstrip())
    assert picture[1].rstrip() == "1 not done"
    assert re.fullmatch(r"  suspending \[bold\]vdi-.*0042 0:\d\d", picture[2].rstrip())
    assert max(map(len, picture)) <= columns
    assert len(picture) == 3


def test_a_verbose_run_has_its_lines_above_what_is_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    output.behave(Manners(verbose=True))
    two_of_three()
    printed_lines = [line for frame in frames(capsys.readouterr().err) for line in frame]
    assert any("[1/3] done     suspend desk-0" in line for line in printed_lines)
    assert any(line.startswith("steps ") for line in printed_lines)


@pytest.mark.parametrize("broken", ["start_progress", "progress_lines", "format_stopwatch"])
def test_a_run_goes_on_when_nothing_can_be_drawn(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(f"gpuops.console.drawn_progress.{broken}", lambda *arguments: 1 // 0)
    with Progress() as progress:
        progress.begin(REPORT)
        progress.in_flight(STEPS)
        progress(Outcome(STEPS[0], Verdict.DONE))
    assert progress.ended == 1


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_a_run_goes_on_when_its_terminal_is_gone(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_terminal = Unheard(number)
    monkeypatch.setattr(closed_terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", closed_terminal)
    monkeypatch.setenv("TERM", "xterm")
    output.behave(Manners(verbose=True))
    two_of_three()
    assert sys.stderr is closed_terminal


def test_a_name_that_the_terminal_cannot_write_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    ascii_only = io.TextIOWrapper(written, "ascii")
    monkeypatch.setattr(ascii_only, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", ascii_only)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress.begin(NIGHT)
        progress.in_flight([SuspendVm("vm-umlaut")])
    ascii_only.flush()
    assert b"suspending b\\xfcro 0:0" in written.getvalue()


def test_a_run_that_is_cut_off_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Progress() as progress:
        progress.begin(REPORT)
        progress(Outcome(STEPS[0], Verdict.DONE))
        raise KeyboardInterrupt
    assert "interrupted after 1 of 3 steps" in capsys.readouterr().err


def test_an_interrupted_prompt_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Progress():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_of_steps_that_were_told_the_report_repeats_none() -> None:
    outcomes = (Outcome(STEPS[0], Verdict.DONE), Outcome(STEPS[1], Verdict.FAILED, "no space"))
    report = report_text(
        replace(REPORT, outcomes=outcomes, applied=True), printed_steps={step_key(step) for step in STEPS[:2]}
    )
    text = "\n".join("".join(piece for piece, _ in line) for line in lines(report, None))
    assert "desk-0" not in text and "desk-1" not in text
    assert text.endswith("1 step done, 1 failed")
