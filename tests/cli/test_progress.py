"""What a run tells on stderr while it goes on."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gpuops.cli import output
from gpuops.cli.output import Manners
from gpuops.cli.running import Progress
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.core.outcome import Outcome, Report, Verdict
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.steps import SuspendVm

STEPS = tuple(SuspendVm(f"vm-{number}") for number in range(3))
VMS = {step.vm: Vm(step.vm, f"desk-{number}") for number, step in enumerate(STEPS)}
BEFORE = Inventory("uuid", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), vms=VMS)
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


def test_a_run_that_is_cut_off_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Progress() as progress:
        progress.begin(REPORT)
        progress(Outcome(STEPS[0], Verdict.DONE))
        raise KeyboardInterrupt
    assert "cut off after 1 of 3 steps" in capsys.readouterr().err


def test_an_interrupted_prompt_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Progress():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""
