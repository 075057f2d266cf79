"""The shell scripts, run by a shell in a home directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpuops.extras.clusters.cluster_guests import step_command
from gpuops.extras.clusters.launch import Launch
from gpuops.extras.clusters.run_request import Launcher
from gpuops.model.workloads.cluster import Member
from tests.waiting import wait_until

MEMBER = Member("vm-1", "train-00", "esx-01", 1, "10.1.2.11", None)
LAUNCH = Launch("train", "r1", Launcher.MPIRUN, (MEMBER,), 1, (1,), ("true",), {})
MV = """#!/bin/sh
: > "$HOME/moving"
while [ -n "$FIRST" ] && [ ! -e "$HOME/opened" ]; do sleep 0.1; done
exec /bin/mv "$@"
"""
GREP = """#!/bin/sh
[ "$FIRST$1" = -vF ] && { : > "$HOME/opened"; sleep 1; }
exec /bin/grep "$@"
"""


def test_guests_that_share_a_home_directory_keep_the_keys_that_were_there(tmp_path: Path) -> None:
    """One guest puts its file in place when another has just opened its own, and has not read the keys yet."""
    keys = tmp_path / ".ssh/authorized_keys"
    keys.parent.mkdir()
    mine = "ssh-ed25519 AAAA mine\n"
    keys.write_text(f"{mine}restrict ssh-ed25519 BBBB gpuops-cluster-run:train:r1\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("mv", MV), ("grep", GREP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o700)
    surroundings = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    first = subprocess.Popen(["sh", "-c", step_command("clean", LAUNCH)], env={**surroundings, "FIRST": "1"})
    wait_until((tmp_path / "moving").exists)
    second = subprocess.run(["sh", "-c", step_command("clean", LAUNCH)], env=surroundings, timeout=30, check=False)
    assert (first.wait(timeout=30), second.returncode, keys.read_text()) == (0, 0, mine)
    assert [path.name for path in keys.parent.iterdir()] == ["authorized_keys"]
