"""`gpuops sim`: served as a process of its own, found by its ready file, stopped like any service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "gpuops", "sim", "serve", "--scenario", "lab", "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("serving lab at https://127.0.0.1:")
            document = json.loads(ready.read_text(encoding="utf-8"))
            assert set(document) == {"url", "username", "password", "ca_file", "pid"}
            assert document["pid"] == process.pid
            listed = CliRunner().invoke(app, ["sim", "ledger", "--ready-file", str(ready), "--output", "json"])
            assert json.loads(listed.stdout) == {"schema_version": 1, "kind": "ledger", "entries": []}
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert not ready.exists()
    assert not Path(document["ca_file"]).exists()


def test_a_ready_file_takes_the_place_of_nothing_but_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result = CliRunner().invoke(app, ["sim", "serve", "--ready-file", str(pipe)])
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2,
        f"error: {pipe} cannot be written: it is not a file",
    )
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--scenario", "nowhere"], "nowhere"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--clock", "sundial"], "sundial"),
        (["serve", "--ready-file", "/nonexistent/ready.json"], "cannot be written"),
        (["ledger"], "--ready-file"),
        (["ledger", "--ready-file", "/nonexistent.json"], "no simulated vCenter has written"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["sim", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr.splitlines()[0]
    assert result.stdout == ""
