"""Results: what `coverage` came to, as the part of RESULTS.md that it makes; the mutants' part is made by its own tool.

`make results` makes both.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from tests.nights.measuring.coverage import STATES, Coverage, faults, impossible

FILE: Final = Path(__file__).parents[1] / "RESULTS.md"
COMMAND: Final = "python -m tests.nights results"
BEGIN: Final = f"<!-- coverage: made by `{COMMAND}` -->"
END: Final = "<!-- coverage: end -->"
HEAD: Final = """# What the nights come to

`make results` makes this file: what the nights reach, and which mutants of the engine they kill."""
_SHORT: Final = """Too seldom: each of these can be. The nights ended before they had aimed at it often enough: its
state is there once or twice in a night, and another fault often keeps the night from it."""
_NO_MUTANTS: Final = """<!-- mutants: made by `make mutants` -->
## Mutants judged by nights alone

Not judged yet: `make mutants` makes this part.
<!-- mutants: end -->"""


def table(coverage: Coverage) -> str:
    """The pairs in Markdown: a line a fault, a column a state."""
    out = impossible()
    cells = {pair: "-" if pair in out else str(coverage.reached[pair]) for pair in _pairs()}
    return "\n".join(
        [
            f"| Fault | {' | '.join(STATES)} |",
            f"|---|{'---|' * len(STATES)}",
            *(f"| {fault} | {' | '.join(cells[fault, state] for state in STATES)} |" for fault in faults()),
        ]
    )


def section(coverage: Coverage) -> str:
    """The part of RESULTS.md that is of coverage."""
    rare: dict[str, list[str]] = {}
    for fault, state in coverage.rare():
        rare.setdefault(fault, []).append(f"{state} {coverage.reached[fault, state]}")
    few = sum(len(states) for states in rare.values())
    reasons = Counter(impossible().values())
    possible = len(_pairs()) - reasons.total()
    return "\n".join(
        [
            BEGIN,
            "## What the nights reach",
            "",
            f"Made by `{COMMAND} --ordinary {coverage.ordinary} --nights {coverage.nights}`:",
            f"in how many of {coverage.ordinary} nights that draw their trouble and {coverage.nights} that are aimed",
            "each fault took effect in each state. A state is a stage of the engine (a call to vCenter, the submit of",
            "one kind of step, the append of one kind of record) or the whereabouts of a VM that the fault struck.",
            "`-` cannot be.",
            "",
            f"{possible - few} of {possible} pairs were reached {coverage.often} times or more.",
            "",
            table(coverage),
            "",
            *([_SHORT, "", *(f"- {fault}: {', '.join(rare[fault])}" for fault in rare), ""] if rare else []),
            "Pairs that cannot be:",
            "",
            *(f"- {count}: {reason}" for reason, count in reasons.items()),
            END,
        ]
    )


def write(coverage: Coverage) -> None:
    """Puts the part into its place; the rest of the file stays."""
    before = FILE.read_text(encoding="utf-8") if FILE.is_file() else f"{HEAD}\n\n{BEGIN}\n{END}\n\n{_NO_MUTANTS}\n"
    if BEGIN not in before:
        before = f"{HEAD}\n\n{BEGIN}\n{END}\n\n{before.partition(chr(10))[2].strip()}\n"
    head, _, text_after = before.partition(BEGIN)
    FILE.write_text(f"{head}{section(coverage)}{text_after.partition(END)[2]}", encoding="utf-8")


def _pairs() -> list[tuple[str, str]]:
    return [(fault, state) for fault in faults() for state in STATES]
