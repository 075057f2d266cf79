"""A disruptive plan needs agreement: by a person on a terminal, or by --yes."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from gpuops.console.running import ConsentPrompt
from gpuops.errors import Refused, UsageError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Plan, Report, Wave
from gpuops.plan.core.steps import PowerOffVm

BEFORE = Inventory("uuid", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), vms={"v": Vm("v", "ml-07")})
STOP = Plan(waves=(Wave("stop", (PowerOffVm("v"),)),), disruptive=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_disrupts_nothing_is_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    ConsentPrompt(yes=False)(Report(None, BEFORE, Plan(waves=STOP.waves)))


def test_yes_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    ConsentPrompt(yes=True)(Report(None, BEFORE, STOP))


def test_without_a_terminal_it_names_yes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError) as caught:
        ConsentPrompt(yes=False)(Report(None, BEFORE, STOP))
    assert caught.value.exit_code == 2
    assert "--yes" in caught.value.hint
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "power off ml-07" in captured.err


@pytest.mark.parametrize("answer", ["n\n", "\n", "no\n"])
def test_a_person_who_does_not_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(Refused, match="nothing was changed"):
        ConsentPrompt(yes=False)(Report(None, BEFORE, STOP))
    assert "power off ml-07" in capsys.readouterr().err


def test_a_person_who_agrees(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    ConsentPrompt(yes=False)(Report(None, BEFORE, STOP))
    assert capsys.readouterr().out == ""
