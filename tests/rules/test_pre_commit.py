"""The hook that `make hooks` installs: a commit with a fault of style, layout or types is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.table import ROOT

GOOD = '"""A module."""\n\nfrom __future__ import annotations\n\nANSWER: int = 42\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """An empty repository with the settings and the hook of this one."""
    where = tmp_path / "a clone"
    where.mkdir()
    for name in ("pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, where)
    subprocess.run(["git", "init", "--quiet", str(where)], check=True)
    installed = where / ".git" / "hooks" / "pre-commit"
    shutil.copy(ROOT / ".ci" / "pre-commit", installed)
    return where


def commit_file(clone: Path, file: str, text: str) -> subprocess.CompletedProcess[str]:
    """What git says of a commit of that file."""
    (clone / file).parent.mkdir(parents=True, exist_ok=True)
    (clone / file).write_text(text, encoding="utf-8")
    subprocess.run(["git", "add", file], cwd=clone, check=True)
    return subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "A change"],
        cwd=clone, env={**os.environ, "BIN": str(Path(sys.executable).parent)}, capture_output=True, encoding="utf-8",
        check=False,
    )  # fmt: skip


def test_what_is_right_is_committed(clone: Path) -> None:
    commit = commit_file(clone, "tests/sample.py", GOOD)
    assert commit.returncode == 0, commit.stdout + commit.stderr
    assert commit_file(clone, "notes.md", "no Python").returncode == 0


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tests/sample.py", GOOD + "import os\n", "F401"),
        ("tests/sample.py", GOOD.replace("int = 42", "int=42"), "would be reformatted"),
        ("tests/sample.py", GOOD.replace("42", '"42"'), "[assignment]"),
    ],
    ids=["style", "layout", "types"],
)
def test_what_is_wrong_is_refused(clone: Path, file: str, text: str, message: str) -> None:
    commit = commit_file(clone, file, text)
    assert commit.returncode != 0
    assert message in commit.stdout + commit.stderr


def test_types_of_the_collections_modules_are_left_to_ansible(clone: Path) -> None:
    modules = "gpuops/ansible_collections/gpuops/vsphere/plugins/modules/sample.py"
    commit = commit_file(clone, modules, GOOD.replace("42", '"42"'))
    assert commit.returncode == 0, commit.stdout + commit.stderr
