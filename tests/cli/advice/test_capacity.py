"""`gpuops capacity` on simulated vCenters and on a saved snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
POLICY = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all", ()),
        ("night", ("--policy", POLICY)),
        ("profile", ("--profile", "GRID A100-3-20C")),
        ("cluster", ("--cluster", "lab-cluster")),
        ("host", ("--host", "esx-02", "--policy", POLICY)),
    ],
)
def test_text(lab: Lab, golden: Golden, name: str, words: tuple[str, ...]) -> None:
    result = lab.run("capacity", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"capacity-{name}.txt", result.stdout)
    assert lab.effects == []


def document(lab: Lab, *words: str) -> Any:
    result = lab.run("capacity", *words, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return timeless(json.loads(result.stdout))


def timeless(document: Any) -> Any:
    """The document without the moment it was read."""
    return {key: value for key, value in document.items() if key != "read_at"}


def test_json_goes_down_to_the_numa_node(lab: Lab, golden: Golden) -> None:
    answer = document(lab, "--profile", "a40-48c", "--policy", POLICY)
    assert (answer["schema_version"], answer["kind"], answer["policy"]) == (1, "capacity", "lab-night")
    golden("capacity.json", json.dumps(answer, indent=2) + "\n")


@pytest.mark.long
def test_without_a_policy_nothing_is_said_of_the_night(lab: Lab) -> None:
    answer = document(lab)
    assert (answer["policy"], answer["desktops_to_suspend"]) == (None, None)
    assert {profile["after"] for profile in answer["profiles"]} == {None}


@pytest.mark.long
def test_yaml_is_the_same(lab: Lab) -> None:
    words = ("--host", "esx-01")
    assert timeless(yaml.safe_load(lab.run("capacity", *words, "-o", "yaml").stdout)) == document(lab, *words)


@pytest.mark.long
def test_a_saved_snapshot_answers_alike(gpuops: Gpuops, saved_lab: Path, golden: Golden) -> None:
    saved = gpuops("capacity", "--inventory", str(saved_lab), "--policy", POLICY)
    assert (saved.exit_code, saved.stderr) == (0, "")
    golden("capacity-night.txt", saved.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("capacity",),
        ("defrag", "--dry-run"),
        ("size",),
        ("place", "--vcpu", "4", "--memory", "16GiB"),
        ("attach", "--vm", "ml-07", "--dry-run"),
        ("inventory", "--hosts"),
    ],
)
def test_an_unknown_profile_is_one_error_everywhere(lab: Lab, words: tuple[str, ...]) -> None:
    result = lab.run(*words, "--profile", "a40-99q", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (2, "profile-unknown")
    assert result.stderr.startswith("error: no host offers a vGPU profile 'a40-99q'; near: nvidia_a40-8q")


@pytest.mark.long
@pytest.mark.parametrize("words", [("--add-vms", "3xa40-99q"), ("--change-profile", "vdi-*=a40-99q")])
def test_what_if_does_not_know_such_a_profile_either(lab: Lab, words: tuple[str, ...]) -> None:
    result = lab.run("what-if", *words, "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (2, "profile-unknown")


@pytest.mark.long
def test_a_file_of_requests_with_unknown_profiles_names_them(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "requests.yaml"
    path.write_text(
        "version: 1\nrequests:\n"
        "  - {name: a, profile: a40-99q, vcpu: 4, memory: 8GiB}\n"
        "  - {name: b, profile: a40-8q, vcpu: 4, memory: 8GiB}\n"
        "  - {name: c, profile: a41-8q, vcpu: 4, memory: 8GiB}\n",
        encoding="utf-8",
    )
    for words in (("place", "--file", str(path)), ("what-if", "--lose-host", "esx-02.lab", "--requests", str(path))):
        result = lab.run(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: request a: no host offers a vGPU profile 'a40-99q'; near: ")
        assert "; request c: no host offers a vGPU profile 'a41-8q'" in result.stderr


@pytest.mark.long
def test_what_suspended_vms_come_back_to_is_said_to_be_counted(lab: Lab) -> None:
    result = lab.run("capacity", "--profile", "a40-8q")
    assert result.stdout.endswith("counted as free: the GPUs of 1 suspended VM: vdi-11\n")
    assert "suspended VM" not in lab.run("capacity", "--host", "esx-01*").stdout
    assert json.loads(lab.run("capacity", "-o", "json").stdout)["suspended_vms"] == ["vdi-11"]
