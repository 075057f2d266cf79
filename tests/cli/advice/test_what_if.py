"""`gpuops what-if` as typed: both fleets side by side, nothing sent but reads, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.observe.store import Measurements
from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
TEMPLATES = Path(__file__).parents[3] / "templates"
POLICY = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")
NIGHTLY = str(files("gpuops.sim") / "scenarios" / "lab-nightly-policy.yaml")
REQUESTS = str(TEMPLATES / "requests.yaml")


def document(lab: Lab, *words: str) -> Any:
    result = lab.run("what-if", *words, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hosts", ("--add-hosts", "2xL40S:8", "--arrivals", "20", "--any-model")),
        (
            "lost",
            (
                "--lose-host",
                "esx-01",
                "--policy",
                NIGHTLY,
                "--at",
                "2026-11-02T22:00+01:00",
                "--arrivals",
                "10",
                "--seeds",
                "2",
            ),
        ),
        ("mixed", ("--vgpu-mode", "mixedSize", "--host", "esx-02*", "--requests", REQUESTS)),
        ("several", ("--changes", str(TEMPLATES / "what-if.yaml"), "--arrivals", "10", "--seeds", "2")),
    ],
)
def test_text(lab: Lab, golden: Golden, name: str, words: tuple[str, ...]) -> None:
    result = lab.run("what-if", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"what-if-{name}.txt", result.stdout)
    assert lab.effects == [], "nothing but reads"


@pytest.mark.long
def test_more_desktops_of_a_pool_are_drawn_by_seeds_and_a_night_takes_them(lab: Lab) -> None:
    words = ("--add-vms", "4xoffice", "--policy", POLICY, "--arrivals", "1", "--seeds", "3")
    answer = document(lab, *words)
    assert (answer["vms_added"], answer["then"]["added_vms_running"]["mean"]) == (4, 4.0)
    assert answer["then"]["running_vms"]["mean"] == answer["now"]["running_vms"]["mean"] + 4
    assert (len(answer["now"]["nights"]), len(answer["then"]["nights"])) == (1, 3)
    assert answer["night_at"] is not None
    repeated = document(lab, *words)
    assert {**repeated, "read_at": "", "night_at": ""} == {**answer, "read_at": "", "night_at": ""}, "seeds repeat"
    assert lab.effects == []


@pytest.mark.long
def test_recorded_days_are_asked_of_both_fleets(lab: Lab) -> None:
    answer = document(lab, "--lose-host", "esx-02")
    assert (answer["requests_from"], len(answer["now"]["requests"]["draws"])) == ("made-up arrivals", 5)
    now = lab.server.world.clock.now()
    default_state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    with Measurements.open(default_state_dir(), "", answer["vcenter"]) as store:
        for back, most in enumerate((9, 12, 30)):
            store.note_vgpus(now - timedelta(days=back), {"nvidia_a40-8q": most})
    answer = document(lab, "--lose-host", "esx-02")
    assert answer["requests_from"] == "recorded days"
    assert [draw["asked"] for draw in answer["now"]["requests"]["draws"]] == [21, 3, 0], "nine run now"
    assert answer["now"]["requests"]["placed"]["most"] > answer["then"]["requests"]["placed"]["most"]
    assert document(lab, "--lose-host", "esx-02", "--arrivals", "3")["requests_from"] == "made-up arrivals"


def test_the_changed_fleet_is_saved_for_other_commands(lab: Lab, gpuops: Gpuops, tmp_path: Path) -> None:
    then = tmp_path / "then.json"
    result = lab.run("what-if", "--add-hosts", "1xL40S:8", "--arrivals", "1", "--seeds", "1", "--save", str(then))
    assert (result.exit_code, result.stderr) == (0, "")
    room = gpuops("capacity", "--inventory", str(then), "--profile", "l40s-8q", "--output", "json")
    assert json.loads(room.stdout)["profiles"][0]["now"]["at_least"] == 8 * 6
    later_question = gpuops(
        "what-if", "--inventory", str(then), "--lose-host", "new-1-1", "--arrivals", "1", "-o", "json"
    )
    sides = json.loads(later_question.stdout)
    assert (sides["now"]["gpus"], sides["then"]["gpus"]) == (17, 9)
