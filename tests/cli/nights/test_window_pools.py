"""A window that names pools takes desktops of these alone, as `rotate plan` and a night over the wire tell."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.clock import wall_clock
from tests.cli.conftest import Lab

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")
SECOND_POOL = """pools:
  - name: elsewhere
    parked: true
    select: {folder: misc, profile: "*-8q"}
    owner: none
    idle: {cpu_below_mhz: 500}
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("pool", ["office", "elsewhere"])
def test_a_window_takes_its_pools_alone(lab: Lab, tmp_path: Path, pool: str) -> None:
    now = wall_clock()
    opens, closes = now - timedelta(hours=2), now + timedelta(hours=9)
    hours = f'windows: [{{opens: "{opens:%H:%M}", closes: "{closes:%H:%M}", zone: UTC, pools: [{pool}]}}]'
    policy = tmp_path / "policy.yaml"
    text = LAB_POLICY.replace("windows: any", hours).replace("pools:\n", SECOND_POOL, 1)
    policy.write_text(text, encoding="utf-8")
    planned = json.loads(lab.run("rotate", "plan", "--policy", str(policy), "--output", "json").stdout)
    lab.run("rotate", "night", "--policy", str(policy), "--yes")
    suspended = [effect for effect in lab.effects if effect.startswith("SuspendVM_Task vdi-")]
    assert bool(suspended) is (pool == "office")
    stays = {choice["subject"]: choice["reason"] for choice in planned["choices"] if not choice["chosen"]}
    reason = "pool office is not one of the pools of this window"
    assert (stays.get("vdi-07") == reason) is (pool == "elsewhere")
    assert lab.run("rotate", "day", "--policy", str(policy), "--yes").exit_code == 0


def test_a_night_of_a_weekend_is_shown_with_its_days(lab: Lab, tmp_path: Path) -> None:
    hours = 'windows: [{opens: "fri 20:00", closes: "mon 05:00", back_by: "mon 07:00", zone: UTC}]'
    policy = tmp_path / "policy.yaml"
    policy.write_text(LAB_POLICY.replace("windows: any", hours), encoding="utf-8")
    plan = lab.run("rotate", "plan", "--policy", str(policy), "--at", "2026-11-28T12:00Z").stdout.replace("\n", " ")
    assert "night 2026-11-27" in plan
    assert "open from Fri 20:00 to Mon 05:00, desktops back by Mon 07:00" in plan
