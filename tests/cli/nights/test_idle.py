"""`gpuops idle` on a simulated vCenter: the verdict on each desktop, by a policy and without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from gpuops.sim.state.vm_state import GuestAccount, GuestUser
from tests.cli.conftest import LAB_POLICY, Lab

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]


def document(lab: Lab, *words: str) -> Any:
    result = lab.run("idle", *words, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.long
def test_a_row_for_each_desktop_and_a_row_for_each_source(lab: Lab, golden: Golden) -> None:
    words = {"all": (), "explain": ("--vm", "vdi-07"), "pool": ("--pool", "office", "--vm", "vdi-05")}
    for name, options in words.items():
        result = lab.run("idle", "--policy", LAB_POLICY, *options)
        assert (result.exit_code, result.stderr) == (0, "")
        golden(f"idle-{name}.txt", result.stdout)
    assert lab.effects == []


@pytest.mark.long
def test_programs_get_each_source_with_its_number_its_age_and_its_veto(lab: Lab) -> None:
    answer = document(lab, "--policy", LAB_POLICY)
    verdicts = {verdict["name"]: verdict for verdict in answer["vms"]}
    assert (answer["policy"], {verdict["pool"] for verdict in answer["vms"]}) == ("lab-night", {"office"})
    idle = next(verdict for verdict in answer["vms"] if verdict["verdict"] == "idle")
    assert idle["decided_by"] is None
    sources = {
        source["source"]: (source["value"], source["below"], source["age_s"], source["veto"])
        for source in idle["sources"]
    }
    assert sources == {"state": (None, None, 0, False), "console": (0, 1, 0, False), "cpu": (60, 500, 0, False)}
    busy = next(verdict for verdict in verdicts.values() if verdict["verdict"] == "busy")
    assert busy["decided_by"] in {source["source"] for source in busy["sources"] if source["veto"]}


@pytest.mark.long
def test_without_a_policy_no_vm_is_idle(lab: Lab) -> None:
    answer = document(lab)
    assert answer["policy"] is None
    assert "idle" not in {verdict["verdict"] for verdict in answer["vms"]}
    assert len(answer["vms"]) > 3


def test_the_command_of_the_target_is_asked_once_and_keeps_whom_it_names(tmp_path: Path, gpuops: Gpuops) -> None:
    script = tmp_path / "who-works"
    script.write_text(f"""#!/bin/sh
echo x >> {tmp_path}/asked
echo '{{"vm": "vdi-01", "sessions": 1, "user": "alice"}}'
echo '{{"vm": "vdi-02", "sessions": 0}}'
""")
    script.chmod(0o700)
    config = Path.home() / ".config" / "gpuops" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[targets.prod]\nhost = "sim:lab"\nidle_command = ["{script}"]\n')
    policy = tmp_path / "policy.yaml"
    text = Path(LAB_POLICY).read_text()
    policy.write_text(text.replace("    floor: 0\n", "    floor: 0\n    evidence: {required: [command]}\n"))
    result = gpuops("idle", "--policy", str(policy), "--vcenter", "prod", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    verdicts = {
        verdict["name"]: (verdict["verdict"], verdict["because"]) for verdict in json.loads(result.stdout)["vms"]
    }
    assert verdicts["vdi-01"] == ("busy", "1 session(s), as the command reports")
    assert verdicts["vdi-02"][0] == "idle"
    assert verdicts["vdi-03"] == ("unknown", "its sessions are not known: the command printed no line for this VM")
    assert "alice" not in result.stdout
    assert (tmp_path / "asked").read_text() == "x\n"
    config.write_text('[targets.prod]\nhost = "sim:lab"\nidle_command = ["who-works"]\n')
    refused = gpuops("idle", "--vcenter", "prod")
    assert refused.exit_code == 2
    assert "targets.prod.idle_command: it needs the absolute path of the command" in refused.stderr


@pytest.mark.long
def test_guests_are_asked_by_the_login_for_guests(
    lab: Lab, tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    text = Path(LAB_POLICY).read_text()
    policy.write_text(text.replace("    floor: 0\n", "    floor: 0\n    evidence: {required: [cpu, sessions]}\n"))
    words = ("--policy", str(policy), "--vm", "vdi-01")
    [verdict] = document(lab, *words)["vms"]
    assert verdict["because"] == "nothing lists the sessions in its guest (GPUOPS_GUEST_USERNAME)"
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", "inspector")
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD", "Kept4now")
    for vm in lab.server.world.by_type("VirtualMachine"):
        vm.state.template = replace(vm.state.template, login=GuestAccount("inspector", "Kept4now"))
    assert document(lab, *words)["vms"][0]["verdict"] == "idle"
    desktop = next(vm for vm in lab.server.world.by_type("VirtualMachine") if vm.name == "vdi-01")
    desktop.state.guest_users = (GuestUser("DESKTOPS\\alice", lab.server.world.clock.now(), desktop.state.boot_time),)
    golden("idle-sessions.txt", lab.run("idle", *words).stdout)
    assert "alice" not in lab.run("idle", *words, "--output", "json").stdout
