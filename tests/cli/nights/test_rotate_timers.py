"""`gpuops rotate timers` as typed, calls with `--by-timer`, and warnings of timers that do not meet the windows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.clock import machine_time, set_ahead, wall_clock
from gpuops.execute.journal import FILE_NAME
from gpuops.execute.rotation import installed_timers
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.sim.fault_injection.rule import Effect, Rule
from tests.cli.conftest import Lab

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where its timers are installed; its zone is UTC."""
    for folder in ("units", "cron.d"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(installed_timers, "UNITS", (tmp_path / "units",))
    monkeypatch.setattr(installed_timers, "CRON", tmp_path / "cron.d")
    monkeypatch.setattr(installed_timers, "machine_zone", lambda: ZoneInfo("UTC"))
    return tmp_path


def policy_open(tmp_path: Path, opens: datetime, closes: datetime) -> tuple[str, str]:
    policy = tmp_path / "policy.yaml"
    hours = f'windows: [{{opens: "{opens:%H:%M}", closes: "{closes:%H:%M}", zone: UTC}}]'
    policy.write_text(LAB_POLICY.replace("windows: any", hours), encoding="utf-8")
    return "--policy", str(policy)


def test_a_timer_that_calls_the_return_in_an_open_window_ends_no_night(lab: Lab, tmp_path: Path) -> None:
    """Nor does the call that comes before the return must begin; the one after it brings everybody back."""
    now = wall_clock()
    policy = policy_open(tmp_path, now - timedelta(hours=2), now + timedelta(hours=9))
    assert lab.run("rotate", "night", *policy, "--yes", "--by-timer").exit_code == 0
    effects = lab.effects
    assert effects
    early = lab.run("rotate", "day", *policy, "--yes", "--by-timer")
    assert (early.exit_code, lab.effects) == (0, effects)
    assert "is open, and its return begins at" in early.stdout.replace("\n", " ")
    set_ahead(now + timedelta(hours=8, minutes=20) - machine_time())
    due = lab.run("rotate", "day", *policy, "--yes", "--by-timer")
    assert due.exit_code == 0, due.output
    assert len(lab.effects) > len(effects)
    assert json.loads(lab.run("rotate", "status", "--output", "json").stdout)["away"] == 0


def test_a_return_that_has_begun_is_gone_on_with_by_a_timer(lab: Lab, tmp_path: Path) -> None:
    """Somebody ends the night in its hours by `rotate day`: what is not back comes back by the next call."""
    now = wall_clock()
    policy = policy_open(tmp_path, now - timedelta(hours=2), now + timedelta(hours=9))
    assert lab.run("rotate", "night", *policy, "--yes").exit_code == 0
    refused = Rule(Effect.FAULT, "PowerOnVM_Task", target="vdi-07", fault="NoPermission", times=None)
    lab.server.world.injector.add(refused)
    assert lab.run("rotate", "day", *policy, "--yes").exit_code == 4
    assert "PowerOnVM_Task vdi-07" not in lab.effects
    lab.server.world.injector.clear()
    second_return = lab.run("rotate", "day", *policy, "--yes", "--by-timer")
    assert second_return.exit_code == 0, second_return.output
    assert lab.effects.count("PowerOnVM_Task vdi-07") == 1


def test_a_return_that_a_timer_calls_needs_no_journal(lab: Lab, tmp_path: Path) -> None:
    """Without a readable journal it is unknown what can wait: all desktops come back by their markers."""
    now = wall_clock()
    policy = policy_open(tmp_path, now - timedelta(hours=2), now + timedelta(hours=9))
    assert lab.run("rotate", "night", *policy, "--yes").exit_code == 0
    effects = lab.effects
    (default_state_dir() / FILE_NAME).write_bytes(b"not a database, but long enough to have a header" * 100)
    returned = lab.run("rotate", "day", *policy, "--yes", "--by-timer")
    assert returned.exit_code == 7
    assert any(effect.startswith("PowerOnVM_Task vdi-") for effect in lab.effects[len(effects) :])


def test_a_timer_that_calls_the_night_outside_its_hours_does_nothing(lab: Lab, tmp_path: Path) -> None:
    """Typed without --by-timer the same is refused."""
    now = wall_clock()
    policy = policy_open(tmp_path, now + timedelta(hours=3), now + timedelta(hours=9))
    called = lab.run("rotate", "night", *policy, "--yes", "--by-timer", "--quiet")
    assert (called.exit_code, called.stdout, lab.effects) == (0, "", [])
    assert lab.run("rotate", "night", *policy, "--yes").exit_code == 3


BERLIN = """windows:
  - {name: workdays, zone: Europe/Berlin, opens: "20:00", closes: "05:00", back_by: "07:00",
     weekdays: [mon, tue, wed, thu]}
  - {name: free-days, zone: Europe/Berlin, opens: "16:00", closes: "05:00", back_by: "07:00", weekdays: [fri, sat, sun]}
"""
OLD_UNITS = {"night": "Mon..Fri 20..23:00/20", "day": "*-*-* 05..19:00/10"}


@pytest.fixture
def berlin(tmp_path: Path) -> Path:
    policy = tmp_path / "berlin.yaml"
    policy.write_text(LAB_POLICY.replace("windows: any", BERLIN), encoding="utf-8")
    return policy


def install_units(machine: Path, policy: Path, calendars: dict[str, list[str]], option: str = "") -> None:
    for half, lines in calendars.items():
        timer = "".join(f"OnCalendar={line}\n" for line in lines)
        (machine / "units" / f"gpuops-{half}.timer").write_text(f"[Timer]\n{timer}", encoding="utf-8")
        command = f'"/usr/bin/gpuops" rotate {half} --policy "{policy}" --yes {option} --vcenter "prod"'
        (machine / "units" / f"gpuops-{half}.service").write_text(f"[Service]\nExecStart={command}\n", encoding="utf-8")


def test_timers_that_do_not_meet_the_windows_are_warned_of(lab: Lab, machine: Path, berlin: Path) -> None:
    """By plan, status and doctor; none of them once the calls are those of `rotate timers`."""
    install_units(machine, berlin, {half: [line] for half, line in OLD_UNITS.items()})
    plan = lab.run("rotate", "plan", "--policy", str(berlin), "--output", "json")
    warned = [line for line in json.loads(plan.stdout)["warnings"] if "rotate timers" in line]
    assert any(line.startswith("no call of `rotate night` comes in") for line in warned)
    assert any("is late on" in line for line in warned)
    assert any("and ends them" in line for line in warned)
    status = json.loads(lab.run("rotate", "status", "--policy", str(berlin), "--output", "json").stdout)
    assert status["timers"] == warned
    assert "warning: no call of `rotate night`" in lab.run("rotate", "status", "--policy", str(berlin)).stdout
    doctor = lab.run("doctor", "--policy", str(berlin), "--strict", "--output", "json")
    findings = [finding for finding in json.loads(doctor.stdout)["findings"] if "`rotate" in finding["reason"]]
    assert (doctor.exit_code, len(findings)) == (3, len(warned))
    calls = json.loads(CliRunner().invoke(app, ["rotate", "timers", "--policy", str(berlin), "-o", "json"]).stdout)
    install_units(machine, berlin, {half: calls[half]["systemd"] for half in ("night", "day")}, "--by-timer")
    status = json.loads(lab.run("rotate", "status", "--policy", str(berlin), "--output", "json").stdout)
    assert status["timers"] == []


@pytest.mark.parametrize("cron_tz", ["--cron-tz", "--no-cron-tz"])
def test_printed_lines_of_cron_meet_the_windows(
    lab: Lab, machine: Path, berlin: Path, monkeypatch: pytest.MonkeyPatch, cron_tz: str
) -> None:
    """In the zone of the windows, or in the machine's own hours; the same zone lines read by a cron without CRON_TZ are
    warned of."""
    printed = lab.run("rotate", "timers", "--policy", str(berlin), "--cron", cron_tz)
    assert printed.exit_code == 0, printed.output
    (machine / "cron.d" / "gpuops").write_text(printed.stdout, encoding="utf-8")
    assert ("CRON_TZ=Europe/Berlin" in printed.stdout) is (cron_tz == "--cron-tz")
    monkeypatch.setattr(installed_timers, "cron_reads_zones", lambda: cron_tz == "--cron-tz")
    status = ("rotate", "status", "--policy", str(berlin), "--output", "json")
    assert json.loads(lab.run(*status).stdout)["timers"] == []
    if cron_tz == "--cron-tz":
        monkeypatch.setattr(installed_timers, "cron_reads_zones", lambda: False)
        warned = json.loads(lab.run(*status).stdout)["timers"]
        assert any("the first call of `rotate day` is late on" in line for line in warned)


def test_calls_of_another_policy_are_left_out(lab: Lab, machine: Path, berlin: Path) -> None:
    install_units(machine, machine / "other.yaml", {half: [line] for half, line in OLD_UNITS.items()})
    status = lab.run("rotate", "status", "--policy", str(berlin), "--output", "json")
    assert json.loads(status.stdout)["timers"] == []


def test_an_expression_that_cannot_be_compared_is_named(lab: Lab, machine: Path, berlin: Path) -> None:
    install_units(machine, berlin, {"night": ["2026-*-* 20:00"], "day": ["*-*-* 05..19:00/10"]})
    [warned] = json.loads(lab.run("rotate", "status", "--policy", str(berlin), "--output", "json").stdout)["timers"]
    assert "cannot compare '2026-*-* 20:00' with the windows" in warned


def test_a_policy_without_windows_has_no_timers(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(LAB_POLICY, encoding="utf-8")
    refused = CliRunner().invoke(app, ["rotate", "timers", "--policy", str(policy)])
    assert refused.exit_code == 2
    assert "has no windows: no timer can tell when its night begins" in refused.output.replace("\n", " ")
