"""A process that hangs: cron's returns are refused until it is their time to end it, and it may go on by itself."""

from __future__ import annotations

from datetime import timedelta
from functools import cache

import pytest

from gpuops.execute.runs import RunKind
from gpuops.plan.rotation.returns.return_time import HANGS_AFTER
from tests.nights.faults.cron import CRON
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import HANGS, schedule_of
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import SUSPEND, effects
from tests.nights.measuring.test_coverage import SEED
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import Played

HOUR_S = 3600.0
SEEDS = range(0, 2000, 2)


@cache
def hung(half: RunKind, for_s: float, point: int = 12) -> Played:
    return Nightly(SEED, [Event(HANGS, target=half, point=point, at_s=for_s)]).play()


@pytest.mark.long
def test_one_night_in_twenty_has_one() -> None:
    hanging_seeds = [
        seed for seed in SEEDS if any(event.fault == HANGS for event in schedule_of(seed, ["d"], ["m"], ["h"]))
    ]
    assert len(SEEDS) / 40 < len(hanging_seeds) < len(SEEDS) / 10


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("half", [RunKind.NIGHT, RunKind.DAY])
@pytest.mark.parametrize("hours", [1, 4, 9, 12])
def test_nothing_is_lost_by_it(half: RunKind, hours: int) -> None:
    night = hung(half, hours * HOUR_S)
    assert night.struck[HANGS] == 1
    assert violations(night) == []


@pytest.mark.long
def test_a_night_that_goes_on_takes_what_it_had_planned() -> None:
    night = hung(RunKind.NIGHT, HOUR_S)
    ((since, at),) = night.stood
    assert at - since == timedelta(hours=1)
    assert [entry for entry in effects(night, SUSPEND) if entry.at >= at]
    assert not night.ended


def test_a_night_that_hangs_is_ended_by_the_return_when_that_must_begin() -> None:
    night = hung(RunKind.NIGHT, 12 * HOUR_S)
    assert night.ended == 1
    ends = [ended for name, ended, _ in night.calls if name in (RunKind.NIGHT, RunKind.DAY)]
    refused = [ended for ended in ends if ended.startswith("Locked: pid ")]
    assert ends[: len(refused)] == refused, "until then it is left alone"
    assert "killed" in ends


@pytest.mark.long
def test_a_return_that_hangs_is_ended_by_the_next_ones() -> None:
    night = hung(RunKind.DAY, 2 * HOUR_S, point=4)
    assert night.ended == 1
    days = [(ended, at) for name, ended, at in night.calls if name == RunKind.DAY]
    locked = [at for ended, at in days if ended.startswith("Locked")]
    assert locked, "the first one leaves it its time"
    done_at = next(at for ended, at in days if ended == "done")
    assert done_at - locked[0] < HANGS_AFTER + 2 * CRON
