"""A command that is offered for copying runs one program with the words that are meant, whatever a VM is called."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.command_line import called, command, hosts_called

NAMES: Final = (
    "ml-07",
    "two words",
    "x; touch OBEYED",
    "$(touch OBEYED)",
    "`touch OBEYED`",
    "a' ; touch OBEYED ; '",
    'a" && touch OBEYED && "',
    "a\ntouch OBEYED",
    "| touch OBEYED",
    "> OBEYED",
    "*",
    "~",
    "!!",
    "%OBEYED%",
    "--yes",
    "-o",
    "ü\u202e",
)


def words_heard(lines: list[str], folder: Path) -> list[list[str]]:
    """The words that a program called gpuops has from these lines in a shell; one call for each."""
    program = folder / "gpuops"
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\nprintf '\\n\\0'\n", encoding="utf-8")
    program.chmod(0o700)
    script = "\n".join(lines)
    process = subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, check=True
    )
    words = process.stdout.decode().split("\0")
    calls: list[list[str]] = [[]]
    for word in words[:-1]:
        calls.append([]) if word == "\n" else calls[-1].append(word)
    return calls[:-1]


def test_a_name_is_one_word_of_one_program(tmp_path: Path) -> None:
    lines = [command("rotate restore", vm=name, profile="a40-8q") for name in NAMES]
    expected = [
        ["rotate", "restore", *([f"--vm={name}"] if name.startswith("-") else ["--vm", name]), "--profile", "a40-8q"]
        for name in NAMES
    ]
    assert words_heard(lines, tmp_path) == expected
    assert not (tmp_path / "OBEYED").exists()


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ml-07", "ml-07"),
        ("two words", "two words"),
        ("moid:vm-7", "moid:vm-1"),
        ("uuid:0", "moid:vm-1"),
        ("/lab-dc/vm/ml/ml-01", "moid:vm-1"),
        ("--yes", "moid:vm-1"),
        ("ml\u202e07", "moid:vm-1"),
    ],
)
def test_a_name_that_means_something_else_gives_way_to_the_id(name: str, word: str) -> None:
    assert called(Vm("vm-1", name)) == word


def test_a_host_called_like_a_pattern_is_that_host_alone() -> None:
    assert hosts_called("esx-01.lab") == "esx-01.lab"
    assert [hosts_called(name) for name in ("*", "esx-[12]")] == ["[*]", "esx-[[]12]"]
    assert fnmatchcase("*", hosts_called("*"))
    assert not fnmatchcase("esx-01", hosts_called("*"))
