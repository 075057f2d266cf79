"""`--mig-layout` of `gpuops place` and `gpuops what-if`: what would find a place if GPUs had a named layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from tests.cli.conftest import Lab

Gpuops = Callable[..., Result]
TEMPLATE = Path(__file__).parents[3] / "templates" / "mig-layout.yaml"
BALANCED = f"{TEMPLATE}:balanced"
ONE_VM = ("--vcpu", "8", "--memory", "64GiB")


def test_place_on_a_layout(lab: Lab) -> None:
    result = lab.run("place", "--profile", "a100d-3-40c", *ONE_VM, "--mig-layout", BALANCED, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["requests"][0]["place"]["host"]["name"] == "esx-02.lab"
    assert document["warnings"][0].startswith("as if: 4 GPUs of esx-01.lab, esx-02.lab with the layout balanced: ")


def test_what_the_layout_lacks_has_no_place(lab: Lab) -> None:
    result = lab.run("place", "--profile", "a100d-4-40c", *ONE_VM, "--mig-layout", BALANCED)
    assert result.exit_code == 3
    assert "its layout has no 4g.40gb" in result.stdout


def test_no_more_than_the_layout_has(lab: Lab, tmp_path: Path) -> None:
    """Two GPUs with one 3g each: without the layout four such VMs would fit."""
    entries = [f"{{name: vm-{n}, vcpu: 2, memory: 4GiB, profile: a100d-3-40c}}" for n in range(4)]
    file = tmp_path / "requests.yaml"
    file.write_text(f"version: 1\nrequests: [{', '.join(entries)}]\n", encoding="utf-8")
    for options in ((), ("--optimize",)):
        words = ("place", "--file", str(file), "--mig-layout", BALANCED, *options, "--output", "json")
        document = json.loads(lab.run(*words).stdout)
        assert (document["placed"], document["refused"]) == (2, 2), options


def test_only_hosts_that_are_named(lab: Lab) -> None:
    words = ("--profile", "a100-3-20c", *ONE_VM, "--host", "esx-01*", "--mig-layout", BALANCED)
    document = json.loads(lab.run("place", *words, "--output", "json").stdout)
    assert document["warnings"][0].startswith("as if: 2 GPUs of esx-01.lab with the layout balanced: 2 x 1g.5gb")


def test_what_if_gpus_had_a_layout(lab: Lab) -> None:
    words = ("--mig-layout", BALANCED, "--host", "esx-02*", "--model", "a100d", "--arrivals", "4", "--seeds", "1")
    result = lab.run("what-if", *words, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    changes = json.loads(result.stdout)["changes"]
    assert changes == ["2 GPUs of esx-02.lab with the layout balanced: 2 x 1g.10gb, 1 x 2g.20gb, 1 x 3g.40gb"]


def test_a_file_of_changes_says_the_same_as_the_option(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "changes.yaml"
    entry = f'{{mig_layout: {{layout: "{BALANCED}", host: "esx-02*", model: a100d}}}}'
    file.write_text(f"version: 1\nchanges: [{entry}]\n", encoding="utf-8")
    draws = ("--arrivals", "4", "--seeds", "1", "--output", "json")
    by_file = json.loads(lab.run("what-if", "--changes", str(file), *draws).stdout)
    options = ("--mig-layout", BALANCED, "--host", "esx-02*", "--model", "a100d")
    by_option = json.loads(lab.run("what-if", *options, *draws).stdout)
    assert {**by_file, "read_at": ""} == {**by_option, "read_at": ""}
    assert len(by_file["changes"]) == 1


def test_a_changed_fleet_that_is_saved_keeps_its_layout(lab: Lab, gpuops: Gpuops, tmp_path: Path) -> None:
    saved = str(tmp_path / "then.json")
    what_if = ("what-if", "--mig-layout", BALANCED, "--arrivals", "1", "--seeds", "1", "--save", saved)
    assert lab.run(*what_if).exit_code == 0
    result = gpuops("place", "--profile", "a100d-4-40c", *ONE_VM, "--inventory", saved)
    assert (result.exit_code, "its layout has no 4g.40gb" in result.stdout) == (3, True)
