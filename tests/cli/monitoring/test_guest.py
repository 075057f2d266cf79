"""`gpuops guest check` on the scenario `stacks`: text, JSON, exit codes, wrong options, and a hidden password."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from gpuops.sim.server import start
from tests.cli.conftest import LAB_POLICY, Lab, lab_on

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
STACKS = ("--vcenter", "sim:stacks")
TORCH = ("--framework", "torch>=2.3")
PASSWORD = "Look-inside-1"


@pytest.fixture
def stacks(tmp_path: Path, clean: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A served one, whose guests are entered as the environment says."""
    secret = tmp_path / "guest.password"
    secret.write_text(PASSWORD, encoding="utf-8")
    secret.chmod(0o600)
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", "checker")
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD_FILE", str(secret))
    with start("stacks", clock="stepped") as server, lab_on(server, tmp_path, clean) as lab:
        yield lab


@pytest.mark.long
def test_text(stacks: Lab, golden: Golden) -> None:
    result = stacks.run("guest", "check", "--vm", "gpu-*", *TORCH)
    assert (result.exit_code, result.stderr) == (0, "")
    golden("guest-check.txt", result.stdout)
    assert "\x1b" not in result.stdout
    assert PASSWORD not in result.output


@pytest.mark.long
def test_a_private_vcenter_needs_no_login_of_the_environment(gpuops: Gpuops, golden: Golden) -> None:
    result = gpuops("guest", "check", "--vm", "gpu-*", *TORCH, *STACKS)
    assert (result.exit_code, result.stderr) == (0, "")
    golden("guest-check.txt", result.stdout)


@pytest.mark.long
def test_json(gpuops: Gpuops, golden: Golden) -> None:
    result = gpuops("guest", "check", "--vm", "gpu-unlicensed", *TORCH, *STACKS, "--output", "json")
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    assert (answer["schema_version"], answer["kind"], answer["via"], answer["ready"]) == (
        1,
        "guest-check",
        "tools",
        False,
    )
    del answer["read_at"]
    golden("guest-check.json", json.dumps(answer, indent=2) + "\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (("--vm", "gpu-ready", "--expect", "rdma", "--expect", "toolkit"), 0),
        (("--vm", "gpu-windows", "--expect", "toolkit"), 3),
        (("--vm", "gpu-off"), 3),
        (("--vm", "gpu-*"), 3),
    ],
)
def test_strict_ends_with_three_unless_all_is_ready(gpuops: Gpuops, words: tuple[str, ...], exit_code: int) -> None:
    result = gpuops("guest", "check", "--strict", *words, *STACKS)
    assert (result.exit_code, result.stderr) == (exit_code, "")
    assert gpuops("guest", "check", *words, *STACKS).exit_code == 0


@pytest.mark.long
def test_a_pool_of_a_policy(gpuops: Gpuops, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    text = Path(LAB_POLICY).read_text(encoding="utf-8")
    policy.write_text(text.replace("folder: vdi", "folder: ml").replace("value: office", "value: research"), "utf-8")
    result = gpuops("guest", "check", "--pool", "office", "--policy", str(policy), *STACKS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1] == "gpu-windows: ready"
    assert result.stdout.splitlines()[-1] == "1 guest: 1 ready"
    result = gpuops("guest", "check", "--pool", "none", "--policy", str(policy), *STACKS)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no pool 'none'")


@pytest.mark.long
def test_without_a_login_for_guests_it_is_refused(gpuops: Gpuops) -> None:
    result = gpuops("guest", "check", "--vm", "vdi-01", "--vcenter", "sim:lab")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "there is no login for guests" in result.stderr
    assert "GPUOPS_GUEST_PASSWORD_FILE" in result.stderr


def test_over_ssh_a_guest_that_cannot_be_entered_is_unknown(gpuops: Gpuops, tmp_path: Path, monkeypatch: Any) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text("", encoding="ascii")
    known_hosts.chmod(0o600)
    monkeypatch.setenv("GPUOPS_GUEST_SSH_KNOWN_HOSTS", str(known_hosts))
    result = gpuops("guest", "check", "--vm", "gpu-ready", "--via", "ssh", "--ssh-host", "{vm}.invalid", *STACKS)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "1 guest by SSH" in result.stdout
    assert "unknown  guest: gpu-ready.invalid" in result.stdout
