"""A night foreseen at the command line: over the wire or on a saved inventory, and nothing is ever done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from typer.testing import Result

from gpuops.clock import wall_clock
from tests.cli.conftest import Lab

Gpuops = Callable[..., Result]
NIGHTLY = str(files("gpuops.sim") / "scenarios" / "lab-nightly-policy.yaml")
MONDAY = ("rotate", "plan", "--policy", NIGHTLY, "--at", "2026-11-23 22:00")


def document(result: Result) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_the_whole_night_is_told_in_utc(lab: Lab) -> None:
    result = lab.run(*MONDAY, "--output", "json")
    answer = document(result)
    assert result.exit_code == 0
    assert (answer["kind"], answer["night"], answer["at"]) == (
        "rotation-plan",
        "2026-11-23",
        "2026-11-23T21:00:00+00:00",
    )
    assert answer["window"] == {
        "zone": "Europe/Berlin",
        "opens": "2026-11-23T19:00:00+00:00",
        "closes": "2026-11-24T04:00:00+00:00",
        "back_by": "2026-11-24T06:00:00+00:00",
    }
    assert {(vm["name"], vm["how"], vm["for"]) for vm in answer["desktops"]} == {
        (f"vdi-{number}", "suspend", "ml-09") for number in ("07", "08", "09", "10")
    }
    ends = {vm["name"]: vm["ends"] for vm in answer["ml"]}
    assert ends == {
        "ml-01": "2026-11-24T01:00:00+00:00",
        "ml-06": "2026-11-24T05:15:00+00:00",
        "ml-09": "2026-11-24T05:15:00+00:00",
    }
    assert answer["gpu_hours"] == pytest.approx(sum(vm["gpu_hours"] for vm in answer["ml"]))
    assert lab.effects == []


@pytest.mark.long
def test_every_vm_has_a_reason_and_every_desktop_a_way_back(lab: Lab) -> None:
    answer = document(lab.run(*MONDAY, "--output", "json"))
    reasons = {choice["subject"]: choice["reason"] for choice in answer["choices"]}
    assert set(reasons) == {"ml-01", "ml-06", "ml-09", *(f"vdi-{number:02d}" for number in range(1, 13))}
    assert all(reasons.values())
    [way_back] = answer["returns"]
    assert (way_back["proved"], way_back["instants"]) == (True, 4)
    assert way_back["nothing_taken_from"] == "2026-11-24T05:15:00+00:00"
    seats = [seat for back in way_back["order"] for seat in back["seats"]]
    assert len({(seat["gpu"], seat["place"]) for seat in seats}) == 4, "each has a place of its own"


@pytest.mark.long
def test_a_saved_inventory_gives_the_same_night(lab: Lab, gpuops: Gpuops, saved_lab: Path) -> None:
    answer = document(lab.run(*MONDAY, "--output", "json"))
    saved = document(gpuops(*MONDAY, "--inventory", str(saved_lab), "--output", "json"))
    assert {**saved, "read_at": ""} == {**answer, "read_at": ""}


@pytest.mark.long
def test_a_night_is_foreseen_as_it_then_is(lab: Lab) -> None:
    """The plan of `rotate night` and what `rotate plan` says are one."""
    policy = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")
    foreseen = document(lab.run("rotate", "plan", "--policy", policy, "--output", "json"))
    night = document(lab.run("rotate", "night", "--policy", policy, "--yes", "--output", "json"))
    steps = [step for wave in night["waves"] for step in wave["steps"]]
    assert {vm["name"] for vm in foreseen["desktops"]} == {
        step["vm"]["name"] for step in steps if step["kind"] == "suspend"
    }
    assert {vm["name"] for vm in foreseen["ml"]} == {step["vm"]["name"] for step in steps if step["kind"] == "power_on"}
    later_plan = lab.run("rotate", "plan", "--all")
    assert (later_plan.exit_code, "0 ML VMs would start" in later_plan.stdout) == (0, True), (
        "by the last night's policy"
    )
    assert "vdi-07  suspended tonight" in later_plan.stdout
    assert later_plan.stdout.splitlines()[1].endswith("4 come back, proved"), "the result comes first"


@pytest.mark.parametrize(
    ("arguments", "message", "move"),
    [
        (("--policy", NIGHTLY, "--at", "soon"), "error: --at: 'soon' is not a date with a time", "'2026-11-23 22:00'"),
        (("--at", "2026-11-23 22:00"), "error: no night in the journal of this vCenter", "--policy FILE"),
        (
            ("--policy", NIGHTLY.replace("-nightly", ""), "--at", "2026-11-23 22:00"),
            "error: 2026-11-23 22:00 needs a time zone: the policy has no windows",
            "2026-11-23T22:00Z",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_line(lab: Lab, arguments: tuple[str, ...], message: str, move: str) -> None:
    result = lab.run("rotate", "plan", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    line, hint = result.stderr.splitlines()
    assert line == message
    assert move in hint


@pytest.mark.long
def test_at_any_hour_the_next_night_is_planned(lab: Lab) -> None:
    """The evening's own while it may be taken, else the first to open."""
    result = lab.run("rotate", "plan", "--policy", NIGHTLY)
    assert "outside the window" not in result.stdout
    assert re.match(r"policy lab-nightly, night \d{4}-\d\d-\d\d, ", result.stdout)


