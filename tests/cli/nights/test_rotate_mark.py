"""`gpuops rotate mark` as typed, over real SOAP."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.conftest import Lab

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")
DESKTOPS = tuple(f"vdi-{number:02d}" for number in range(1, 13))


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(LAB_POLICY, encoding="utf-8")
    return path


def mark_of(lab: Lab, name: str, attribute: str) -> str | None:
    """The value that the simulated vCenter has."""
    world = lab.server.world
    vm = next(vm for vm in world.by_type("VirtualMachine") if vm.name == name)
    keys = {field.name: key for key, field in world.custom_fields.fields.items()}
    return vm.state.attributes.get(keys.get(attribute, -1)) or None


def test_an_opt_out_is_set_shown_and_cleared(lab: Lab, policy: Path) -> None:
    words = ("rotate", "mark", "--opt-out", "--vm", "vdi-07", "--policy", str(policy))
    dry = lab.run(*words, "--dry-run")
    assert (dry.exit_code, lab.effects) == (0, [])
    marking = lab.run(*words)
    assert marking.exit_code == 0
    assert mark_of(lab, "vdi-07", "gpuops.opt-out") == "true"
    before = lab.effects
    repeated = lab.run(*words)
    assert (repeated.exit_code, lab.effects) == (0, before)
    assert "vdi-07: attribute gpuops.opt-out is set already" in repeated.stdout
    assert "opted out (attribute gpuops.opt-out)" in lab.run("idle", "--policy", str(policy)).stdout
    plan = json.loads(lab.run("rotate", "plan", "--policy", str(policy), "--output", "json").stdout)
    assert "opted out (attribute gpuops.opt-out)" in json.dumps(plan)
    undone = lab.run(*words, "--undo", "--yes")
    assert undone.exit_code == 0
    assert mark_of(lab, "vdi-07", "gpuops.opt-out") is None
    assert "vdi-07: attribute gpuops.opt-out is not set" in lab.run(*words, "--undo").stdout


def test_the_owners_mark_of_a_pool_overwrites_no_other_owners(lab: Lab, policy: Path) -> None:
    words = ("rotate", "mark", "--opt-in", "--pool", "office", "--policy", str(policy))
    owners = {name: mark_of(lab, name, "gpuops.owner") for name in DESKTOPS}
    of_others = {name for name, value in owners.items() if value not in (None, "office")}
    assert of_others
    document = json.loads(lab.run(*words, "--output", "json").stdout)
    assert (document["kind"], document["exit_code"]) == ("rotate-mark", 0)
    for name, value in owners.items():
        assert mark_of(lab, name, "gpuops.owner") == (value if name in of_others else "office")
    named = lab.run(*words[:3], "--vm", min(of_others), *words[-2:])
    assert named.exit_code == 3
    assert "is left alone" in " ".join(named.output.split())
    assert lab.run(*words, "--undo").exit_code == 0
    assert {mark_of(lab, name, "gpuops.owner") for name in DESKTOPS} == {None, *(owners[name] for name in of_others)}


def test_a_folder_means_the_desktops_of_the_policy_in_it(lab: Lab, policy: Path) -> None:
    document = json.loads(
        lab.run(
            "rotate", "mark", "--opt-out", "--folder", "vdi", "--dry-run", "--policy", str(policy), "--output", "json"
        ).stdout
    )
    [wave] = document["waves"]
    assert {step["vm"]["name"] for step in wave["steps"]} <= set(DESKTOPS)
    assert lab.effects == []


def test_a_vm_in_no_pool_is_refused(lab: Lab, policy: Path) -> None:
    refused = lab.run("rotate", "mark", "--opt-in", "--vm", "ml-01", "--policy", str(policy))
    assert (refused.exit_code, lab.effects) == (3, [])
    assert "ml-01: is in no pool of policy lab-night" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("owner", "reason", "hint"),
    [
        ("none", "pool office: has `owner: none`", "--opt-out keeps a desktop out of nights"),
        ('{tag: "owner:office"}', "its mark is the tag owner:office, and gpuops only sets attributes", "Assign Tag"),
    ],
)
def test_a_mark_that_gpuops_does_not_set_says_how_it_is_set(
    lab: Lab, policy: Path, owner: str, reason: str, hint: str
) -> None:
    text = LAB_POLICY.replace("owner:\n      attribute: gpuops.owner\n      value: office", f"owner: {owner}")
    policy.write_text(text, encoding="utf-8")
    ended = lab.run("rotate", "mark", "--opt-in", "--pool", "office", "--policy", str(policy))
    assert (ended.exit_code, lab.effects) == (3, [])
    assert reason in " ".join(ended.output.split())
    assert hint in " ".join(ended.output.split())
