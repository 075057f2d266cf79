"""`gpuops rotate init` as typed."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.conftest import Lab

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")


@pytest.mark.long
def test_once_and_a_second_time(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{LAB_POLICY}\nlock_vm: gpuops-lock\n")
    named = ("--policy", str(policy))
    night = lab.run("rotate", "night", "--yes", *named)
    assert (night.exit_code, night.stderr.splitlines()[-1]) == (
        3, "next: gpuops rotate init --policy FILE creates what is missing; use a login that may create it",
    )  # fmt: skip
    dry = lab.run("rotate", "init", "--dry-run", *named)
    assert (dry.exit_code, lab.effects) == (0, [])
    assert "missing  custom attribute gpuops.rotation" in dry.stdout
    assert "2 objects missing, nothing changed" in dry.stdout
    first = lab.run("rotate", "init", *named)
    assert first.exit_code == 0
    assert "made     VM gpuops-lock on esx-01.lab, datastore lab-ds-1, powered off" in first.stdout
    assert "without attribute gpuops.owner = office, so no night takes them:" in first.stdout
    assert "gpuops help marks explains how to set it" in " ".join(first.stdout.split())
    before = lab.effects
    second = json.loads(lab.run("rotate", "init", "--output", "json", *named).stdout)
    assert (second["complete"], second["changed"], lab.effects) == (True, False, before)
    assert {attribute["defined"] for attribute in second["attributes"]} == {True}
    assert lab.run("rotate", "night", "--yes", *named).exit_code == 0


def test_a_policy_without_a_lock_vm_gets_its_attributes(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"{LAB_POLICY}\ndrs_override: manual\n")
    init = lab.run("rotate", "init", "--policy", str(policy))
    assert (init.exit_code, "a run on another machine is not seen" in init.stdout) == (0, True)
    assert "nights need Host.Inventory.EditCluster on the clusters of the ML VMs" in init.stdout
    assert [effect.split()[0] for effect in lab.effects] == ["AddCustomFieldDef"]
    assert lab.run("rotate", "night", "--yes", "--policy", str(policy)).exit_code == 0
