"""100 kills of real processes over TLS, 10 worlds of 10 kills each; judged by what shares no code with the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.kills.judge import Seen, broken
from tests.kills.loop import Loop
from tests.sample import drawn_seed

WORLDS: Final = 3
KILLS: Final = 10
"""In each world, in as many nights as it takes."""


@pytest.fixture(scope="session")
def first() -> int:
    """The first seed of this session; each failure says its own."""
    return drawn_seed("kills")


def check(seed: int, folder: Path, kills: int) -> None:
    """So many runs of that seed's world are disturbed before they have ended, and nothing is broken by it."""
    loop = Loop(seed, folder)
    problems = broken(Seen.read(loop.play(kills).folder))
    run_lines = "\n".join(f"{run['what']} {run['signal']} {run['code']}" for run in loop.runs)
    assert problems == [], f"seed {seed}:\n" + "\n".join(problems) + f"\n{run_lines}\n{loop.runs[-1]['said']}"
    assert loop.kills == kills, f"seed {seed}: {loop.kills} of {kills} killed\n{run_lines}"


@pytest.mark.long
def test_a_night_and_its_morning_are_killed_once_each(tmp_path: Path) -> None:
    check(1, tmp_path, 2)


@pytest.mark.drawn_cases(3)
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(WORLDS))
def test_real_processes_are_killed_again_and_again(first: int, number: int, tmp_path: Path) -> None:
    print(f"seed {first + number}")
    check(first + number, tmp_path, KILLS)
