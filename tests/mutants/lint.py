"""Lint: what `make lint` says of mutated engines. As many mutants as leave each other's texts alone share a copy: a
clean copy is one in which each of them is clean."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutants.table import ROOT, Mutant

PROGRAMS: Final = (
    ("ruff", "check", "gpuops"),
    ("ruff", "format", "--check", "gpuops"),
    ("mypy", "-p", "gpuops"),
    ("lint-imports",),
)


def said_of(mutants: Sequence[Mutant]) -> Iterator[str]:
    """What a program of `make lint` has against one of them."""
    with TemporaryDirectory(prefix="gpuops-mutants-") as where:
        root = Path(where)
        shutil.copytree(ROOT / "gpuops", root / "gpuops", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", root)
        left = list(mutants)
        while left:
            for file in {edit.file for mutant in mutants for edit in mutant.edits}:
                shutil.copy(ROOT / file, root / file)
            together = [mutant for mutant in left if _applied(mutant, root)]
            left = [mutant for mutant in left if mutant not in together]
            for program, *arguments in PROGRAMS:
                yield from _against(root, program, *arguments)


def _applied(mutant: Mutant, root: Path) -> bool:
    """Whether its texts are all still there; then they are replaced."""
    before = {edit.file: (root / edit.file).read_text(encoding="utf-8") for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            (root / edit.file).write_text(edit.applied(root), encoding="utf-8")
    except ValueError:
        for file, text in before.items():
            (root / file).write_text(text, encoding="utf-8")
        return False
    return True


def _against(root: Path, program: str, *arguments: str) -> Iterator[str]:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    found = subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", check=False)
    if found.returncode:
        yield f"{program}: {found.stdout}{found.stderr}"
