"""`gpuops measure` as typed, on a simulated vCenter whose guests run real programs; and killed on its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.model.measurements.sharing_measurement import PREFIX
from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import sim_client
from tests.sample import mostly_long
from tests.waiting import wait_until

SCENARIO = str(Path(__file__).parents[2] / "sim" / "guests" / "real_guests.yaml")
ASKED = ("measure", "--template", "golden", "--profile", "a40-8q", "--counts", "1,2")
PASSWORD = "Kept4now"


@dataclass(frozen=True)
class Lab:
    """The command line pointed at it."""

    server: SimServer
    ready: Path

    def run(self, *arguments: str) -> Result:
        completed = CliRunner().invoke(app, [*arguments, "--vcenter", f"sim@{self.ready}"])
        assert PASSWORD not in completed.output
        return completed

    def begun(self, *arguments: str) -> subprocess.Popen[bytes]:
        """The same as a process of its own."""
        command = [sys.executable, "-m", "gpuops", *arguments, "--vcenter", f"sim@{self.ready}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))

    @property
    def vms(self) -> list[str]:
        with self.server.world.lock:
            machines = self.server.world.by_type("VirtualMachine")
            return sorted(vm.name for vm in machines if vm.name.startswith(PREFIX))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    secret = tmp_path / "guest.password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o600)
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", "ml")
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    with start(SCENARIO, clock="virtual") as server:
        ready = tmp_path / "ready.json"
        sim_client.write(ready, sim_client.of(server))
        yield Lab(server, ready)
        assert server.world.bugs == []


@pytest.mark.long
def test_a_dry_run_shows_what_is_made_run_and_removed(lab: Lab) -> None:
    plan = lab.run(*ASKED, "--guest-command", "python3 /opt/train.py", "--overlap", "25%", "--dry-run")
    assert plan.exit_code == 0, plan.output
    for words in ("esx-01, GPU 0000:5e:00.0", "2 VMs", "in 1, 2 of them, each beside the next for 25%", "train.py"):
        assert words in plan.stdout
    assert lab.vms == []


@pytest.mark.long
def test_it_measures_tells_and_leaves_nothing(lab: Lab) -> None:
    answer: dict[str, Any] = json.loads(lab.run(*ASKED, "--guest-command", "sleep 0.2", "--yes", "-o", "json").stdout)
    assert [(count["scheduler"], count["sharers"], count["error"]) for count in answer["counts"]] == [
        ("best-effort", 1, None),
        ("best-effort", 2, None),
    ]
    assert all(0.2 <= time_s < 60 for count in answer["counts"] for time_s in count["times_s"])
    assert (answer["applied"], answer["left"], answer["gpu"], lab.vms) == (True, [], "0000:5e:00.0", [])


@pytest.mark.long
def test_nobody_to_ask_means_nothing_is_made(lab: Lab) -> None:
    refused = lab.run(*ASKED, "--guest-command", "true")
    assert refused.exit_code == 2 and "there is no terminal to ask at" in refused.stderr
    assert lab.vms == []


def test_another_scheduler_is_left_for_later_with_what_sets_it(lab: Lab) -> None:
    measured = lab.run(*ASKED, "--guest-command", "sleep 0.1", "--schedulers", "best-effort,equal-share", "--yes")
    assert measured.exit_code == 4
    assert (
        "equal-share is not in force: gpuops host scheduler set --scheduler equal-share --host esx-01"
        in measured.stdout
    )
    assert "the same command continues" in measured.stdout and lab.vms == []
    removal = lab.run("measure", "--remove", "--yes")
    assert removal.exit_code == 0 and "0 VMs removed, and it is forgotten" in removal.stdout
    assert "nothing to remove" in lab.run("measure", "--remove").stdout


@pytest.mark.long
def test_schedulers_that_are_set_in_between_are_planned_first_and_told_at_the_end(lab: Lab) -> None:
    command = (*ASKED, "--guest-command", "sleep 0.1", "--schedulers", "best-effort,equal-share", "--set-schedulers")
    plan = lab.run(*command, "--running-vms", "shut-down", "--dry-run")
    assert plan.exit_code == 0, plan.output
    assert "equal-share is not in force: it is set after that, by a reboot of the host" in plan.stdout
    assert "best-effort -> equal-share" in plan.stdout and lab.vms == []
    refused = lab.run(*command, "--yes")
    assert refused.exit_code == 3 and "vm-01" in refused.stdout and lab.vms == []
    nobody = lab.run(*command, "--running-vms", "shut-down")
    assert nobody.exit_code == 2 and "there is no terminal to ask at" in nobody.stderr and lab.vms == []
    measured = lab.run(*command, "--running-vms", "shut-down", "--yes", "-o", "json")
    assert measured.exit_code == 0, measured.output
    answer: dict[str, Any] = json.loads(measured.stdout)
    assert [(count["scheduler"], count["sharers"]) for count in answer["counts"]] == [
        ("best-effort", 1),
        ("best-effort", 2),
        ("equal-share", 1),
        ("equal-share", 2),
    ]
    assert [change["exit_code"] for change in answer["changes"]] == [0, 0] and lab.vms == []


@pytest.mark.long
def test_a_whole_gpu_is_in_the_table(lab: Lab) -> None:
    command = (*ASKED, "--guest-command", "sleep 0.3", "--whole")
    planned = lab.run(*command, "--dry-run").stdout
    assert "with a whole GPU: DirectPath I/O, GPU 0000:d8:00.0" in planned and "nvidia_a40-48q" in planned
    table = lab.run(*command, "--yes").stdout
    assert "whole vGPU" in table and "one VM alone, to DirectPath I/O: whole vGPU" in table and "GPU use" in table


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("measure", "--template", "golden"), 2, "measure needs --profile"),
        ((*ASKED,), 2, "measure needs --guest-command"),
        ((*ASKED[:-1], "1,x", "--guest-command", "true"), 2, "--counts 1,x: 'x' is not a number of VMs"),
        ((*ASKED, "--guest-command", "true", "--schedulers", "fair"), 2, "there is no scheduler 'fair'"),
        ((*ASKED, "--guest-command", "true", "--set-schedulers"), 2, "--set-schedulers needs --schedulers"),
        ((*ASKED, "--guest-command", "true", "--running-vms", "move"), 2, "--running-vms needs --set-schedulers"),
        ((*ASKED, "--guest-command", "true", "--window", "22:00-04:00 UTC"), 2, "--window needs --set-schedulers"),
        ((*ASKED[:2], "none", *ASKED[3:], "--guest-command", "true"), 2, "none"),
        ((*ASKED, "--guest-command", "true", "--host", "none"), 2, "none"),
    ],
)
def test_wrong_options_are_one_line(lab: Lab, arguments: tuple[str, ...], code: int, message: str) -> None:
    refused = lab.run(*arguments)
    assert refused.exit_code == code and message in refused.stderr and "Traceback" not in refused.output
    assert lab.vms == []


def test_without_a_login_for_guests_nothing_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUOPS_GUEST_USERNAME")
    monkeypatch.delenv("GPUOPS_GUEST_PASSWORD_FILE")
    refused = lab.run(*ASKED, "--guest-command", "true", "--yes")
    assert refused.exit_code == 3 and "there is no login for guests (GPUOPS_GUEST_USERNAME)" in refused.stdout
    assert lab.vms == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("effects", mostly_long(range(1, 9), [3]))
@pytest.mark.parametrize("next_call", ["the same", "remove"])
def test_killed_on_its_way_nothing_is_left_after_the_next_call(lab: Lab, effects: int, next_call: str) -> None:
    command = (*ASKED, "--guest-command", "sleep 0.5", "--yes")
    process = lab.begun(*command)
    wait_until(lambda: len(lab.server.ledger) >= effects or process.poll() is not None, every_s=0.005)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    completed = lab.run(*command) if next_call == "the same" else lab.run("measure", "--remove", "--yes")
    assert completed.exit_code == 0, completed.output
    assert lab.vms == []
    assert "nothing to remove" in lab.run("measure", "--remove").stdout
