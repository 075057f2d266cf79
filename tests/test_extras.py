"""Without its optional capabilities, all or one of them, gpuops still attaches, plays a night and returns desktops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import gpuops
from gpuops.extensions import EXTRAS, load, night_extensions

PACKAGE = Path(gpuops.__file__).parent
ALL = "extras"
LOADED: Final = re.compile(r"\bload\(\"([\w.]+)\"\)")
"""What the core names of an extra."""
FEWEST_LOADED: Final = 10
ONE_EACH = [pytest.param(name, marks=pytest.mark.long) for name in EXTRAS]


def test_every_folder_of_extras_is_in_the_table() -> None:
    assert {path.parent.name for path in (PACKAGE / ALL).glob("*/__init__.py")} == set(EXTRAS)


def test_each_name_in_the_table_and_in_the_core_is_there() -> None:
    modules = {
        f"gpuops.extras.{name}.{module}"
        for name, extra in EXTRAS.items()
        for module in (*extra.commands.values(), *extra.documents, *extra.tasks.values())
    }
    assert all(map(import_module, sorted(modules)))
    assert all(night_extensions())
    loaded = {path for file in PACKAGE.rglob("*.py") for path in LOADED.findall(file.read_text(encoding="utf-8"))}
    assert len(loaded) >= FEWEST_LOADED
    assert all(map(load, sorted(loaded)))


@pytest.mark.parametrize("removed", [*ONE_EACH, pytest.param(ALL, marks=pytest.mark.long)])
def test_without_it_the_core_does_its_main_job(removed: str, tmp_path: Path) -> None:
    link_all_but(removed, tmp_path / "gpuops")
    assert "Give a VM vGPUs" in run(tmp_path, "--help")
    assert "is back" in run(tmp_path, "demo")


def test_a_command_of_a_missing_extra_says_so(tmp_path: Path) -> None:
    link_all_but("jobs", tmp_path / "gpuops")
    result = call(tmp_path, "job", "list", "--vcenter", "sim:lab")
    assert (result.returncode, result.stdout) == (2, "")
    assert "does not contain jobs" in result.stderr


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
