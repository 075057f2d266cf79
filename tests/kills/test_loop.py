"""100 kills of real processes over TLS, 10 worlds of 10 kills each; judged by what shares no code with the engine.

A night that was killed is finished and brought back by a gpuops with other names in Python, and the reverse.

The trial of issue 43: with `SuspendVm` renamed, an open night ended in a damaged journal, and its desktops stayed away.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, get_args

import pytest

from gpuops.execute.journal import FILE_NAME
from gpuops.execute.journal.record import Recorded
from gpuops.model.stored import stored_name
from tests.kills.judge import Seen, broken
from tests.kills.loop import RUN_S, Files, Loop
from tests.renamed import renamed_copy
from tests.sample import drawn_seed
from tests.waiting import wait_until

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


@dataclass(slots=True)
class LoopOfTwo(Loop):
    """One night and its morning, played by two packages; None = the one that is tested."""

    evening: Path | None = None
    morning: Path | None = None

    def _night(self, kills: int, dice: Random, files: Files) -> None:
        self.other = self.evening
        self._rotate("night", files, dice)
        self.other = self.morning
        self._rotate("resume", files)
        self._rotate("day", files)
        self._note_morning()

    def _disturb(self, process: subprocess.Popen[str], dice: Random) -> str:
        """Kill the night as soon as a step is under way, before its end is seen."""

        def a_step_is_under_way() -> bool:
            kinds = [kind for kind, _ in records_in(self.folder / "state")]
            return kinds.count("intent") > kinds.count("settled")

        wait_until(a_step_is_under_way, RUN_S, process=process, every_s=0.01)
        process.kill()
        self.kills += 1
        return "SIGKILL"


def records_in(state_dir: Path) -> list[tuple[str, dict[str, Any]]]:
    """Kind and body of each record of the journal; none before it is made."""
    if not (state_dir / FILE_NAME).exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{state_dir / FILE_NAME}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT kind, body FROM journal ORDER BY seq").fetchall()
    except sqlite3.OperationalError:  # its tables are being made
        return []
    return [(kind, json.loads(body)) for kind, body in rows]


@pytest.mark.long
@pytest.mark.parametrize("renamed", ["evening", "morning"])
def test_a_killed_night_is_finished_and_brought_back_by_the_other_gpuops(renamed: str, tmp_path: Path) -> None:
    package = renamed_copy(tmp_path / "renamed")
    evening, morning = (package, None) if renamed == "evening" else (None, package)
    loop = LoopOfTwo(1, tmp_path, evening=evening, morning=morning)
    problems = broken(Seen.read(loop.play(1).folder))
    assert [(run["what"], run["code"]) for run in loop.runs] == [("night", -9), ("resume", 0), ("day", 0)], loop.runs
    assert problems == []
    steps = {name for _, body in records_in(tmp_path / "state") for name in body.get("step", ())}
    assert {"SuspendVm", "ResumeVm"} <= steps <= {stored_name(kind) for kind in get_args(Recorded)}
