"""The check of a guest: a real shell runs the script for Linux; the one for Windows fits into a command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest

from gpuops.guest_scripts.script_commands import LONGEST_CMD, answer_path, over_ssh, removal, to_file
from gpuops.model.guests.guest import GuestAnswer, GuestSystem
from gpuops.plan.guest.check_output import read_answer
from tests.plan.guest.test_answer import RDMA


def test_the_program_of_linux_is_run_by_a_real_shell_and_its_answer_is_read() -> None:
    """Whatever this machine has: the shell takes it, and every section is there."""
    shell = shutil.which("sh")
    assert shell is not None
    process = subprocess.run(
        [shell, "-c", over_ssh(GuestSystem.LINUX, ["pip", "none-such"])], capture_output=True, timeout=60
    )
    answer = read_answer(process.stdout.decode())
    assert answer.clock_s is not None
    assert answer.frameworks["none-such"] is None
    assert answer.frameworks.keys() == {"pip", "none-such"}
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("timedatectl", "chronyc", "synchronized"),
    [
        ("echo yes", "exit 1", True),
        ("echo no", "echo 'Leap status     : Normal'", True),
        ("echo no", "echo 'Leap status     : Not synchronised'", False),
        ("echo no", "echo '506 Cannot talk to daemon'; exit 1", False),
        ("exit 1", "echo 'Leap status     : Normal'", True),
        ("exit 1", "exit 1", None),
    ],
)
def test_either_time_service_of_linux_speaks_for_the_clock(
    tmp_path: Path, timedatectl: str, chronyc: str, synchronized: bool | None
) -> None:
    assert told_with(tmp_path, timedatectl=timedatectl, chronyc=chronyc).synchronized is synchronized


@pytest.mark.parametrize(
    ("rdma", "link"),
    [(f"echo '{RDMA}'", "mlx5_0/1"), ("echo 'no option -j' >&2; exit 255", "mlx5_1/1"), ("echo '[]'", None)],
)
def test_an_rdma_that_tells_nothing_leaves_it_to_ibv_devinfo(tmp_path: Path, rdma: str, link: str | None) -> None:
    answer = told_with(tmp_path, rdma=rdma, ibv_devinfo="echo 'hca_id: mlx5_1'; echo ' state: PORT_ACTIVE (4)'")
    assert answer.rdma is not None and [link_read.name for link_read in answer.rdma] == ([link] if link else [])


def told_with(directory: Path, **programs: str) -> GuestAnswer:
    """What a real shell tells where these programs do that."""
    for name, does in programs.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    path = {"PATH": f"{directory}:{os.environ['PATH']}"}
    process = subprocess.run(
        ["/bin/sh", "-c", over_ssh(GuestSystem.LINUX, [])], capture_output=True, timeout=60, env=path
    )
    return read_answer(process.stdout.decode())


def test_the_answer_goes_to_a_file_of_its_own(tmp_path: Path) -> None:
    """As VMware Tools start it: a shell takes program and arguments as one line."""
    file = tmp_path / "gpuops-1.txt"
    call = to_file(GuestSystem.LINUX, [], str(file))
    for _ in range(2):
        process = subprocess.run(f"{call.program} {call.arguments}", shell=True, capture_output=True, timeout=60)
    assert process.returncode != 0, "a file that is there is not written over"
    assert file.stat().st_mode & 0o077 == 0
    assert read_answer(file.read_text(encoding="utf-8")).system is GuestSystem.LINUX
    call = removal(GuestSystem.LINUX, str(file))
    subprocess.run(f"{call.program} {call.arguments}", shell=True, check=True, timeout=60)
    assert not file.exists()


def test_the_program_of_windows_fits_into_a_command_line() -> None:
    names = [f"framework-{number:02}" for number in range(16)]
    call = to_file(GuestSystem.WINDOWS, names, answer_path(GuestSystem.WINDOWS, "f" * 32))
    assert len(f"{call.program} {call.arguments}") < LONGEST_CMD
    assert call.arguments.endswith(f' > C:\\Windows\\Temp\\gpuops-{"f" * 32}.txt"')
    script = b64decode(over_ssh(GuestSystem.WINDOWS, names).rpartition(" ")[2]).decode("utf-16-le")
    assert script.startswith("& {\n") and "\nparam([string[]]$Frameworks = @())\n" in script
    assert script.endswith("\n} " + ",".join(f"'{name}'" for name in names))
    assert '"' not in script.replace('"$env:', "").replace('nvidia-smi.exe"', ""), "quotes stand around paths alone"
