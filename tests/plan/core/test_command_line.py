"""Texts that plans print and read: commands for copying, addresses that guests report, and refusals that are alike."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.command_line import called, command, hosts_called
from gpuops.plan.core.guest_address import unicast_address
from gpuops.plan.core.rejection import Rejection, some_names, summarize_similar
from tests.plan.case import CASES

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


ADDRESSES: Final = yaml.safe_load((CASES / "guest-addresses.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", ADDRESSES["used"])
def test_a_host(text: str) -> None:
    assert str(unicast_address(text)) == text


@pytest.mark.parametrize("text", ADDRESSES["refused"])
def test_no_host(text: str) -> None:
    assert unicast_address(text) is None


def lines(*rejections: Rejection) -> list[str]:
    return [rejection.line for rejection in summarize_similar(rejections)]


def test_other_reasons_are_not_alike() -> None:
    assert len(lines(Rejection("esx-01", "vmk1 is not on dvs-a"), Rejection("esx-02", "vmk1 is not on dvs-b"))) == 2
    assert len(lines(Rejection("esx-01", "free", 1, 0, "GPUs"), Rejection("esx-01", "free", 1, 0, "slots"))) == 2


def test_names_are_all_there_as_long_as_they_are_few() -> None:
    assert some_names(["a", "b", "c"]) == "a, b, c"
    assert some_names(["a", "b", "c", "d"]) == "a, b, c and 1 more"
