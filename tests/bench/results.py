"""RESULTS.md: a section for each benchmark, with the command, the date and the commit that its figures are of.

`python -m tests.bench results NAME ...` measures the named benchmarks and writes their sections anew; `make
bench-results` does so for all. A benchmark that lacks its input (the trace, the peers) keeps the section it has.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.measure import ROOT
from tests.bench.verdict import Result

FILE: Final = Path(__file__).parent / "RESULTS.md"
INPUTS: Final = ("OPENB", "BASELINES", "GAVEL")
"""Variables that name folders with data which is not in the tree."""
_SECTION: Final = "\n## "


def sections(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the first section, and the sections by name."""
    head, *parts = text.split(_SECTION)
    return head.rstrip(), {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}


def renew_page(text: str, new_sections: Mapping[str, str], order: Sequence[str]) -> str:
    """The page with these sections put in; the others stay as they are."""
    head, sections_by_name = sections(text)
    sections_by_name |= new_sections
    names = [
        *(name for name in order if name in sections_by_name),
        *(name for name in sections_by_name if name not in order),
    ]
    return "\n".join([head, *(f"{_SECTION}{name}\n\n{sections_by_name[name]}" for name in names)]) + "\n"


def lacking(results: Sequence[Result]) -> str:
    """The title of the first result that was not measured for want of its input; empty = all were."""
    return next((result.title for result in results if not result.figures), "")


def section(name: str, results: Sequence[Result], today: datetime) -> str:
    """The command, the date and the commit, then a table for each result."""
    inputs = "".join(f"{variable}=DIR " for variable in INPUTS if os.environ.get(variable))
    heading = f"`{inputs}python -m tests.bench {name}`, {today:%Y-%m-%d}, commit {commit()}."
    return "\n\n".join([heading, *(_tables(result) for result in results)])


def commit() -> str:
    """The commit of the tree, and whether it was changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
        ).stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", "gpuops", "tests", f":!{FILE.relative_to(ROOT)}"
    )
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def _tables(result: Result) -> str:
    lines = [f"### {result.title}", ""]
    if result.rounds:
        lines += ["| Contender | CPU s | Wall s | Peak MiB |", "|---|---|---|---|"]
        lines += [
            f"| {contender} | {median(u.cpu_s for u in usages):.3f} | {median(u.wall_s for u in usages):.3f} "
            f"| {median(u.peak_mib for u in usages):.0f} |"
            for contender, usages in result.rounds.items()
        ]
        lines.append("")
    lines += ["| Figure | Measured | Budget |", "|---|---|---|"]
    for figure in result.figures:
        budget = "" if figure.budget is None else f"{figure.budget:.3g} {figure.unit}"
        missed = ", missed" if figure.broken else ""
        lines.append(f"| {figure.what} | {figure.value:.3g} {figure.unit} | {budget}{missed} |")
    return "\n".join(lines)
