"""`gpuops defrag` on simulated vCenters and on a saved inventory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import Result

from gpuops.cli.app import app
from gpuops.plan.core.scope import Scope
from gpuops.plan.moving.defrag import Defrag
from tests.cli.conftest import Lab

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


@pytest.mark.long
def test_json(gpuops: Gpuops, golden: Golden) -> None:
    result = gpuops("defrag", "--dry-run", "--max-moves", "2", *SCATTERED, "--output", "json")
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["schema_version"], found["kind"]) == (1, "defrag")
    del found["read_at"]
    golden("defrag.json", json.dumps(found, indent=2) + "\n")


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
    asked = {field.name for field in fields(Defrag)} - {"scope"} | {field.name for field in fields(Scope)} - {"tag"}
    assert asked <= names
