"""`gpuops readiness` on simulated vCenters and on a saved inventory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
SCATTERED = ("--vcenter", "sim:scattered")


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), [("all", ()), ("host", ("--host", "esx-01*"))])
def test_text(gpuops: Gpuops, golden: Golden, name: str, words: tuple[str, ...]) -> None:
    result = gpuops("readiness", *words, *SCATTERED)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"readiness-{name}.txt", result.stdout)


def test_vms_that_stay_for_one_reason_are_one_line_and_nothing_is_done(lab: Lab, golden: Golden) -> None:
    result = lab.run("readiness")
    assert (result.exit_code, result.stderr) == (0, "")
    golden("readiness-lab.txt", result.stdout)
    assert lab.effects == []


@pytest.mark.long
def test_json(gpuops: Gpuops, golden: Golden) -> None:
    result = gpuops("readiness", "--host", "esx-0[14]*", *SCATTERED, "--output", "json")
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    assert (answer["schema_version"], answer["kind"], answer["ready"]) == (1, "readiness", True)
    del answer["read_at"]
    golden("readiness.json", json.dumps(answer, indent=2) + "\n")


@pytest.mark.long
@pytest.mark.parametrize(("host", "exit_code"), [("esx-01*", 0), ("esx-02*", 3), ("*", 3)])
def test_strict_ends_with_three_where_a_host_cannot_be_emptied(gpuops: Gpuops, host: str, exit_code: int) -> None:
    result = gpuops("readiness", "--strict", "--host", host, *SCATTERED)
    assert (result.exit_code, result.stderr) == (exit_code, "")
    assert "can be emptied" in result.stdout.splitlines()[-1]


@pytest.mark.long
def test_a_saved_inventory_answers_alike(gpuops: Gpuops, golden: Golden, tmp_path: Path) -> None:
    """Stun estimates and options of DRS are saved too."""
    path = str(tmp_path / "saved.json")
    assert gpuops("inventory", "--save", path, *SCATTERED).exit_code == 0
    saved = gpuops("readiness", "--inventory", path)
    assert (saved.exit_code, saved.stderr) == (0, "")
    golden("readiness-all.txt", saved.stdout)
