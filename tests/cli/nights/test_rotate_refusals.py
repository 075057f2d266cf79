"""What a night is refused for, as typed: one line, its exit code, and nothing done."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.clock import machine_time, set_ahead
from gpuops.console.running import ConsentPrompt
from gpuops.execute.state import lock
from gpuops.execute.state.lock import locked
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import ResumeVm
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import power_off, revert_to_running, revert_to_suspended
from tests.cli.conftest import Lab

LAB_POLICY = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")


def night(lab: Lab, tmp_path: Path, text: str) -> tuple[int, list[str]]:
    """Exit code and what was said, but for the next move."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(text, encoding="utf-8")
    night_run = lab.run("rotate", "night", "--yes", "--policy", str(policy))
    lines = [line for line in (night_run.stdout + night_run.stderr).splitlines() if line.strip()]
    assert sum("next:" in line for line in lines) == 1, "one next move"
    return night_run.exit_code, [line for line in lines if "next:" not in line]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (f"{LAB_POLICY}\ntakes: all\n", 2, "takes: unknown key"),
        (LAB_POLICY.replace("gpuops.owner", "site.owner"), 3, "none of its desktops carries attribute site.owner"),
    ],
    ids=["an unknown key", "no owner tags"],
)
def test_a_policy_that_no_night_can_have(lab: Lab, tmp_path: Path, text: str, code: int, message: str) -> None:
    exit_code, lines = night(lab, tmp_path, text)
    assert (exit_code, lab.effects) == (code, [])
    assert message in lines[0]
    assert lines[1:] in ([], ["nothing changed: refused for 1 reason"])


NO_HOURS = LAB_POLICY.replace("windows: any", "# no windows")
UNSAID = "lab-night: has no `windows`: a night that cron, systemd or Ansible calls needs them"


def test_a_night_that_nobody_watches_needs_its_hours(lab: Lab, tmp_path: Path) -> None:
    """A clock that calls at the wrong hour takes no desktop of people at work; a look ahead says so, and goes on."""
    assert NO_HOURS != LAB_POLICY
    code, lines = night(lab, tmp_path, NO_HOURS)
    assert (code, lab.effects) == (3, [])
    assert lines == [f"refused: {UNSAID}", "nothing changed: refused for 1 reason"]
    for command in ("plan", "night --dry-run"):
        ahead = lab.run("rotate", *command.split(), "--policy", str(tmp_path / "policy.yaml"))
        assert ahead.exit_code == 0, ahead.stderr
        assert UNSAID in ahead.stdout + ahead.stderr
        assert "ml-09" in ahead.stdout


def test_somebody_at_a_terminal_may_take_at_any_hour_and_any_clock_brings_back(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(NO_HOURS, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda stream: stream.name == "<stdin>")
        evening = lab.run("rotate", "night", "--yes", "--policy", str(policy))
    assert evening.exit_code == 0, evening.stderr
    assert lab.effects
    back = lab.run("rotate", "day", "--yes", "--policy", str(policy))
    assert back.exit_code == 0, back.stderr


@pytest.mark.long
def test_a_return_of_more_than_was_agreed_to_is_asked_about_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.run("rotate", "night", "--yes", "--policy", policy_of(tmp_path)).exit_code == 0
    [desktop] = [vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "vdi-07"]
    agreements: list[set[str]] = []

    def answered(prompt: ConsentPrompt, report: Report) -> None:
        agreements.append({report.before.vms[step.vm].name for step in report.plan.steps if isinstance(step, ResumeVm)})
        if len(agreements) == 1:  # its user has left it again
            with lab.server.world.lock:
                revert_to_suspended(desktop, Rule(Effect.HAPPEN))

    monkeypatch.setattr(ConsentPrompt, "__call__", answered)
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda stream: stream.name == "<stdin>")
    with lab.server.world.lock:
        for vm in lab.server.world.by_type("VirtualMachine"):
            if vm.name.startswith("ml-"):
                power_off(vm, Rule(Effect.HAPPEN))
        revert_to_running(desktop, Rule(Effect.HAPPEN))
    assert lab.run("rotate", "day").exit_code == 0
    assert ["vdi-07" in names for names in agreements] == [False, True]


@pytest.mark.long
def test_a_night_over_one_that_is_open(lab: Lab, tmp_path: Path) -> None:
    set_ahead(datetime(2026, 11, 20, 21, 0, tzinfo=UTC) - machine_time())
    assert lab.run("rotate", "night", "--yes", "--policy", policy_of(tmp_path)).exit_code == 0
    before = lab.effects
    hours = 'windows: [{zone: UTC, opens: "20:00", closes: "06:00"}]'
    code, lines = night(lab, tmp_path, LAB_POLICY.replace("windows: any", hours))
    assert (code, lab.effects) == (3, before)
    assert "is not over: vdi-07, vdi-08, vdi-09 and 4 more not back yet" in lines[0]
    assert lines[1:] == ["nothing changed: refused for 1 reason"]


def test_a_night_beside_another_run(lab: Lab, tmp_path: Path, clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TRIES", 1)
    vcenter = lab.server.world.get("ServiceInstance").instance_uuid
    with locked(clean / ".local" / "state" / "gpuops", vcenter, datetime(2026, 11, 2, tzinfo=UTC), alone=True):
        code, lines = night(lab, tmp_path, LAB_POLICY)
    assert (code, lab.effects) == (6, [])
    assert len(lines) == 1
    assert "is changing this vCenter" in lines[0]


def policy_of(tmp_path: Path) -> str:
    (tmp_path / "lab.yaml").write_text(LAB_POLICY, encoding="utf-8")
    return str(tmp_path / "lab.yaml")
