"""`gpuops defrag` on simulated vCenters and on a saved inventory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from gpuops.cli.app import app
from gpuops.plan.core.scope import Scope
from gpuops.plan.moving.defrag import Defrag
from gpuops.sim.server import start
from tests.cli.conftest import Lab, lab_on

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
SCATTERED = ("--vcenter", "sim:scattered")
FEW = ("--whole-gpus", "--max-moves", "1", "--dry-run")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all", ()),
        ("few", FEW),
        ("profile", ("--profile", "a40-24q", "--host", "esx-0[34]*")),
        ("nowhere", ("--host", "esx-01", "--cluster", "scattered-cluster")),
    ],
)
def test_text(gpuops: Gpuops, golden: Golden, name: str, words: tuple[str, ...]) -> None:
    result = gpuops("defrag", "--dry-run", *words, *SCATTERED)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"defrag-{name}.txt", result.stdout)


def test_where_vmotion_is_off_it_says_what_may_be_done(lab: Lab, golden: Golden) -> None:
    result = lab.run("defrag", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    golden("defrag-lab.txt", result.stdout)
    assert lab.run("defrag", "--dry-run", "--powered-off").exit_code == 0
    assert lab.effects == []


@pytest.fixture
def scattered(tmp_path: Path, clean: Path) -> Iterator[Lab]:
    with start("scattered", clock="stepped") as server, lab_on(server, tmp_path, clean) as lab:
        yield lab


def test_a_budget_moves_no_vm_that_would_stand_still_for_too_long(scattered: Lab) -> None:
    cluster = next(iter(scattered.server.world.by_type("ClusterComputeResource")))
    cluster.drs.options["VmDevicesStunTimeTolerated"] = "1"
    document = json.loads(scattered.run("defrag", "--budget", "2", "--dry-run", "--output", "json").stdout)
    assert document["moves"] == []
    assert sum("1 s are tolerated" in str(stay["reasons"]) for stay in document["vms_that_stay"]) > 10


def test_a_budget_is_moved_and_then_less_memory_is_fragmented(scattered: Lab) -> None:
    before = json.loads(scattered.run("defrag", "--budget", "2", "--dry-run", "--output", "json").stdout)["fragmented"]
    moved = scattered.run("defrag", "--budget", "2", "--yes")
    assert moved.exit_code == 0, moved.stderr
    assert [effect.partition(" ")[0] for effect in scattered.effects].count("RelocateVM_Task") == 2
    after = json.loads(scattered.run("defrag", "--budget", "2", "--dry-run", "--output", "json").stdout)["fragmented"]
    assert after["before_mib"] == before["after_mib"] < before["before_mib"]


@pytest.mark.parametrize("goal", [("--profile", "a40-24q"), ("--max-moves", "3"), ("--whole-gpus",)])
def test_a_budget_excludes_other_goals(gpuops: Gpuops, goal: tuple[str, ...]) -> None:
    result = gpuops("defrag", "--budget", "2", *goal, "--dry-run", *SCATTERED)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: --budget and {goal[0]} exclude each other" in result.stderr


@pytest.mark.long
def test_json(gpuops: Gpuops, golden: Golden) -> None:
    result = gpuops("defrag", "--dry-run", "--max-moves", "2", *SCATTERED, "--output", "json")
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    assert (answer["schema_version"], answer["kind"]) == (1, "defrag")
    del answer["read_at"]
    golden("defrag.json", json.dumps(answer, indent=2) + "\n")


@pytest.mark.long
def test_a_saved_inventory_answers_alike(gpuops: Gpuops, golden: Golden, tmp_path: Path) -> None:
    path = str(tmp_path / "saved.json")
    assert gpuops("inventory", "--save", path, *SCATTERED).exit_code == 0
    saved = gpuops("defrag", *FEW, "--inventory", path)
    assert (saved.exit_code, saved.stderr) == (0, "")
    golden("defrag-few.txt", saved.stdout)


@pytest.mark.long
def test_options_are_the_request() -> None:
    command: Any = typer.main.get_command(app)
    names = {parameter.name for parameter in command.commands["defrag"].params}
    request_fields = {field.name for field in fields(Defrag)} - {"scope"} | {field.name for field in fields(Scope)} - {
        "tag"
    }
    assert request_fields <= names
