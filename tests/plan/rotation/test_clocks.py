"""How far two clocks are apart, when one of them is asked over a wire that takes its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.plan.rotation.clocks import ahead_by, apart

ASKED = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("told_s", "took_s", "ahead_s"),
    [(0, 0, 0), (30, 90, 0), (90, 90, 0), (100, 90, 10), (-5, 90, -5), (-5, -90, 0), (-100, -90, -10)],
)
def test_a_slow_answer_is_no_difference(told_s: int, took_s: int, ahead_s: int) -> None:
    told, answered = ASKED + timedelta(seconds=told_s), ASKED + timedelta(seconds=took_s)
    assert ahead_by(told, ASKED, answered) == timedelta(seconds=ahead_s)


def test_a_minute_is_nothing_and_more_is_named() -> None:
    assert apart(None) is None
    assert apart(timedelta(seconds=-60)) is None
    assert apart(timedelta(seconds=-61)) == (
        "vCenter's is 1 min 1 s behind this machine's: the hours of a night cannot be told"
    )
