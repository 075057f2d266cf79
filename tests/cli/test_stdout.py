"""Nothing but the document is on stdout, whatever a library prints there: in Python, past Python, or at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuops.config import snapshot
from tests.plan.snapshots import FIRST, gpu, host, inventory

SOLVER = """
import atexit, os, sys

def speak(moment):
    print("printed", moment)
    os.write(1, f"written past Python {moment}\\n".encode())

speak("when it is imported")
atexit.register(speak, "at the end")
sys.path.remove(os.path.dirname(__file__))
del sys.modules["highspy"]
import highspy

class Highs(highspy.Highs):
    def __init__(self):
        speak("when a solver is made")
        super().__init__()

    def run(self):
        speak("when it runs")
        return super().run()

highspy.Highs = Highs
"""
"""A solver that prints a given text and then calls the installed one."""


def place(folder: Path, *options: str, profile: str = "a40-8q", stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    """`gpuops place --optimize` of three VMs by a process of its own: its exit code, stdout and stderr."""
    (folder / "highspy.py").write_text(SOLVER, encoding="utf-8")
    (folder / "requests.csv").write_text(
        "name,profile,vcpu,memory\n" + "".join(f"w-{n},{profile},2,8GiB\n" for n in range(3)), encoding="utf-8"
    )
    snapshot.save(inventory([host("esx-1", gpu(FIRST, "a40", 0))], []), folder / "inventory.json")
    files = ["--file", str(folder / "requests.csv"), "--inventory", str(folder / "inventory.json")]
    process = subprocess.run(
        [sys.executable, "-m", "gpuops", "place", "--optimize", *files, *options],
        env={**os.environ, "PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    return process.returncode, process.stdout or "", process.stderr


def test_what_a_solver_prints_is_no_part_of_the_document(tmp_path: Path) -> None:
    exit_code, stdout, stderr = place(tmp_path, "--output", "json")
    assert (exit_code, json.loads(stdout)["placed"]) == (0, 3), stderr
    for moment in ("when it is imported", "when a solver is made", "when it runs", "at the end"):
        assert f"printed {moment}" in stderr
        assert f"written past Python {moment}" in stderr


@pytest.mark.long
def test_nor_of_one_in_yaml_or_of_an_error(tmp_path: Path) -> None:
    exit_code, stdout, _ = place(tmp_path, "--output", "yaml")
    assert exit_code == 0
    assert yaml.safe_load(stdout)["placed"] == 3
    exit_code, stdout, _ = place(tmp_path, "--output", "json", profile="a40-7q")
    assert exit_code == json.loads(stdout)["exit_code"] != 0


@pytest.mark.long
def test_a_document_that_stdout_does_not_take_is_said(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        exit_code, _, stderr = place(tmp_path, "--output", "json", stdout=full.fileno())
    assert exit_code != 0
    assert "error: the result cannot be written: No space left on device" in stderr
