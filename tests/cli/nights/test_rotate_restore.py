"""`gpuops rotate restore` over the wire: one desktop now, or all of it from vCenter's markers on a new machine."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.execute.journal import FILE_NAME
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.sim.state.vm_state import Power
from tests.cli.conftest import LAB_POLICY as POLICY
from tests.cli.conftest import Lab


def suspended_and_started(lab: Lab) -> tuple[list[str], list[str]]:
    """(desktops, ML VMs) that the night took."""
    vms = json.loads(lab.run("rotate", "status", "--output", "json").stdout)["vms"]
    return tuple([vm["name"] for vm in vms if vm["role"] == role] for role in ("desktop", "ml"))  # type: ignore[return-value]


@pytest.fixture
def lab(lab_by_night: Lab) -> Lab:
    """A night has begun."""
    return lab_by_night


@pytest.mark.long
def test_one_desktop_and_only_what_is_named(lab: Lab) -> None:
    desktops, ml = suspended_and_started(lab)
    before = len(lab.effects)
    names = [word for name in (desktops[0], *ml) for word in ("--vm", name)]
    result = lab.run("rotate", "restore", *names, "--yes")
    assert result.exit_code == 0, result.output
    touched = {effect.split()[1] for effect in lab.effects[before:]}
    assert touched == {desktops[0], *ml}
    unknown = lab.run("rotate", "restore", "--vm", "nobody", "--yes")
    assert (unknown.exit_code, "nobody: no VM of a night has this name" in unknown.stdout) == (3, True)


def test_all_of_it_on_a_machine_without_a_journal(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desktops, ml = suspended_and_started(lab)
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "new-machine"))
    vms = json.loads(lab.run("rotate", "status", "--output", "json").stdout)["vms"]
    assert {vm["command"] for vm in vms} == {"gpuops rotate day --policy FILE"}, "it remembers none"
    assert "this machine has no journal of any run" in lab.run("rotate", "resume", "--yes").stdout
    unsaid = lab.run("rotate", "restore", "--from-markers", "--yes")
    assert (unsaid.exit_code, "--policy FILE" in unsaid.stderr) == (2, True)
    result = lab.run("rotate", "restore", "--from-markers", "--policy", POLICY, "--yes", "--output", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["kind"], {*desktops, *ml}) == (
        "rotate-restore",
        {choice["subject"] for choice in document["choices"]},
    )
    assert lab.run("rotate", "status", "--policy", POLICY).stdout.startswith("no night is open")


@pytest.mark.long
@pytest.mark.parametrize(("journal", "exit_code"), [("missing", 0), ("damaged", 7)])
def test_the_morning_of_the_manual_needs_no_journal(lab: Lab, journal: str, exit_code: int) -> None:
    desktops, _ = suspended_and_started(lab)
    journal_file = default_state_dir() / FILE_NAME
    if journal == "missing":
        journal_file.unlink()
    else:
        journal_file.write_bytes(b"no database at all")
    manual = (files("gpuops") / "manual" / "timers.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^[*/0-9 -]+gpuops (rotate day .*) --vcenter prod$", manual, re.MULTILINE)
    result = lab.run(*(word.replace("/etc/gpuops/vdi.yaml", POLICY) for word in line.split()))
    assert result.exit_code == exit_code, result.output
    running = {vm.name for vm in lab.server.world.by_type("VirtualMachine") if vm.state.power is Power.ON}
    assert running >= {*desktops}
    assert len(desktops) > 0
    assert "no night is open" in lab.run("rotate", "status", "--policy", POLICY).stdout


@pytest.mark.long
@pytest.mark.parametrize("file", ["deleted", "broken"])
def test_a_policy_that_cannot_be_read_in_the_morning_keeps_nobody_away(lab: Lab, tmp_path: Path, file: str) -> None:
    """It speaks only for what the journal does not know: that much is said, and all of the night is back."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text())
    policy.unlink() if file == "deleted" else policy.write_text("version: 1\npools: [\n")
    foreseen = lab.run("rotate", "day", "--policy", str(policy), "--dry-run")
    morning = lab.run("rotate", "day", "--policy", str(policy), "--yes")
    assert (foreseen.exit_code, morning.exit_code) == (4, 4), morning.output
    assert f"--policy: {policy}" in "".join(morning.stdout.split("\n"))
    status = json.loads(lab.run("rotate", "status", "--output", "json").stdout)
    assert status["away"] == 0
    nothing_left = lab.run("rotate", "day", "--policy", str(policy), "--yes")
    assert nothing_left.exit_code == 2, "now there is nothing that is returned without it"
