"""A night and a morning as tasks: predicted, done, and nothing the second time."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.tasks.night_tasks import rotation, rotation_info
from tests.tasks.conftest import Lab

POLICY = str(Path(__file__).resolve().parents[2] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml")
NIGHT_MARK = "gpuops.rotation"


def without_night(diff: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The marker's value is the moment at which the night began."""
    for part in diff:
        for side in ("before", "after"):
            part[side].get("attributes", {}).pop(NIGHT_MARK, None)
    return diff


@pytest.mark.long
def test_a_night_and_a_morning(lab: Lab) -> None:
    foreseen = rotation(lab.said, state="night", policy=POLICY, apply=False)
    assert foreseen.result["changed"]
    assert lab.effects == []
    night = rotation(lab.said, state="night", policy=POLICY, apply=True)
    assert (night.exit_code, night.result["changed"]) == (0, True)
    assert without_night(night.result["diff"]) == without_night(foreseen.result["diff"])
    powers = {diff["after_header"]: diff["after"].get("power") for diff in night.result["diff"]}
    assert powers["vdi-07"] == "suspended"
    assert powers["ml-09"] == "poweredOn"
    open_night = rotation_info(lab.said).result["rotation"]
    assert open_night["away"] == len(night.result["diff"])
    assert rotation(lab.said, state="night", policy=POLICY, apply=True).result["changed"] is False

    foreseen = rotation(lab.said, state="day", apply=False)
    day = rotation(lab.said, state="day", apply=True)
    assert (day.exit_code, day.result["changed"]) == (0, True)
    assert day.result["diff"] == foreseen.result["diff"]
    assert rotation_info(lab.said).result["rotation"]["away"] == 0
    assert rotation(lab.said, state="day", apply=True).result["changed"] is False
    assert rotation(lab.said, state="resumed", apply=True).result["changed"] is False


def test_a_night_takes_no_desktop_that_somebody_began_to_work_with(lab: Lab) -> None:
    used = Rule(Effect.HAPPEN, "SetField", happening="vm.used", target="vdi-*")
    lab.server.world.injector.add(used)
    night = rotation(lab.said, state="night", policy=POLICY, apply=True)
    assert night.exit_code == 4
    assert [effect for effect in lab.effects if effect.startswith("SuspendVM_Task")] == []
    assert any("uses 5200 MHz, idle is below 500" in reason for reason in night.result["reasons"])


@pytest.mark.long
def test_a_night_by_ansible_needs_a_policy_that_says_its_hours(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text(encoding="utf-8").replace("windows: any", ""), encoding="utf-8")
    foreseen = rotation(lab.said, state="night", policy=str(policy), apply=False)
    assert (foreseen.exit_code, foreseen.result["changed"]) == (0, True)
    assert any("has no `windows`" in warning for warning in foreseen.warnings)
    night = rotation(lab.said, state="night", policy=str(policy), apply=True)
    assert (night.exit_code, night.result["changed"], lab.effects) == (3, False, [])
    assert "has no `windows`" in night.result["reasons"][0]
    assert rotation(lab.said, state="day", policy=str(policy), apply=True).exit_code == 0


@pytest.mark.long
def test_one_desktop_comes_back(lab: Lab) -> None:
    rotation(lab.said, state="night", policy=POLICY, apply=True)
    back = rotation(lab.said, state="restored", vms=("ml-01",), apply=True)
    assert [diff["after_header"] for diff in back.result["diff"]] == ["ml-01"]


@pytest.mark.long
def test_a_policy_that_is_gone_by_the_morning_keeps_nobody_away(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text())
    rotation(lab.said, state="night", policy=str(policy), apply=True)
    policy.unlink()
    assert rotation(lab.said, state="day", policy=str(policy), apply=True).exit_code == 4
    assert rotation_info(lab.said).result["rotation"]["away"] == 0
    assert rotation(lab.said, state="day", apply=True).exit_code == 0


@pytest.mark.long
def test_an_edited_policy_keeps_nobody_away(lab: Lab, tmp_path: Path) -> None:
    """An ML VM out of the queue, a narrowed pool, another marker."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text())
    rotation(lab.said, state="night", policy=str(policy), apply=True)
    edited = Path(POLICY).read_text().replace("folder: vdi", "folder: vdi\n      name: vdi-07")
    policy.write_text(edited.replace("    - vm: ml-09\n", "").replace("gpuops.rotation", "site.night"))
    assert rotation(lab.said, state="day", policy=str(policy), apply=True).exit_code == 0
    assert rotation_info(lab.said).result["rotation"]["away"] == 0
    keys = [key for key, field in lab.server.world.custom_fields.fields.items() if field.name == NIGHT_MARK]
    assert not any(vm.attributes.get(key) for vm in lab.server.world.by_type("VirtualMachine") for key in keys)


@pytest.mark.long
def test_the_status_is_a_state_too(lab: Lab) -> None:
    rotation(lab.said, state="night", policy=POLICY, apply=True)
    effects = lab.effects
    status = rotation(lab.said, state="status", apply=True)
    assert (status.exit_code, status.result["changed"]) == (0, False)
    assert status.result == rotation_info(lab.said).result
    assert status.result["rotation"]["away"] > 0
    assert lab.effects == effects


@pytest.mark.long
def test_a_damaged_journal_fails_and_the_markers_are_told(lab: Lab, clean: Path) -> None:
    rotation(lab.said, state="night", policy=POLICY, apply=True)
    journal = clean / ".local" / "state" / "gpuops" / "journal.sqlite"
    journal.write_bytes(b"no journal" * 1000)
    status = rotation(lab.said, state="status", policy=POLICY, apply=True)
    assert (status.exit_code, status.result["changed"]) == (7, False)
    assert status.result["reasons"]
    assert status.message.startswith(status.result["reasons"][0])
    assert status.result["rotation"]["away"] > 0


@pytest.mark.long
def test_the_night_to_come_is_told_and_nothing_is_done(lab: Lab) -> None:
    answer = rotation_info(lab.said, policy=POLICY, at="2026-11-23T22:00Z").result
    assert json.loads(json.dumps(answer))["night"]["kind"] == "rotation-plan"
    assert rotation_info(lab.said, policy=POLICY).result["night"] is None
    assert lab.effects == []


@pytest.mark.long
def test_options_go_with_a_state(lab: Lab) -> None:
    with pytest.raises(UsageError, match="state=restored"):
        rotation(lab.said, state="day", vms=("vdi-07",), apply=True)
    with pytest.raises(UsageError, match="needs a policy"):
        rotation(lab.said, state="night", apply=True)
    with pytest.raises(UsageError, match="at: 'tonight'"):
        rotation_info(lab.said, at="tonight")


@pytest.mark.long
def test_a_morning_waits_for_a_vcenter_that_is_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    world, pauses = lab.server.world, list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        with world.lock:
            world.clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    rotation(lab.said, state="night", policy=POLICY, apply=True)
    world.down_until = world.clock.now() + timedelta(minutes=5)
    day = rotation(lab.said, state="day", policy=POLICY, apply=True)
    assert (day.exit_code, day.result["changed"], len(pauses) > 0) == (0, True, True)
    assert [": waiting for vCenter until " in line for line in day.warnings] == [True, False]
    assert rotation_info(lab.said).result["rotation"]["away"] == 0
