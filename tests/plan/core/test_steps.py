"""What a kind of step costs: the files that must learn it are few, and CONTRIBUTING names them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final, get_args

from gpuops.plan.core.steps import Step

ROOT: Final = Path(__file__).parents[3]
KINDS: Final = {kind.__name__ for kind in get_args(Step)}
MOST: Final = 5


def kinds_of(match: ast.Match) -> set[str]:
    """The classes that a match statement tells apart."""
    patterns = (node for case in match.cases for node in ast.walk(case.pattern))
    return {
        pattern.cls.id
        for pattern in patterns
        if isinstance(pattern, ast.MatchClass) and isinstance(pattern.cls, ast.Name)
    }


def matching_all() -> set[str]:
    """Files with a match that must know every kind of step, as paths below the package."""
    package = ROOT / "gpuops"
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    return {
        str(path.relative_to(package))
        for path, text in texts.items()
        if all(kind in text for kind in KINDS)  # the others need not be parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Match) and kinds_of(node) >= KINDS
    }


def test_a_kind_of_step_touches_at_most_five_files_and_the_guide_names_them() -> None:
    files = {"plan/core/steps.py", *matching_all()}
    assert len(files) <= MOST, sorted(files)
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [row] = [line for line in guide.splitlines() if line.startswith("| a kind of step |")]
    assert [file for file in sorted(files) if f"`gpuops/{file}`" not in row] == []


def test_each_kind_of_step_has_words_of_its_own_and_says_what_it_needs() -> None:
    kinds = get_args(Step)
    assert len({kind.kind for kind in kinds}) == len({kind.noun for kind in kinds}) == len(kinds)
    assert [kind.__name__ for kind in kinds if not hasattr(kind, "privileges")] == []
