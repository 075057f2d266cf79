"""Commands of a user without $HOME, home directory and name, as in execution environments and in OpenShift."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMELESS = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
from gpuops.cli import main
main()
"""


def run(words: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    other_variables = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "LOGNAME", "USER", "USERNAME")
    }
    return subprocess.run(
        [sys.executable, "-c", NAMELESS, *words],
        capture_output=True, encoding="utf-8", timeout=60, check=False, env={**other_variables, **environ},
    )  # fmt: skip


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "words",
    [
        ["inventory", "--vcenter", "sim:lab"],
        ["attach", "--vm", "ml-07", "--profile", "a100-3-20c", "--yes", "--vcenter", "sim:lab"],
        ["rotate", "night", "--policy", "gpuops/sim/scenarios/lab-policy.yaml", "--yes", "--vcenter", "sim:lab"],
        ["rotate", "status", "--vcenter", "sim:lab"],
        ["observe", "status"],
        ["config", "show"],
        ["doctor", "--vcenter", "sim:lab"],
    ],
)
def test_a_command_works(words: list[str], tmp_path: Path) -> None:
    process = run(
        words, GPUOPS_STATE_DIR=str(tmp_path / "state"), XDG_CACHE_HOME=str(tmp_path), GPUOPS_SIM_CLOCK="stepped"
    )
    assert "internal error" not in process.stderr
    assert process.returncode in (0, 4), process.stderr
