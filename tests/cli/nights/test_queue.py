"""`gpuops queue` as typed: the order of tonight, how teams stand, and what is wrong input. Nothing is ever done."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from pyVmomi import vim

from gpuops.clock import machine_time, set_ahead, wall_clock
from gpuops.sim.core.object_store import somebody
from tests.cli.conftest import LAB_POLICY, Lab

SCENARIOS: Final = files("gpuops.sim") / "scenarios"
TEAMS: Final = str(SCENARIOS / "lab-teams-policy.yaml")
SPARE: Final = str(SCENARIOS / "lab-spare-policy.yaml")
SHARED: Final = "\nfair_share: {by: 'attribute:gpuops.owner', teams: {research: {at_most: {gpu_hours_per_week: 40}}}}\n"
MONDAY: Final = ("--at", "2026-11-23 22:00")


def queue_answer(lab: Lab, *words: str) -> dict[str, Any]:
    queue_run = lab.run("queue", *words, "--output", "json")
    assert (queue_run.exit_code, lab.effects) == (0, [])
    answer: dict[str, Any] = json.loads(queue_run.stdout)
    return answer


def turns(answer: dict[str, Any]) -> list[tuple[int | None, str, str]]:
    return [(turn["place"], turn["name"], turn["turn"]) for turn in answer["queue"]]


def test_the_queue_is_told_in_the_order_of_the_night(lab: Lab) -> None:
    answer = queue_answer(lab, "--policy", TEAMS, *MONDAY)
    assert (answer["kind"], answer["night"]) == ("ml-queue", "2026-11-23")
    assert turns(answer) == [(1, "ml-01", "starts"), (2, "ml-06", "starts"), (3, "ml-09", "waits")]
    assert answer["queue"][2]["reason"] == "team research has 1.5 of 1.5 GPUs at once"
    assert answer["queue"][0]["starts_at"] == "2026-11-23T21:02:00+00:00"
    assert [(team["team"], team["gpus_at_most"], team["gpu_hours_left"]) for team in answer["teams"]] == [
        ("research", 1.5, 100.0),
        ("vision", None, None),
    ]


@pytest.mark.long
def test_the_night_plan_says_the_same(lab: Lab) -> None:
    plan = lab.run("rotate", "plan", "--policy", TEAMS, *MONDAY, "--output", "json")
    choices = {choice["subject"]: choice["reason"] for choice in json.loads(plan.stdout)["choices"]}
    assert {turn["name"]: turn["reason"] for turn in queue_answer(lab, "--policy", TEAMS, *MONDAY)["queue"]} == {
        name: choices[name] for name in ("ml-01", "ml-06", "ml-09")
    }


@pytest.mark.long
def test_without_teams_there_is_the_queue_alone(lab: Lab) -> None:
    answer = queue_answer(lab, "--policy", LAB_POLICY)
    assert (answer["fair_share"], answer["teams"]) == (None, [])
    assert answer["queue"] and all(turn["team"] is None for turn in answer["queue"])
    assert "team" not in lab.run("queue", "--policy", LAB_POLICY).stdout


@pytest.mark.long
def test_the_queue_of_a_watch_is_that_of_now(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(SPARE).read_text(encoding="utf-8") + SHARED, encoding="utf-8")
    answer = queue_answer(lab, "--policy", str(policy))
    assert turns(answer) == [(1, "ml-01", "starts"), (2, "ml-02", "starts"), (3, "ml-06", "waits")]
    shares = {"by": "attribute:gpuops.owner", "half_life_days": 7.0}
    assert answer["fair_share"] == shares
    refused = lab.run("queue", "--policy", str(policy), "--at", "22:00")
    assert refused.exit_code == 2 and "gpuops shows only the present queue" in refused.stderr


@pytest.mark.long
def test_what_runs_for_a_night_is_counted_for_its_team(lab_by_night: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(LAB_POLICY).read_text(encoding="utf-8") + SHARED, encoding="utf-8")
    set_ahead(wall_clock() - machine_time() + timedelta(minutes=5))
    queue_run = lab_by_night.run("queue", "--policy", str(policy), "--output", "json")
    answer = json.loads(queue_run.stdout)
    [team] = answer["teams"]
    running = [turn for turn in answer["queue"] if turn["turn"] == "runs"]
    assert running and team["gpus"] == pytest.approx(sum(turn["gpus"] for turn in running), abs=0.01)
    assert team["gpu_hours_week"] < 1 and team["used_share"] == 1.0 and team["uncounted_runs"] == 0
    bare = lab_by_night.run("queue", "--output", "json")
    assert json.loads(bare.stdout)["policy"] == answer["policy"], "without --policy, that of the last night"


@pytest.mark.long
def test_whose_a_vm_was_is_noted_when_it_is_taken(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(LAB_POLICY).read_text(encoding="utf-8") + SHARED, encoding="utf-8")
    assert lab.run("rotate", "night", "--policy", str(policy), "--yes").exit_code == 0
    world = lab.server.world
    key = world.custom_fields.define("gpuops.owner")
    ran = {entry.moid for entry in lab.server.world.ledger if entry.method == "PowerOnVM_Task"}
    assert ran
    for moid in ran:
        world.get("CustomFieldsManager").SetField(somebody(world, "SetField"), vim.VirtualMachine(moid), key, "vision")
    answer = json.loads(lab.run("queue", "--policy", str(policy), "--output", "json").stdout)
    assert {team["team"]: team["used_share"] for team in answer["teams"]} == {"research": 1.0, "vision": 0.0}


def test_wrong_input_is_one_line(lab: Lab, tmp_path: Path) -> None:
    assert lab.run("queue").exit_code == 2
    for wrong, message in {
        "{}": "fair_share.by",
        "{by: team}": "fair_share.by: 'team' does not name a source of VM owners",
        "{by: folder, teams: {a: {weight: 0}}}": "fair_share.teams.a.weight",
        "{by: folder, teams: {a: {at_most: {}}}}": "an empty `at_most` limits nothing",
        "{by: folder, teams: {a: {at_most: {gpus: .nan}}}}": "fair_share.teams.a.at_most.gpus",
        "{by: folder, half_life_days: 0}": "fair_share.half_life_days",
        "{by: folder, team: {}}": "did you mean `teams`?",
    }.items():
        policy = tmp_path / "policy.yaml"
        text = Path(LAB_POLICY).read_text(encoding="utf-8")
        policy.write_text(f"{text}\nfair_share: {wrong}\n", encoding="utf-8")
        refusal = lab.run("queue", "--policy", str(policy))
        assert refusal.exit_code == 2 and message in refusal.stderr, (wrong, refusal.stderr)
        assert "Traceback" not in refusal.stderr
