"""In each situation nothing breaks that must hold of every night; and each does happen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuops.execute.steps.step_executor import SLICE_S
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import START, SUSPEND, effects, is_ours
from tests.nights.playing.filed import damaged_violations
from tests.nights.situations.situations import SITUATIONS
from tests.sample import every_nth

FIRST = 7_100_000
FEW, MANY = 1, 60


def seeds(nights: int) -> Sequence[int]:
    return range(FIRST, FIRST + 2 * nights, 2)


def broken(situation: str, nights: Sequence[int]) -> list[str]:
    return [f"{seed}: {violation}" for seed in nights for violation in violations(SITUATIONS[situation](seed).play())]


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_night_holds_in_each_situation(situation: str) -> None:
    assert broken(situation, seeds(FEW)) == []


@pytest.mark.drawn_cases(3)
@pytest.mark.long
@pytest.mark.parametrize("situation", SITUATIONS)
def test_many_nights_hold_in_each_situation(situation: str) -> None:
    """A sixth of sixty nights a run."""
    assert broken(situation, every_nth(seeds(MANY), 6)) == []


@pytest.mark.long
def test_somebody_starts_ml_vms_whose_markers_stay() -> None:
    nights = (SITUATIONS["MarkersStay"](seed).play() for seed in range(FIRST, FIRST + 6, 2))
    assert any(entry.method == START and not is_ours(entry) for night in nights for entry in night.world.ledger)


@pytest.mark.long
def test_suspends_arrive_after_the_return_that_waits_for_them() -> None:
    night = SITUATIONS["Belated"](FIRST).play()
    [early, *_] = [length for report, length in night.told if type(report.request).__name__ == "RotateDay"]
    assert [entry for entry in effects(night, SUSPEND) if entry.sequence > early]


@pytest.mark.long
def test_a_suspend_that_is_queued_begins_soon_or_not_at_all() -> None:
    nights = [SITUATIONS["Queued"](seed).play() for seed in range(FIRST, FIRST + 8, 2)]
    tasks = [task for night in nights for task in night.world.tasks.history() if task.name == SUSPEND]
    own_tasks = [task for task in tasks if task.call.operation_id]
    waited_s = [(task.started_at - task.queued_at).total_seconds() for task in own_tasks if task.started_at is not None]
    assert any(task.cancelled for task in own_tasks)
    assert any(waited_s), "some were queued, and began"
    assert max(waited_s) <= 2 * SLICE_S


@pytest.mark.long
def test_who_is_worked_with_untold_is_left_and_others_are_taken() -> None:
    night = SITUATIONS["Untold"](FIRST).play()
    hidden = {rule.target for event in night.events for rule in event.rules}
    suspended_names = {entry.name for entry in effects(night, SUSPEND)}
    assert suspended_names
    assert not suspended_names & hidden


@pytest.mark.long
def test_a_journal_that_somebody_changed_is_told_and_keeps_nobody_away() -> None:
    assert [violation for seed in range(FIRST, FIRST + 10, 2) for violation in damaged_violations(seed)] == []


@pytest.mark.long
@pytest.mark.parametrize("situation", ["Calm", "SlowDisk", "Unmarked", "TakenOver"])
def test_a_full_site_is_emptied(situation: str) -> None:
    night = SITUATIONS[situation](FIRST).play()
    assert len(effects(night, SUSPEND)) >= 10, "each ML VM takes the place of two desktops"
