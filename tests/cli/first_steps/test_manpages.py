"""Man pages: every command with each of its options, every page of the manual, as roff that nothing breaks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from gpuops.cli.app import app
from gpuops.cli.manpages import pages, write

MANUAL = sorted((Path(__file__).resolve().parents[3] / "gpuops" / "manual").glob("*.md"))
PAGES = dict(pages(get_command(app), {page.stem: page.read_text(encoding="utf-8") for page in MANUAL}))
REQUESTS = {"TH", "SH", "PP", "TP", "IP", "RS", "RE", "nf", "fi", "br"}


def test_every_command_has_a_page_with_its_options_and_every_topic_has_one() -> None:
    expected = {"man7/gpuops-options.7", *(f"man7/gpuops-{page.stem}.7" for page in MANUAL)}

    def walk(command: object, name: str) -> None:
        expected.add(f"man1/{name}.1")
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}  # type: ignore[attr-defined]
        spoken = PAGES[f"man1/{name}.1"].replace("\\-", "-")
        assert [option for option in options if f"{option}" not in spoken] == [], name
        for child, child_command in getattr(command, "commands", {}).items():
            walk(child_command, f"{name}-{child}")

    walk(get_command(app), "gpuops")
    assert set(PAGES) == expected


@pytest.mark.parametrize("path", PAGES)
def test_a_page_begins_with_its_name_and_has_no_request_by_chance(path: str) -> None:
    text = PAGES[path]
    name, section = Path(path).stem, Path(path).suffix[1:]
    head, name_head, line, *_ = text.splitlines()
    dashed = name.replace("-", "\\-")
    assert head.startswith(f".TH {dashed.upper()} {section} ")
    assert name_head == ".SH NAME"
    assert line.startswith(f"{dashed} \\- ")
    assert {request[1:3] for request in text.splitlines() if request.startswith(".")} <= REQUESTS
    assert not re.search(r"^'|[\x00-\x09\x0b-\x1f]", text, re.MULTILINE)


def test_examples_stay_as_they_are_typed() -> None:
    text = PAGES["man7/gpuops-tour.7"]
    assert ".nf\n$ gpuops rotate night \\-\\-policy templates/lab\\-policy.yaml \\-\\-yes\n1. mark" in text
    assert text.count(".nf") == text.count(".fi") == 7


def test_they_are_written_where_man_finds_them(tmp_path: Path) -> None:
    assert write(tmp_path) == len(PAGES)
    assert {
        str(path.relative_to(tmp_path)): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.?")
    } == PAGES


def test_without_a_directory_it_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "gpuops.cli.manpages"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=60)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("error: ") and "next: " in process.stderr


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("path", ["man1/gpuops-attach.1", "man7/gpuops-commands.7"])
def test_groff_has_nothing_against_one(path: str) -> None:
    command = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww"]
    process = subprocess.run(command, input=PAGES[path], capture_output=True, encoding="utf-8", check=False, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith(f"{Path(path).stem.upper()}(")
