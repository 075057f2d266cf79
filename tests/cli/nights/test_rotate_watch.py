"""`gpuops rotate watch` as typed: one look, wrong input, and the service as a process that is watched and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.errors import UsageError
from gpuops.execute.state.http_listener import STALE_S, Health, health_address, serve_health
from gpuops.sim.server import start
from gpuops.sim.state.vm_state import Power
from gpuops.sim.wire import sim_client
from tests.cli.conftest import Lab
from tests.ports import free_port, http_status
from tests.waiting import wait_until

POLICY: Final = str(files("gpuops.sim") / "scenarios" / "lab-spare-policy.yaml")
LONGEST_S: Final = 60


@pytest.mark.long
def test_one_look_changes_nothing_and_is_told_to_programs(lab: Lab) -> None:
    look = lab.run("rotate", "watch", "--policy", POLICY, "--dry-run", "--output", "json")
    assert (look.exit_code, lab.effects) == (0, [])
    document = json.loads(look.stdout)
    assert document["starts"] == ["ml-01", "ml-02"] and document["outcomes"] == []
    assert [vm["vm"] for vm in document["waiting"]] == ["ml-06"]
    assert {slots["profile"]: slots["missing"] for slots in document["kept"]} == {
        "nvidia_a40-8q": 0,
        "grid_a100-3-20c": 0,
    }


def test_too_little_is_shown_as_missing(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text(encoding="utf-8").replace("a40-8q: 2", "a40-8q: 10"), encoding="utf-8")
    look = lab.run("rotate", "watch", "--policy", str(policy), "--dry-run")
    assert look.exit_code == 0
    assert "lab-cluster      nvidia_a40-8q       7    10        3" in look.stdout
    assert "would start: ml-01" in look.stdout, "it takes none of those"


@pytest.mark.parametrize("target", ["prod", "https://VC.example.com/sdk", "user@vc.example.com"])
def test_a_vcenter_that_runners_play_nights_on_is_refused(
    tmp_path: Path, clean: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """By whatever name it is meant: its returns would end what the watch holds."""
    configuration = tmp_path / "config.toml"
    monkeypatch.setenv("GPUOPS_CONFIG", str(configuration))
    configuration.write_text('[targets.prod]\nhost = "vc.example.com"\nrotations = ["/etc/gpuops/vdi.yaml"]\n')
    refusal = CliRunner().invoke(app, ["rotate", "watch", "--policy", POLICY, "--vcenter", target])
    assert (refusal.exit_code, refusal.stdout) == (3, "")
    assert "error: runners run nights on prod ([targets.prod].rotations)" in refusal.stderr
    assert "next: remove `rotations` from [targets.prod]" in refusal.stderr


@pytest.mark.long
def test_a_profile_that_is_none_ends_it_at_once(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text(encoding="utf-8").replace("a40-8q: 2", "a40-9q: 2"), encoding="utf-8")
    for options in ((), ("--dry-run",)):
        refusal = lab.run("rotate", "watch", "--policy", str(policy), *options)
        assert refusal.exit_code == 2 and "a40-9q" in refusal.stderr


@pytest.mark.long
def test_the_service_starts_what_fits_says_that_it_lives_and_ends_when_it_is_told(
    tmp_path: Path, clean: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(Path(POLICY).read_text(encoding="utf-8").replace("calm_s: 60", "calm_s: 0"), encoding="utf-8")
    with start("lab", clock="real") as server:
        where = tmp_path / "ready.json"
        sim_client.write(where, sim_client.of(server))
        port = free_port()
        words = ["rotate", "watch", "--policy", str(policy), "--health", str(port), "--vcenter", f"sim@{where}"]
        command = [sys.executable, "-m", "gpuops", *words]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ
        ) as run:
            try:
                wait_until(lambda: _running(server) >= {"ml-01", "ml-02"}, LONGEST_S, process=run)
                wait_until(lambda: http_status(port) == 200, LONGEST_S, process=run)
                second = subprocess.run(
                    [sys.executable, "-m", "gpuops", *words[:4], *words[6:]],
                    capture_output=True, encoding="utf-8", timeout=LONGEST_S, check=False, env=os.environ,
                )  # fmt: skip
                run.send_signal(signal.SIGTERM)
                output, errors = run.communicate(timeout=LONGEST_S)
            finally:
                run.kill()
        assert second.returncode == 6 and "watches this vCenter already" in second.stderr
        assert run.returncode == 143 and "Traceback" not in errors
        assert "power on ml-01" in output
        assert {"ml-01", "ml-02"} <= _running(server), "what it has started runs on"
        ended = subprocess.run(
            [sys.executable, "-m", "gpuops", "rotate", "day", "--yes", "--vcenter", f"sim@{where}"],
            capture_output=True, encoding="utf-8", timeout=LONGEST_S, check=False, env=os.environ,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert _running(server).isdisjoint({"ml-01", "ml-02"})
        assert list(server.world.sessions) == []


def _running(server: object) -> set[str]:
    world = server.world  # type: ignore[attr-defined]
    with world.lock:
        return {vm.name for vm in world.by_type("VirtualMachine") if vm.state.power is Power.ON}


def test_it_is_healthy_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    port, now = free_port(), [0.0]
    monkeypatch.setattr("gpuops.execute.state.http_listener.clock.passed_s", lambda: now[0])
    with serve_health(("127.0.0.1", port)) as health:
        assert http_status(port) == 503, "it has not looked yet"
        health.note_look()
        assert (http_status(port), http_status(port, "/readyz"), http_status(port, "/")) == (200, 200, 404)
        now[0] += STALE_S
        assert (http_status(port), http_status(port, "/readyz")) == (503, 503)
        health.note_look(is_available=False)
        assert (http_status(port), http_status(port, "/readyz")) == (200, 503), "to start it anew would not help"
        health.note_look()
        assert (http_status(port), http_status(port, "/readyz")) == (200, 200)
        with pytest.raises(UsageError, match="cannot be used"), serve_health(("127.0.0.1", port)):
            raise AssertionError("the port is taken")
    assert http_status(port) == 0


def test_it_tells_when_it_looked() -> None:
    health = Health()
    assert health.answer() == (503, {"status": "stale", "looked_at": None})
    health.note_look()
    status, body = health.answer()
    assert status == 200 and body["status"] == "ok" and body["looked_at"]
    health.note_look(is_available=False)
    assert (health.answer()[0], health.answer(ready=True)[1]["status"]) == (200, "away")


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9464", ("::1", 9464))],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert health_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "1:2:x", ":80", "127.0.0.1", "127.0.0.1:99999", "٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not"):
        health_address(text)
