"""Without its optional capabilities, all or one of them, gpuops still attaches, plays a night and returns desktops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuops
from gpuops.extensions import EXTRAS, load

PACKAGE = Path(gpuops.__file__).parent
ALL = "extras"
ONE_EACH = [pytest.param(name, marks=pytest.mark.long) for name in EXTRAS]


def test_every_folder_of_extras_is_in_the_table() -> None:
    assert {path.parent.name for path in (PACKAGE / ALL).glob("*/__init__.py")} == set(EXTRAS)


def test_everything_that_is_loaded_by_name_exists() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    pattern = rf"\bload\(\s*\"((?:{'|'.join(EXTRAS)})\.[\w.]+)\""
    names = sorted(set(re.findall(pattern, text)))
    assert len(names) > 10
    assert all(load(name) for name in names)


@pytest.mark.parametrize("removed", [ALL, *ONE_EACH])
def test_without_it_the_core_does_its_main_job(removed: str, tmp_path: Path) -> None:
    link_all_but(removed, tmp_path / "gpuops")
    assert "Give a VM vGPUs" in run(tmp_path, "--help")
    assert "is back" in run(tmp_path, "demo")


def test_a_command_of_a_missing_extra_says_so(tmp_path: Path) -> None:
    link_all_but("jobs", tmp_path / "gpuops")
    result = call(tmp_path, "job", "list", "--vcenter", "sim:lab")
    assert (result.returncode, result.stdout) == (2, "")
    assert "installed without jobs" in result.stderr


def link_all_but(removed: str, package: Path) -> None:
    """Make the package anew from links to all of its files, without extras or one of them."""
    (package / ALL).mkdir(parents=True)
    (package.parent / "templates").symlink_to(PACKAGE.parent / "templates")
    for path in PACKAGE.iterdir():
        if path.name not in (ALL, "__pycache__"):
            (package / path.name).symlink_to(path)
    if removed == ALL:
        (package / ALL).rmdir()
        return
    for path in (PACKAGE / ALL).iterdir():
        if path.name != removed:
            (package / ALL / path.name).symlink_to(path)


def run(folder: Path, *arguments: str) -> str:
    result = call(folder, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(folder), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "gpuops", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, encoding="utf-8", check=False)