def test_once_tonights_return_has_begun_the_next_night_is_planned(lab: Lab, tmp_path: Path) -> None:
    now = wall_clock()
    clocks = [f"{now + timedelta(hours=hours):%H:%M}" for hours in (-2, 4)]
    window = "windows: [{{opens: '{}', closes: '{}', zone: UTC}}]".format(*clocks)
    policy = tmp_path / "policy.yaml"
    lab_policy = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")
    policy.write_text(lab_policy.replace("windows: any", window), encoding="utf-8")
    options = ("--policy", str(policy))
    tonight = document(lab.run("rotate", "plan", *options, "-o", "json"))["night"]
    assert lab.run("rotate", "night", *options, "--yes").exit_code == 0
    assert document(lab.run("rotate", "plan", *options, "-o", "json"))["night"] == tonight
    assert lab.run("rotate", "day", *options, "--yes").exit_code == 0
    following = document(lab.run("rotate", "plan", *options, "-o", "json"))
    assert following["night"] > tonight
    assert following["ml"], "it is planned, and not called over"


@pytest.mark.long
def test_a_time_of_day_alone_is_the_next_such_moment_in_the_zone_of_the_windows(lab: Lab) -> None:
    answer = json.loads(lab.run("rotate", "plan", "--policy", NIGHTLY, "--at", "22:00", "--output", "json").stdout)
    at = datetime.fromisoformat(answer["at"])
    assert f"{at.astimezone(ZoneInfo('Europe/Berlin')):%H:%M}" == "22:00"
    assert timedelta() <= at - wall_clock() <= timedelta(hours=25)
    wrong = lab.run("rotate", "plan", "--policy", NIGHTLY, "--at", "25:00")
    assert (wrong.exit_code, wrong.stderr.splitlines()[0]) == (2, "error: --at: '25:00' is not a date with a time")


@pytest.mark.long
def test_a_moment_outside_the_window_is_refused_with_the_next_night(lab: Lab) -> None:
    result = lab.run(*MONDAY[:-1], "2026-11-21 22:00", "--all")
    assert result.exit_code == 3
    assert "refused: lab-nightly: outside the window: it is 2026-11-21 22:00 Europe/Berlin, " in result.stdout
    assert "the next night is from 2026-11-23 20:00 to 05:00" in result.stdout
    assert "vdi-07  idle; there is no night now" in result.stdout
    assert result.stdout.splitlines()[1] == "no night: refused for 1 reason"
