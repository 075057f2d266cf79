"""A release is the same bytes whenever it is built, and of a tag alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.long
def test_a_release_of_a_tag_is_the_same_bytes_twice(tmp_path: Path) -> None:
    place = tmp_path / "gpuops"
    ignored = shutil.ignore_patterns(".*_cache", ".venv", ".hypothesis", "__pycache__", "dist", ".git")
    shutil.copytree(ROOT, place, ignore=ignored)

    def run(*words: str) -> str:
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        process = subprocess.run(words, cwd=place, env=environ, capture_output=True, encoding="utf-8", check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def release() -> str:
        # the environment of these tests has what `setup` would install
        run("make", "-o", "setup", "release", f"VENV={Path(sys.executable).parents[1]}")
        return (place / "dist" / "SHA256SUMS").read_text(encoding="utf-8")

    run("git", "init", "--quiet")
    run("git", "add", "--all")
    run("git", "-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "--quiet", "-m", "all")
    untagged = subprocess.run(
        ["make", "-o", "setup", "release"], cwd=place, capture_output=True, encoding="utf-8", check=False
    )
    assert "git tag" in untagged.stderr
    run("git", "tag", "v0")
    first = release()
    assert [line.rpartition(".")[2] for line in first.splitlines()] == ["gz", "json", "whl", "gz", "txt"]
    assert release() == first
