"""The verbs at work on a simulated vCenter: what is printed, what is done, and with which code it ends."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.clock import wall_clock
from gpuops.config.user_paths import cache_dir
from gpuops.execute.journal import Journal
from gpuops.execute.state.state_dir import default_state_dir
from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
ATTACH = ("attach", "--vm", "ml-07", "--profile", "a100-3-20c")
DETACH = ("detach", "--vm", "ml-07", "--profile", "a100-3-20c")


def without_times(text: str) -> str:
    """The text without what differs from run to run: durations."""
    return re.sub(r"  \d+\.\d s$", "  0.0 s", text, flags=re.MULTILINE)


@pytest.mark.long
def test_inventory(lab: Lab, golden: Golden) -> None:
    result = lab.run("inventory")
    assert (result.exit_code, result.stderr) == (0, "")
    golden("inventory-lab.txt", result.stdout)
    golden("vms-lab.txt", lab.run("inventory", "--vms").stdout)


def test_attach_again_detach_again(lab: Lab, golden: Golden) -> None:
    results = [lab.run(*words, "--explain") for words in (ATTACH, ATTACH, DETACH, DETACH)]
    assert [result.exit_code for result in results] == [0, 0, 0, 0]
    golden("attach-detach.txt", without_times("".join(result.stdout for result in results)))
    assert lab.effects == ["ReconfigVM_Task ml-07", "ReconfigVM_Task ml-07"]


@pytest.mark.long
def test_json_is_one_document_and_yaml_the_same(lab: Lab) -> None:
    result = lab.run(*ATTACH, "--dry-run", "--output", "json")
    document = json.loads(result.stdout)
    assert (document["schema_version"], document["kind"]) == (1, "attach")
    assert (document["changed"], document["applied"]) == (True, False)
    assert document["request"]["profile"] == "a100-3-20c"
    assert yaml.safe_load(lab.run(*ATTACH, "--dry-run", "-o", "yaml").stdout)["waves"] == document["waves"]
    first_attach = json.loads(lab.run(*ATTACH, "--output", "json").stdout)
    assert (first_attach["changed"], first_attach["applied"], first_attach["outcomes"][0]["verdict"]) == (
        True,
        True,
        "done",
    )
    second_attach = json.loads(lab.run(*ATTACH, "--output", "json").stdout)
    assert (second_attach["changed"], second_attach["waves"]) == (False, [])


@pytest.mark.long
def test_a_dry_run_prints_the_plan_and_writes_nothing(lab: Lab) -> None:
    result = lab.run(*ATTACH, "--dry-run")
    assert "none -> vGPU grid_a100-3-20c" in result.stdout
    assert result.stdout.endswith("1 step planned, nothing changed\n")
    assert lab.effects == []


@pytest.mark.long
def test_a_refusal_names_every_reason_and_changes_nothing(lab: Lab) -> None:
    result = lab.run("attach", "--vm", "vdi-01", "--profile", "a40-48q", "--replace", "a40-8q")
    assert result.exit_code == 3
    assert "refused: vdi-01: runs" in result.stdout
    assert "--power cycle" in result.stdout
    assert lab.effects == []


@pytest.mark.long
def test_what_stops_a_vm_needs_yes_where_nobody_can_be_asked(lab: Lab) -> None:
    words = ("detach", "--vm", "vdi-01", "--all", "--power", "off")
    result = lab.run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "shut down the guest of vdi-01" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("next: ")
    assert "--yes" in result.stderr.splitlines()[-1]
    assert lab.effects == []
    assert lab.run(*words, "--yes").exit_code == 0
    assert "ReconfigVM_Task vdi-01" in lab.effects


@pytest.mark.long
def test_progress_and_warnings_stay_off_stdout(lab: Lab) -> None:
    result = lab.run("detach", "--vm", "vdi-01", "--all", "--power", "off", "--yes", "-v", "-o", "json")
    assert [outcome["verdict"] for outcome in json.loads(result.stdout)["outcomes"]] == ["done", "done"]
    assert "[2/2] done" in result.stderr


@pytest.mark.long
def test_quiet_is_one_line_a_run_and_leaves_looks_as_they_are(lab: Lab) -> None:
    detach = lab.run("detach", "--vm", "vdi-01", "--all", "--power", "off", "--yes", "--quiet")
    assert (detach.exit_code, detach.stdout) == (0, "detach: 2 steps done\n")
    assert [line.partition(":")[0] for line in detach.stderr.splitlines()] == ["warning"]
    second_detach = lab.run("-q", "detach", "--vm", "vdi-01", "--all")
    assert second_detach.stdout.startswith("detach: nothing to do: ")
    assert second_detach.stdout.count("\n") == 1
    refused = lab.run("attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--host", "esx-02.lab", "-q")
    assert (refused.exit_code, refused.stdout.count("\n")) == (3, 1)
    assert refused.stdout.startswith("attach: nothing changed: refused for ")
    assert lab.run("inventory", "-q").stdout == lab.run("inventory").stdout
    refusal = lab.run("inventory", "-q", "-v")
    assert (refusal.exit_code, refusal.stderr.splitlines()[0]) == (2, "error: --quiet and --verbose exclude each other")


class TestSaved:
    """Plans on a saved inventory, with no vCenter at all."""

    @pytest.mark.long
    def test_it_shows_what_was_there(self, gpuops: Gpuops, saved_lab: Path, golden: Golden) -> None:
        golden("inventory-lab.txt", gpuops("inventory", "--inventory", str(saved_lab)).stdout)

    @pytest.mark.long
    def test_attach_plans_and_says_that_nothing_changes(self, gpuops: Gpuops, saved_lab: Path) -> None:
        result = gpuops(*ATTACH, "--inventory", str(saved_lab))
        assert result.exit_code == 0
        assert "none -> vGPU grid_a100-3-20c" in result.stdout
        assert result.stdout.endswith(f"planned on the saved inventory {saved_lab}: nothing is changed\n")
        document = json.loads(gpuops(*ATTACH, "--inventory", str(saved_lab), "--output", "json").stdout)
        assert (document["applied"], document["changed"]) == (False, True)

    @pytest.mark.long
    def test_what_only_a_host_can_offer_was_saved_with_it(self, gpuops: Gpuops, saved_lab: Path) -> None:
        device = gpuops("attach", "--vm", "ml-08", "--device", "0000:5e:00.0", "--inventory", str(saved_lab))
        assert "none -> DirectPath 0000:5e:00.0" in device.stdout
        group = "Nvidia:2@grid_a100d-80c%NVLink"
        assert (
            f"(group {group})"
            in gpuops("attach", "--vm", "ml-08", "--device-group", group, "--inventory", str(saved_lab)).stdout
        )

    @pytest.mark.long
    def test_detach_and_a_night_too(self, gpuops: Gpuops, saved_lab: Path, tmp_path: Path) -> None:
        result = gpuops("detach", "--vm", "ml-01", "--all", "--inventory", str(saved_lab))
        assert "vGPU grid_a100-3-20c -> none" in result.stdout
        policy = tmp_path / "policy.yaml"
        policy.write_text(
            "version: 1\nname: n\nwindows: any\npools:\n  - {name: office, parked: true, select: {folder: vdi}, "
            "idle: {cpu_below_mhz: 500}, owner: none}\nml:\n  queue: [{vm: ml-01}]\n",
            encoding="utf-8",
        )
        result = gpuops("rotate", "night", "--policy", str(policy), "--inventory", str(saved_lab))
        assert (result.exit_code, result.stderr) == (0, "")
        assert "power on ml-01" in result.stdout


@pytest.mark.long
def test_names_seen_are_kept_for_the_shell(lab: Lab) -> None:
    lab.run("inventory")
    (path,) = cache_dir(os.environ).iterdir()
    assert "ml-07" in json.loads(path.read_text(encoding="utf-8"))["vms"]


@pytest.mark.long
def test_a_private_one_needs_nothing_configured(gpuops: Gpuops) -> None:
    result = CliRunner().invoke(app, [*ATTACH, "--vcenter", "sim:lab"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("1 step done\n")
    unknown = gpuops("inventory", "--vcenter", "sim:nowhere")
    assert (unknown.exit_code, unknown.stderr.count("\n") <= 2) == (2, True)


@pytest.mark.long
def test_a_night_and_a_morning(lab: Lab) -> None:
    policy = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")
    powers = power_states(lab)
    night = lab.run("rotate", "night", "--policy", policy, "--yes", "--output", "json")
    assert night.exit_code == 0, night.stderr
    steps = [step["kind"] for wave in json.loads(night.stdout)["waves"] for step in wave["steps"]]
    assert {"suspend", "power_on"} <= set(steps)
    status = json.loads(lab.run("rotate", "status", "--output", "json").stdout)
    assert (status["kind"], status["away"]) == ("rotation-status", len(status["vms"]))
    assert {vm["role"] for vm in status["vms"]} == {"desktop", "ml"}
    text = lab.run("rotate", "status").stdout
    assert all(vm["name"] in text for vm in status["vms"])
    day = lab.run("rotate", "day", "--yes")
    assert day.exit_code == 0, day.output
    assert lab.run("rotate", "status").stdout.startswith("no night is open")
    assert power_states(lab) == powers
    nothing = lab.run("rotate", "resume", "--yes", "--output", "json")
    document = json.loads(nothing.stdout)
    assert document.keys() == json.loads(night.stdout).keys(), "one document shape, whatever there was to do"
    assert (nothing.exit_code, document["exit_code"], document["changed"], document["request"]) == (0, 0, False, None)
    assert (document["vcenter"], document["because"]) == (status["vcenter"], ["no run was cut off"])
    assert lab.run("rotate", "resume", "--yes").stdout == "nothing to do: no run was cut off\n"
    with_policy = json.loads(lab.run("rotate", "status", "--policy", policy, "--output", "json").stdout)
    assert (with_policy["policy"], with_policy["remembered"], with_policy["under_way"]) == ("lab-night", True, None)


@pytest.mark.long
def test_a_night_whose_window_has_closed_is_not_gone_on_with(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    text = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")
    opens, closes = (wall_clock() + timedelta(minutes=minutes) for minutes in (-61, -1))
    hours = f'windows: [{{opens: "{opens:%H:%M}", closes: "{closes:%H:%M}", zone: UTC}}]'
    policy.write_text(text.replace("windows: any", hours), encoding="utf-8")
    vcenter = json.loads(lab.run("rotate", "status", "--output", "json").stdout)["vcenter"]
    journal = Journal.open(default_state_dir(), vcenter, wall_clock)
    journal.begin("rotate night", night="any", policy=policy.read_text())
    journal.close()
    refused = lab.run("rotate", "resume", "--yes")
    assert refused.exit_code == 3
    assert "outside the window" in refused.stdout
    assert "gpuops rotate day brings back what a night took" in refused.stdout
    help_text = " ".join(lab.run("rotate", "resume", "--help").stdout.split())
    assert "exit code 3. `gpuops rotate day` then returns its desktops" in help_text


@pytest.mark.long
def test_an_unattended_night_needs_yes(lab: Lab) -> None:
    policy = str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml")
    result = lab.run("rotate", "night", "--policy", policy)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--yes" in result.stderr
    assert lab.effects == []


def power_states(lab: Lab) -> dict[str, str]:
    document = json.loads(lab.run("inventory", "--output", "json").stdout)
    return {vm["name"]: vm["power"] for vm in document["vms"]}


@pytest.mark.long
def test_of_a_fleet_there_is_a_summary_unless_its_hosts_are_asked_for(gpuops: Gpuops) -> None:
    fleet = ("inventory", "--vcenter", "sim:fleet:hosts=30,vms=30")
    summary = gpuops(*fleet).stdout
    assert summary.startswith("vCenter 8.0.3.0: 24 hosts with 78 GPUs, 30 VMs, read ")
    assert "--hosts shows each host;" in summary
    trees = [line for line in gpuops(*fleet, "--hosts").stdout.splitlines() if line.startswith("esx-")]
    assert len(trees) == 24
    for part in (["--cluster", "fleet-01"], ["--profile", "a40-8q"], ["--limit", "30"], ["--free"]):
        assert "NUMA node" in gpuops(*fleet, *part).stdout
    assert len(json.loads(gpuops(*fleet, "--output", "json").stdout)["hosts"]) == 24
