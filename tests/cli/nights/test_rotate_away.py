"""`gpuops rotate day` finds vCenter away: it waits, says so, and brings everybody back."""

from __future__ import annotations

import time
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere import watches
from tests.cli.conftest import Lab

POLICY = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")


@pytest.fixture
def pauses(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was paused; in the simulated world so much time passes."""
    seconds_paused: list[float] = []

    def pause(seconds: float) -> None:
        seconds_paused.append(seconds)
        with lab.server.world.lock:
            lab.server.world.clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(watches, "PAUSES_S", (0.0, 0.0, 0.0, 0.0))
    return seconds_paused


def running(lab: Lab) -> set[str]:
    vms = lab.server.world.by_type("VirtualMachine")
    return {vm.name for vm in vms if vm.name.startswith("vdi-") and vm.state.power is Power.ON}


def take_down(lab: Lab, minutes: float) -> None:
    lab.server.world.down_until = lab.server.world.clock.now() + timedelta(minutes=minutes)


@pytest.mark.long
def test_from_the_beginning(lab: Lab, pauses: list[float]) -> None:
    evening = running(lab)
    assert lab.run("rotate", "night", "--policy", POLICY, "--yes").exit_code == 0
    take_down(lab, minutes=8)
    result = lab.run("rotate", "day", "--policy", POLICY, "--yes")
    assert (result.exit_code, running(lab)) == (0, evening), result.output
    assert ": waiting for vCenter until " in result.stderr
    assert "vCenter answers again after " in result.stderr
    assert pauses[:3] == [10, 20, 40]


@pytest.mark.long
def test_half_way(lab: Lab, pauses: list[float]) -> None:
    """It restarts, forgets sessions and tasks, and takes five minutes for it."""
    evening = running(lab)
    assert lab.run("rotate", "night", "--policy", POLICY, "--yes").exit_code == 0
    for rule in rules_of("N7", {"method": "PowerOnVM_Task"}):
        lab.server.world.injector.add(rule)
    result = lab.run("rotate", "day", "--yes")
    assert (result.exit_code, running(lab)) == (0, evening), result.output
    assert "going on" in result.stderr
    assert pauses
    assert lab.run("rotate", "status").stdout.startswith("no night is open")
    assert list(lab.server.world.sessions) == []


@pytest.mark.parametrize("words", [("night", "--policy", POLICY, "--yes"), ("day", "--policy", POLICY, "--dry-run")])
def test_what_does_not_return_does_not_wait(lab: Lab, pauses: list[float], words: tuple[str, ...]) -> None:
    take_down(lab, minutes=60)
    result = lab.run("rotate", *words)
    assert (result.exit_code, pauses) == (5, [])


@pytest.mark.long
@pytest.mark.parametrize("file", ["none", "open"])
def test_a_return_goes_on_without_the_password_of_guests(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """It is missing, or others may read it. A night needs it to read sessions in guests."""
    evening = running(lab)
    assert lab.run("rotate", "night", "--policy", POLICY, "--yes").exit_code == 0
    secret = tmp_path / file
    if file == "open":
        secret.write_text("secret", encoding="utf-8")
        secret.chmod(0o644)
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", "gpuops")
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    refused = lab.run("rotate", "night", "--policy", POLICY, "--yes")
    assert (refused.exit_code != 0, str(secret) in refused.stderr) == (True, True)
    assert lab.run("rotate", "resume", "--yes").stdout.startswith("nothing to do"), "no night was cut off"
    looked = lab.run("rotate", "day", "--dry-run")
    assert (looked.exit_code, str(secret) in looked.stderr) == (0, True), looked.output
    result = lab.run("rotate", "day", "--yes")
    assert (result.exit_code, running(lab)) == (0, evening), result.output
    [warned] = [line for line in result.stderr.splitlines() if str(secret) in line]
    assert warned.endswith("it goes on without a login to guests, whose hooks do not run")
