"""What `gpuops runner status` says of runners that live and of those that do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gpuops.extras.fleet.cli import RunnerStatusDocument, runner_text
from gpuops.model.nights.runners import QueueStatus, RunnerSeen
from gpuops.report.document import as_values
from gpuops.report.layout import plain

NOW = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
LIVING = RunnerSeen(3, NOW - timedelta(seconds=2))
DEAD = RunnerSeen(2, NOW - timedelta(seconds=40), lives=False)


def lines(*runners: RunnerSeen) -> list[str]:
    return plain(runner_text(QueueStatus(runners, ()), NOW)).splitlines()


def test_a_dead_runner_is_silent() -> None:
    assert lines(DEAD, LIVING)[:2] == ["runner 2: silent for 40 s", "runner 3: alive 2 s ago"]


def test_no_runner_lives_where_all_are_silent() -> None:
    assert lines(DEAD)[:2] == ["no runner lives: gpuops runner run starts one", "runner 2: silent for 40 s"]


def test_the_document_tells_which_live() -> None:
    runners = as_values(RunnerStatusDocument.made_of(QueueStatus((DEAD, LIVING), ())))["runners"]
    assert runners == [
        {"number": 2, "alive": "2026-11-02T21:59:20+00:00", "lives": False},
        {"number": 3, "alive": "2026-11-02T21:59:58+00:00", "lives": True},
    ]
