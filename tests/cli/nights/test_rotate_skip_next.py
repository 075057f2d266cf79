"""`gpuops rotate skip-next` as typed."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

from gpuops.clock import wall_clock
from tests.cli.conftest import Lab

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")


def test_one_night_off(lab: Lab, tmp_path: Path) -> None:
    now = wall_clock()
    opens, closes = now - timedelta(hours=2), now + timedelta(hours=9)
    policy = tmp_path / "policy.yaml"
    hours = f'windows: [{{opens: "{opens:%H:%M}", closes: "{closes:%H:%M}", zone: UTC}}]'
    policy.write_text(LAB_POLICY.replace("windows: any", hours), encoding="utf-8")
    plan = ("--policy", str(policy))
    skipped = json.loads(lab.run("rotate", "skip-next", *plan, "--output", "json").stdout)
    assert (skipped["night"], skipped["skipped"], skipped["changed"]) == (f"{opens:%Y-%m-%d}", True, True)
    night = lab.run("rotate", "night", *plan, "--yes")
    assert (night.exit_code, lab.effects) == (0, [])
    assert f"night {opens:%Y-%m-%d} is skipped" in night.stdout
    assert f"night {opens:%Y-%m-%d} is skipped" in lab.run("rotate", "plan", *plan).stdout
    [why] = json.loads(lab.run("rotate", "plan", *plan, "--output", "json").stdout)["because"]
    assert why.startswith(f"night {opens:%Y-%m-%d} is skipped")
    assert f"night {opens:%Y-%m-%d} is skipped" in lab.run("rotate", "status", *plan).stdout
    undone = lab.run("rotate", "skip-next", "--undo", *plan)
    assert undone.stdout.replace("\n", " ").strip().endswith("is not skipped any more")
    assert lab.run("rotate", "night", *plan, "--yes").exit_code == 0
    assert lab.effects != []


def test_without_a_window_one_line_says_so(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(LAB_POLICY)
    refused = lab.run("rotate", "skip-next", "--policy", str(policy))
    assert refused.exit_code == 2
    assert "a policy without a window has no next night" in refused.stderr
