"""Completion of words with `:`, `=` and `@` in them, as bash breaks them, and typed at a real bash."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.console import completion
from gpuops.console.completion import join_pieces, joined_words
from tests.cli.first_steps.test_completion import INVENTORY


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["gpuops", "inventory", "--vcenter", "sim", ":", "la"], ["gpuops", "inventory", "--vcenter", "sim:la"]),
        (["gpuops", "--vcenter", "sim", ":"], ["gpuops", "--vcenter", "sim:"]),
        (["gpuops", "--vcenter", "=", "sim", ":", "la"], ["gpuops", "--vcenter=sim:la"]),
        (["gpuops", "--vcenter", "sim", "@", "lab.json", ""], ["gpuops", "--vcenter", "sim@lab.json", ""]),
        (["gpuops", "--vcenter", "sim", ":", "lab", "--vm", "ml"], ["gpuops", "--vcenter", "sim:lab", "--vm", "ml"]),
        (["gpuops", "--device", "0000", ":", "3b", ":", "00.0"], ["gpuops", "--device", "0000:3b:00.0"]),
        (["gpuops", "--vcenter", "sim", ":", ""], ["gpuops", "--vcenter", "sim:", ""]),
        (["gpuops", "--vm", "'a b'"], ["gpuops", "--vm", "'a b'"]),
    ],
)
def test_the_pieces_are_put_together(pieces: list[str], words: list[str]) -> None:
    assert join_pieces(pieces) == words


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["gpuops", "--vcenter", "sim", ":", "la"], "sim:"),
        (["gpuops", "--vcenter", "sim", ":"], "sim:"),
        (["gpuops", "--vcenter", "=", "sim", ":", "la"], "sim:"),
        (["gpuops", "--vcenter", "=", "pr"], ""),
        (["gpuops", "--vcenter", "sim:la"], ""),
        (["gpuops", "--vm", "ml"], ""),
        (["gpuops", "--vm", ""], ""),
    ],
)
def test_what_bash_keeps(pieces: list[str], words: str) -> None:
    environ = {"COMP_WORDS": "\n".join(pieces), "COMP_CWORD": str(len(pieces) - 1)}
    assert joined_words(environ) == words
    assert environ["COMP_WORDS"].split("\n")[int(environ["COMP_CWORD"])].endswith(pieces[-1])


@pytest.mark.parametrize("cursor", ["", "-1", "9", "²"])
def test_a_cursor_that_is_none_changes_nothing(cursor: str) -> None:
    environ = {"COMP_WORDS": "gpuops\n--vcenter\nsim", "COMP_CWORD": cursor}
    assert joined_words(dict(environ)) == ""


def complete(*pieces: str) -> list[str]:
    environ = {
        "_GPUOPS_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(pieces), "COMP_CWORD": str(len(pieces) - 1)
    }  # fmt: skip
    result = CliRunner().invoke(app, [], env=environ, prog_name="gpuops")
    assert result.stderr == ""
    return result.stdout.split()


def test_what_comes_after_the_colon_is_answered() -> None:
    assert complete("gpuops", "inventory", "--vcenter", "sim", ":", "s") == ["scattered", "stacks", "supervisor"]
    assert complete("gpuops", "inventory", "--vcenter", "sim", ":") == [
        "accelerators",
        "fleet",
        "lab",
        "scattered",
        "stacks",
        "supervisor",
        "training",
        "vdi",
    ]
    assert complete("gpuops", "inventory", "--vcenter", "=", "sim", ":", "l") == ["lab"]
    assert complete("gpuops", "inventory", "--vcenter", "sim:sc") == ["sim:scattered"], "where bash breaks nothing"
    assert complete("gpuops", "sim", "serve", "--scenario", "v") == ["vdi"]


def test_names_of_the_vcenter_that_stands_before_are_answered() -> None:
    completion.remember("sim:lab", INVENTORY)
    before = ("gpuops", "attach", "--vcenter", "sim", ":", "lab")
    assert complete(*before, "--vm", "ml-08") == ["ml-08"]
    assert complete(*before, "--device", "0000", ":", "3") == ["3b:00.0"]
    assert complete(*before, "--label", "tra") == ["train"]
    assert complete("gpuops", "place", "--vcenter", "sim", ":", "lab", "--cluster", "g") == ["gpu-1"]
    assert complete("gpuops", "host", "passthrough", "on", "--vcenter", "sim", ":", "lab", "--gpu", "0000:3") == [
        "0000:3b:00.0"
    ]


def test_an_error_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GPUOPS_COMPLETE", "complete_nothing")
    result = CliRunner().invoke(app, [], prog_name="gpuops")
    assert result.stderr == ""


@pytest.mark.quick_cases(1)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("inventory --vcenter sim:sc\t", "inventory --vcenter sim:scattered"),
        ("inventory --vcenter=sim:sc\t", "inventory --vcenter=sim:scattered"),
        ("attach --vcenter sim:lab --device 0000:3\t", "attach --vcenter sim:lab --device 0000:3b:00.0"),
    ],
)
def test_typed_at_a_real_bash(typed: str, line: str, tmp_path: Path) -> None:
    completion.remember("sim:lab", INVENTORY)
    script = tmp_path / "completion.bash"
    program = Path(sys.executable).with_name("gpuops")
    show = ["bash", "-c", f"{shlex.quote(str(program))} --show-completion; true"]  # it asks which shell called it
    script.write_text(subprocess.run(show, check=True, capture_output=True, encoding="utf-8").stdout, encoding="utf-8")
    output_file = tmp_path / "said"
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", PS1="ready> ", TERM="dumb")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f"source {script}; PS1=$'\\x3eready\\x3e '\r".encode())
        _until(terminal, lambda screen: b"\n>ready> " in screen)
        os.write(terminal, f"gpuops {typed}".encode())
        _until(terminal, lambda screen: line.split()[-1].encode() in screen)
        os.write(terminal, f"\x01echo \x05 > {output_file}\r".encode())  # the beginning of the line and its end
        _until(terminal, lambda screen: output_file.exists() and output_file.read_text() != "")
    finally:
        os.write(terminal, b"\x04")
        os.close(terminal)
        os.waitpid(child, 0)
    assert output_file.read_text().split() == ["gpuops", *line.split()]


def _until(terminal: int, is_complete: object) -> None:
    """Read what the terminal shows until `is_complete` accepts it; fail after 90 s."""
    screen, end = b"", time.monotonic() + 90
    while not is_complete(screen):  # type: ignore[operator]
        assert time.monotonic() < end, screen
        if select.select([terminal], [], [], 0.1)[0]:
            screen += os.read(terminal, 65536)
