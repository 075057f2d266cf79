"""ansible-playbook as a user types it from a clone, with a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "gpuops" / "ansible_collections" / "gpuops" / "vsphere"

Ansible = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    """Runs `ansible-<tool>`, as a rule in the clone, and fails with its output when it ends otherwise than expected."""
    home = tmp_path_factory.mktemp("home")
    foreign = ("GPUOPS_", "VMWARE_", "GOVC_", "XDG_", "ANSIBLE_", "REQUESTS_", "PYTEST")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environ |= {"HOME": str(home), "ANSIBLE_NOCOLOR": "1", "PYTHONWARNINGS": "default", "GPUOPS_SIM_CLOCK": "stepped"}
    if "utf" not in environ.get("LC_ALL", "").lower():
        environ["LC_ALL"] = "C.UTF-8"  # Ansible itself refuses any other encoding
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["PYTHONPATH"] = f"{ROOT}:{environ.get('PYTHONPATH', '')}".rstrip(":")

    def run(
        tool: str, *arguments: object, code: int = 0, cwd: Path = ROOT, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        process = subprocess.run(
            [f"ansible-{tool}", *map(str, arguments)],
            cwd=cwd,
            env=environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert process.returncode == code, f"{process.args}: {process.returncode}\n{process.stdout}\n{process.stderr}"
        assert "Traceback" not in process.stdout + process.stderr
        return process

    return run


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place to import the collection from, as Ansible would: `gpuops/` itself must not become one."""
    place = tmp_path_factory.mktemp("collections")
    (place / "ansible_collections").symlink_to(ROOT / "gpuops" / "ansible_collections")
    return place
