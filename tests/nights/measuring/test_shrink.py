"""A night that breaks an invariant can be replayed, and is shrunk to the fewest events that still break it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.plan.rotation.returns import day
from gpuops.plan.rotation.taken_vms import Whereabouts
from tests.nights.__main__ import main

pytestmark = pytest.mark.long

SEED = 36
"""Of a night in which half of the desktops are deleted, among much else that goes wrong."""


def test_a_careless_engine_is_shown_in_five_events_or_fewer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    careless = tuple(whereabouts for whereabouts in day._REPORTED if whereabouts is not Whereabouts.GONE)
    monkeypatch.setattr(day, "_REPORTED", careless)
    assert main(["play", "--nights", "1", "--first", str(SEED), "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    assert f"seed {SEED}, commit " in output
    schedule = [line for line in output.splitlines() if line.startswith('{"fault"')]
    assert len(schedule) > 5
    least = tmp_path / "least.json"
    assert main(["shrink", str(SEED), "--out", str(least)]) == 0
    capsys.readouterr()
    events = json.loads(least.read_text(encoding="utf-8"))["events"]
    assert 1 <= len(events) <= 5
    assert {event["fault"] for event in events} == {"V4"}
    [deleted] = {rule["target"] for event in events for rule in event["rules"]}
    assert main(["replay", str(least)]) == 1
    assert f"I1: {deleted} is gone, and the morning does not name it" in capsys.readouterr().out


def test_an_aimed_night_is_shrunk_on_its_own_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    careless = tuple(whereabouts for whereabouts in day._REPORTED if whereabouts is not Whereabouts.GONE)
    monkeypatch.setattr(day, "_REPORTED", careless)
    least = tmp_path / "least.json"
    assert main(["shrink", "1", "--aims", "V4/away,T11/wait,H4/look", "--out", str(least)]) == 0
    document = json.loads(least.read_text(encoding="utf-8"))
    assert [(event["fault"], event["state"]) for event in document["events"]] == [("V4", "away")]
    capsys.readouterr()
    assert main(["replay", str(least)]) == 1
    assert "is gone, and the morning does not name it" in capsys.readouterr().out


def test_an_engine_that_crashes_is_told_by_its_seed_and_other_nights_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(self: object, *arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(day.RotateDay, "plan", crash)
    assert main(["play", "--nights", "2", "--first", str(SEED), "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    assert "2 nights, " in output
    assert output.count("ZeroDivisionError: a bug (replay: ") == 2
    assert f"seed {SEED}, commit " in output


def test_a_night_that_breaks_nothing_is_not_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(SEED)]) == 0
    assert "breaks no invariant" in capsys.readouterr().out
    assert main(["play", "--nights", "1", "--first", str(SEED), "--jobs", "1"]) == 0
    assert "schedule:" not in capsys.readouterr().out
