"""Kill: each mutant in a copy of the package and a process of its own, until a checker names its invariant, or its test
fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.mutants.table import ROOT, Edit, Mutant, apply

MINUTE_S: Final = 60.0
"""Of one core: what else a machine does must not let a mutant live."""
NOT_JUDGED: Final = "E501,UP034"
"""Rules that a mutated statement may break because `ast.unparse` writes it: long messages, extra parentheses."""


@dataclass(frozen=True, slots=True)
class End:
    """What became of a mutant. `said`: the checker's words; None = it survived, and `why`."""

    mutant: Mutant
    said: str | None
    nights: int
    seconds: float
    why: str = ""

    def __str__(self) -> str:
        outcome = self.said or f"SURVIVED {self.why}"
        return (
            f"{self.mutant.name:38} {self.mutant.invariant or 'test':4} {self.nights:5} nights {self.seconds:5.1f} s  "
            f"{outcome[:90]}"
        )


def kill(mutant: Mutant, budget_s: float = MINUTE_S) -> End:
    """Plays nights under the mutant. Raises ValueError for one that is no mutant: not found, or not fit to lint."""
    with TemporaryDirectory(prefix="gpuops-mutant-") as where:
        root = Path(where)
        shutil.copytree(ROOT / "gpuops", root / "gpuops", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "templates", root / "templates")  # which commands look for beside the package
        apply(mutant.edits, root)
        _lint(mutant, root)
        return _run_test(mutant, root, budget_s) if mutant.test else _hunt(mutant, root, budget_s)


def _lint(mutant: Mutant, root: Path) -> None:
    files = sorted({edit.file for edit in mutant.edits if isinstance(edit, Edit)})
    if not files:
        return
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), *files]
    command += ["--ignore", NOT_JUDGED]
    linted = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", check=False)
    if linted.returncode:
        raise ValueError(f"{mutant.name} does not pass lint:\n{linted.stdout}{linted.stderr}")


_TEST: Final = """
import pathlib, sys, gpuops, pytest
assert pathlib.Path(gpuops.__file__).is_relative_to(sys.argv[1]), gpuops.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


def _run_test(mutant: Mutant, root: Path, budget_s: float) -> End:
    """Whether its test fails; which it does not for want of the test, or of pytest."""
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
    ]
    command = [sys.executable, "-c", _TEST, str(root), *options, str(ROOT / mutant.test)]
    began = time.monotonic()
    run = subprocess.run(
        command, cwd=root, env=_path(root), capture_output=True, encoding="utf-8", check=False, timeout=10 * budget_s
    )
    seconds = time.monotonic() - began
    if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ValueError(f"{mutant.name} does not run:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    failed = run.returncode == pytest.ExitCode.TESTS_FAILED
    failure_line = next((line for line in run.stdout.splitlines() if line.startswith("FAILED ")), mutant.test)
    return End(mutant, failure_line if failed else None, 0, seconds, f"{mutant.test} passes")


def _path(root: Path) -> dict[str, str]:
    """An environment in which the package is the copy, and the tests are these."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(ROOT)])}


def _hunt(mutant: Mutant, root: Path, budget_s: float) -> End:
    where = [
        mutant.invariant,
        str(mutant.first),
        str(budget_s),
        *mutant.kinds,
    ]
    command = [sys.executable, "-m", "tests.mutants.hunt", *where]
    try:
        played = subprocess.run(
            command,
            cwd=root,
            env=_path(root),
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=10 * budget_s,
        )
    except subprocess.TimeoutExpired:
        return End(mutant, None, 0, budget_s, "one of its nights does not end")
    if played.returncode:
        raise ValueError(f"{mutant.name} does not run:\n{played.stderr[-2000:]}")
    outcome = json.loads(played.stdout)
    if not Path(outcome["engine"]).is_relative_to(root):
        raise ValueError(f"{mutant.name} was not played: {outcome['engine']} was")
    why = f"(others seen: {', '.join(outcome.get('others', [])) or 'none'})"
    return End(mutant, outcome["said"], outcome["nights"], outcome["seconds"], why)


def kill_all(mutants: Iterable[Mutant]) -> list[End]:
    """The ends, each printed as it comes: name, invariant, nights, seconds, and what the checker said."""
    ends = []
    for mutant in mutants:
        ends.append(kill(mutant))
        print(ends[-1], flush=True)
    return ends
