"""The simulator's README for other projects: its tests pass, and its commands do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyVim.connect import Disconnect, GetSi

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "gpuops" / "sim" / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def _tests() -> dict[str, Callable[[Any], None]]:
    """The test functions of the page, by name."""
    [block] = _blocks("python")
    namespace: dict[str, Any] = {}
    exec(block, namespace)  # our own page
    return {name: function for name, function in namespace.items() if name.startswith("test_")}


@pytest.mark.parametrize("name", list(_tests()))
def test_the_tests_of_the_page_pass(name: str, request: pytest.FixtureRequest) -> None:
    function = _tests()[name]
    for mark in getattr(function, "pytestmark", ()):
        request.applymarker(getattr(pytest.mark, mark.name)(*mark.args, **mark.kwargs))
    function(request.getfixturevalue("simulated_vcenter"))
    Disconnect(GetSi())  # this run takes a socket that is left open for an error


@pytest.mark.long
def test_the_process_is_served_as_the_page_shows(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    script = f"{_blocks('sh')[0]}wait\n"
    completed = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environ, capture_output=True, encoding="utf-8", timeout=100
    )  # fmt: skip
    assert "https://127.0.0.1:" in completed.stdout, completed.stderr
    assert "nothing was done" in completed.stdout, completed.stderr
    assert not (tmp_path / "lab.json").exists(), "kill stops it, and it takes its ready file away"


def test_the_container_is_run_as_its_file_says() -> None:
    containerfile = (ROOT / "templates" / "container" / "Containerfile").read_text(encoding="utf-8")
    comments = {line.lstrip("# ") for line in containerfile.splitlines() if line.startswith("#")}
    lines = [line.strip() for line in _blocks("sh")[1].splitlines()]
    assert [line for line in lines if line not in comments] == []


def test_the_page_is_short() -> None:
    assert 40 <= len(PAGE.splitlines()) <= 80
