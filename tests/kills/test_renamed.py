"""A night that was killed is finished and brought back by a gpuops with other names in Python, and the reverse.

The trial of issue 43: with `SuspendVm` renamed, an open night ended in a damaged journal, and its desktops stayed away.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from gpuops.execute.journal import FILE_NAME
from gpuops.execute.journal.record import Recorded
from gpuops.model.stored import stored_name
from tests.kills.judge import Seen, broken
from tests.kills.loop import RUN_S, Loop
from tests.kills.world import Files
from tests.renamed import renamed_copy


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
        until = time.monotonic() + RUN_S
        while process.poll() is None and time.monotonic() < until:
            kinds = [kind for kind, _ in records_in(self.folder / "state")]
            if kinds.count("intent") > kinds.count("settled"):
                process.kill()
                self.kills += 1
                return "SIGKILL"
            time.sleep(0.01)
        return ""


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
