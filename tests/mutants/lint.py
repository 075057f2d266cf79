"""Lint: what `make lint` reports about mutated engines. Mutants that do not change the same code share a copy of the
package: a copy without a complaint shows that each mutant in it is clean."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutants.kill import NOT_JUDGED
from tests.mutants.table import ROOT, Mutant, apply

PROGRAMS: Final = (
    ("ruff", "format", "-q", "gpuops"),  # a mutated statement is written without its line breaks
    ("ruff", "check", "--ignore", NOT_JUDGED, "gpuops"),
    ("mypy", "-p", "gpuops"),
    ("lint-imports",),
)


def said_of(mutants: Sequence[Mutant]) -> Iterator[str]:
    """What a program of `make lint` has against one of them."""
    with TemporaryDirectory(prefix="gpuops-mutants-") as where:
        root = Path(where)
        shutil.copytree(ROOT / "gpuops", root / "gpuops", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", root)
        mutants_left = list(mutants)
        while mutants_left:
            for file in {edit.file for mutant in mutants for edit in mutant.edits}:
                shutil.copy(ROOT / file, root / file)
            together = [mutant for mutant in mutants_left if _apply_mutant(mutant, root)]
            mutants_left = [mutant for mutant in mutants_left if mutant not in together]
            for program, *arguments in PROGRAMS:
                yield from _against(root, program, *arguments)


def _apply_mutant(mutant: Mutant, root: Path) -> bool:
    """Apply the edits of a mutant if all of their patterns still match, and return whether they did."""
    try:
        apply(mutant.edits, root)
    except ValueError:
        return False
    return True


def _against(root: Path, program: str, *arguments: str) -> Iterator[str]:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    completed = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", check=False)
    if completed.returncode:
        yield f"{program}: {completed.stdout}{completed.stderr}"
