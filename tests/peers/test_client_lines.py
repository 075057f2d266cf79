"""The lines that `gpuops sim serve` prints for govc and Ansible reach it, each typed in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuops.sim.server import SimServer
from tests.cli.first_steps.test_sim import client_blocks

from .conftest import built
from .plays import COMMUNITY
from .processes import BINARIES

pytestmark = pytest.mark.peer


def run_lines(lines: str, home: Path) -> str:
    """What a shell prints for these lines."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "GOVC_PERSIST_SESSION": "false", "LC_ALL": "C.UTF-8"}
    completed = subprocess.run(
        ["sh", "-c", lines], env=environment, cwd=home, capture_output=True, encoding="utf-8", check=False, timeout=100
    )
    assert completed.returncode == 0, f"{completed.stdout}{completed.stderr}"
    return completed.stdout


def test_govc_logs_in_by_its_lines(shared_lab: SimServer, tmp_path: Path) -> None:
    built()
    output = run_lines(f"{client_blocks(shared_lab)['govc']}\n{BINARIES / 'govc'} ls /lab-dc/host", tmp_path)
    assert output.split() == ["/lab-dc/host/lab-cluster"]


def test_community_vmware_logs_in_by_its_lines(shared_lab: SimServer, tmp_path: Path) -> None:
    if not (COMMUNITY / "ansible").exists():
        pytest.skip("community.vmware is not there: make -C tests/peers ansible")
    module = f"{COMMUNITY / 'ansible'} localhost -m community.vmware.vmware_about_info"
    output = run_lines(f"{client_blocks(shared_lab)['Ansible']}\n{module}", tmp_path)
    assert "simulated by gpuops" in output
