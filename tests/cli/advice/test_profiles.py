"""`gpuops profiles` as typed: the profiles of a GPU model, which run together, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from gpuops.catalog import load

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]


def document(gpuops: Gpuops, *words: str) -> Any:
    result = gpuops("profiles", *words, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize("model", ["a30", "a40", "rtx-pro-6000", "t4", "h20"])
def test_text(gpuops: Gpuops, golden: Golden, model: str) -> None:
    result = gpuops("profiles", model)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"profiles-{model}.txt", result.stdout)


def test_which_mig_profiles_mix_on_an_h100(gpuops: Gpuops) -> None:
    mig = document(gpuops, "H100")["mig"]
    assert {"3g.40gb": 1, "1g.10gb": 4} in mig["sets"]
    assert {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1} in mig["sets"]
    assert {"3g.40gb": 1, "1g.10gb": 3} not in mig["sets"], "it is some of another set"
    assert mig["one_may_be"] == {"1g.10gb": "1g.10gb+me"}
    by_name = {kind["name"]: kind["profiles"] for kind in mig["gpu_instances"]}
    assert (by_name["3g.40gb"], by_name["1g.10gb+me"]) == (["nvidia_h100-3-40c"], ["nvidia_h100-1-10cme"])


def test_mixed_sizes_beside_each_other(gpuops: Gpuops) -> None:
    rows = {row["memory_mib"]: row for row in document(gpuops, "a40")["mixed_sizes"]}
    assert (rows[8192]["most"], rows[8192]["starts_gib"]) == (4, [0, 16, 24, 40])
    beside = {
        size_row["memory_mib"]: (size_row["at_least"], size_row["at_most"]) for size_row in rows[8192]["next_to_one"]
    }
    assert (beside[49152], beside[16384], beside[24576]) == ((0, 0), (1, 2), (1, 1))


def test_without_a_model_every_model_is_one_line(gpuops: Gpuops) -> None:
    boards = load(everything=True).boards
    lines = gpuops("profiles").stdout.splitlines()
    assert len(lines) == len(boards) + 2, "a heading, and how to go on"
    assert [line.split()[0] for line in lines[1:-1]] == [board.key for board in boards]
    models = document(gpuops)["models"]
    assert [(model["model"], model["profiles"]) for model in models][:1] == [("m10", 14)]


@pytest.mark.parametrize("text", ["a100", "A100", "NVIDIA A100 PCIe 40GB"])
def test_a_model_is_named_by_key_or_name(gpuops: Gpuops, text: str) -> None:
    assert document(gpuops, text)["model"]["model"] == "a100"


def test_an_unknown_model_names_near_ones(gpuops: Gpuops) -> None:
    result = gpuops("profiles", "h10")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: no GPU model 'h10' in the catalogue; did you mean h100")
    assert "next: gpuops profiles lists the GPU models" in result.stderr
    assert json.loads(gpuops("profiles", "h10", "-o", "json").stdout)["code"] == "usage-error"


def test_a_model_without_published_starts_of_instances_is_shown(gpuops: Gpuops) -> None:
    """Quick sibling of the next one."""
    assert gpuops("profiles", "b200x").exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("key", [board.key for board in load(everything=True).boards])
def test_each_model_of_the_catalogue_is_shown(gpuops: Gpuops, key: str) -> None:
    assert document(gpuops, key)["model"]["model"] == key


def test_the_format_before_the_command_holds(gpuops: Gpuops) -> None:
    assert json.loads(gpuops("--output", "json", "profiles").stdout)["kind"] == "profiles-models"
    assert json.loads(gpuops("--output", "json", "sim", "faults").stdout)["kind"] == "faults"
