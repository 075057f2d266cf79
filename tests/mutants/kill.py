"""Kill: each mutant in a copy of the package and a process of its own, until a checker names its invariant."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutants.table import ROOT, Mutant

MINUTE_S: Final = 60.0
"""Of one core: what else a machine does must not let a mutant live."""


@dataclass(frozen=True, slots=True)
class End:
    """What became of a mutant. `said`: the checker's words; None = it survived, and `why`."""

    mutant: Mutant
    said: str | None
    nights: int
    seconds: float
    why: str = ""

    def __str__(self) -> str:
        told = self.said or f"SURVIVED {self.why}"
        return (
            f"{self.mutant.name:38} {self.mutant.invariant:4} {self.nights:5} nights {self.seconds:5.1f} s  {told[:90]}"
        )


def kill(mutant: Mutant, budget_s: float = MINUTE_S) -> End:
    """Plays nights under the mutant. Raises ValueError for one that is no mutant: not found, or not fit to lint."""
    with TemporaryDirectory(prefix="gpuops-mutant-") as where:
        root = Path(where)
        shutil.copytree(ROOT / "gpuops", root / "gpuops", ignore=shutil.ignore_patterns("__pycache__"))
        for edit in mutant.edits:
            (root / edit.file).write_text(edit.applied(root), encoding="utf-8")
        _lint(mutant, root)
        return _hunt(mutant, root, budget_s)


def _lint(mutant: Mutant, root: Path) -> None:
    files = sorted({edit.file for edit in mutant.edits})
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), *files]
    linted = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if linted.returncode:
        raise ValueError(f"{mutant.name} does not pass lint:\n{linted.stdout}{linted.stderr}")


def _hunt(mutant: Mutant, root: Path, budget_s: float) -> End:
    where = [mutant.invariant, str(mutant.first), str(budget_s), *(["quiet"] if mutant.quiet else [])]
    command = [sys.executable, "-m", "tests.mutants.hunt", *where]
    path = os.pathsep.join([str(root), str(ROOT)])
    try:
        played = subprocess.run(
            command, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
            timeout=10 * budget_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return End(mutant, None, 0, budget_s, "one of its nights does not end")
    if played.returncode:
        raise ValueError(f"{mutant.name} does not run:\n{played.stderr[-2000:]}")
    found = json.loads(played.stdout)
    if not Path(found["engine"]).is_relative_to(root):
        raise ValueError(f"{mutant.name} was not played: {found['engine']} was")
    why = f"(others seen: {', '.join(found.get('others', [])) or 'none'})"
    return End(mutant, found["said"], found["nights"], found["seconds"], why)


def kill_all(found: Iterable[Mutant]) -> list[End]:
    """The ends, each printed as it comes: name, invariant, nights, seconds, and what the checker said."""
    ends = []
    for mutant in found:
        ends.append(kill(mutant))
        print(ends[-1], flush=True)
    return ends
