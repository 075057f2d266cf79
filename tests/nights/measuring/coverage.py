"""Coverage: how many nights reached each fault in each state: a stage of the engine, or the whereabouts of a VM.

Nights that draw their trouble blindly reach common pairs thousands of times and rare ones never. Here each night is
given events that are aimed (`aiming.py`): each strikes when its state is there. What is missing most is aimed at most,
round after round, until each pair that can be aimed at has its number. What the ordinary nights of a CI run reach
counts too. What a fault cannot reach stands in `IMPOSSIBLE` with the reason. `make results` writes what it comes to
into RESULTS.md; the mutants' part there is made by its own tool.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from gpuops.plan.rotation.taken_vms import Whereabouts
from tests.nights.faults.schedule import ALL
from tests.nights.judging.checkers import violations
from tests.nights.measuring.aiming import BY_CHANCE, IMPOSSIBLE, Pair, aimed_night, aims
from tests.nights.measuring.stages import STAGES
from tests.nights.measuring.tally import Tally, rarely_swept

OFTEN: Final = 30
"""So many nights of `make results` reach each pair that can be reached."""
ORDINARY: Final = range(10_000, 14_000)
"""Seeds of the nights that draw their trouble."""
MOST: Final = 6000
"""Nights that are aimed, at most: it ends when no pair is missing that can be aimed at."""
PART: Final = 8
"""A CI run plays one in so many of these nights, and asks for so many times fewer of each pair."""
SHORT: Final = 10
"""Pairs that may be short of it after all of these; RESULTS.md names them."""
ROUND: Final = 100
"""Nights after which it is counted anew what is missing."""
CHUNK: Final = 5

STATES: Final = (*STAGES, *(whereabouts.value for whereabouts in Whereabouts))


def faults() -> tuple[str, ...]:
    """Every fault that nights know of; a new one is covered from then on."""
    return tuple(dict.fromkeys(ALL))


@cache
def impossible() -> Mapping[Pair, str]:
    """The pairs that cannot be reached, each with the reason."""
    known_faults = faults()
    return {
        (fault, state): reason
        for struck, states, reason in IMPOSSIBLE
        for fault in (known_faults if "*" in struck else struck)
        for state in states
        if fault in known_faults
    }


@dataclass
class Coverage:
    """What many nights reached."""

    nights: int = 0
    """That were aimed."""
    ordinary: int = 0
    """That drew their trouble."""
    reached: Counter[Pair] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    """Invariants that did not hold, each with its night."""
    often: int = OFTEN
    """So many nights of each pair are asked for."""

    def rare(self) -> list[Pair]:
        """The pairs that can be reached, and were not often enough, rarest first."""
        out = impossible()
        pairs = ((fault, state) for fault in faults() for state in STATES if (fault, state) not in out)
        return sorted((pair for pair in pairs if self.reached[pair] < self.often), key=lambda pair: self.reached[pair])

    def surprising(self) -> list[Pair]:
        """The pairs that are called impossible, and were reached."""
        return [pair for pair in impossible() if self.reached[pair]]


def of_ordinary(tally_of_nights: Tally, often: int = OFTEN) -> Coverage:
    """What nights that draw their trouble reached, to go on from."""
    return Coverage(
        0, tally_of_nights.nights, Counter(tally_of_nights.reached), list(tally_of_nights.violations), often
    )


def cover(most: int, *, jobs: int, first: int = 0, before: Coverage | None = None) -> Coverage:
    """At most so many aimed nights, of seeds from `first` on, until each pair was reached often enough; `before`: what
    others reached already."""
    coverage = before or Coverage()
    missing = _to_aim_at(coverage)
    with ProcessPoolExecutor(jobs) as pool:
        while missing and coverage.nights < most:
            count = min(ROUND, most - coverage.nights)
            aimed = list(aims(missing, count, first + coverage.nights))
            for reached, broken in pool.map(_nights, [aimed[at : at + CHUNK] for at in range(0, len(aimed), CHUNK)]):
                for pairs in reached:
                    coverage.reached.update(pairs)
                coverage.broken += broken
            coverage.nights += count
            missing = _to_aim_at(coverage)
    return coverage


def _to_aim_at(coverage: Coverage) -> dict[Pair, int]:
    """How many nights each pair is missing that can be aimed at."""
    return {pair: coverage.often - coverage.reached[pair] for pair in coverage.rare() if pair not in BY_CHANCE}


def _nights(aimed: Sequence[tuple[int, tuple[Pair, ...]]]) -> tuple[list[frozenset[Pair]], list[str]]:
    reached, broken = [], []
    with rarely_swept():
        for seed, pairs in aimed:
            replay_command = (
                f"(python -m tests.nights replay {seed} --aims {','.join('/'.join(pair) for pair in pairs)!r})"
            )
            try:
                played = aimed_night(seed, pairs).play()
                broken += [f"{violation} {replay_command}" for violation in dict.fromkeys(violations(played))]
                reached.append(played.reached)
            except Exception as crash:  # of the engine: it is reported, and other nights go on
                broken.append(f"{type(crash).__name__}: {crash} {replay_command}")
            gc.collect()
    return reached, broken


FILE: Final = Path(__file__).parents[1] / "RESULTS.md"
COMMAND: Final = "python -m tests.nights results"
BEGIN: Final = f"<!-- coverage: made by `{COMMAND}` -->"
END: Final = "<!-- coverage: end -->"
_SHORT: Final = """Too seldom: each of these can be. The nights ended before they had aimed at it often enough: its
state is there once or twice in a night, and another fault often keeps the night from it."""


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


def put_section(section: str) -> None:
    """Replace the section of RESULTS.md that has the same first and last line; the rest of the file stays."""
    begin, *_, end = section.splitlines()
    head, _, text_after = FILE.read_text(encoding="utf-8").partition(begin)
    FILE.write_text(f"{head}{section}{text_after.partition(end)[2]}", encoding="utf-8")


def _pairs() -> list[tuple[str, str]]:
    return [(fault, state) for fault in faults() for state in STATES]
