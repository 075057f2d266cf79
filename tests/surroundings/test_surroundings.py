"""The moment, zone and locale of a run: drawn from its seed alone, and the same in the processes that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gpuops.clock import machine_time, wall_clock
from tests.surroundings.draw import AWKWARD, drawn
from tests.surroundings.plugin import HERE

LOCALES = ("C", "tr_TR.utf8")


def test_a_seed_draws_the_same_again() -> None:
    assert drawn(4711, LOCALES) == drawn(4711, LOCALES)
    assert len({(drawn(seed, LOCALES).moment, drawn(seed, LOCALES).zone) for seed in range(200)}) > 50


def test_every_awkward_moment_and_every_locale_is_drawn() -> None:
    found = [drawn(seed, LOCALES) for seed in range(300)]
    said = {(f"{each.moment.astimezone(ZoneInfo(each.zone)):%Y-%m-%d %H:%M:%S}", each.zone) for each in found}
    assert said >= set(AWKWARD)
    assert {each.locale for each in found} == set(LOCALES)


def test_a_test_begins_at_the_drawn_moment_in_the_drawn_zone(request: pytest.FixtureRequest) -> None:
    here = request.config.stash[HERE]
    now = wall_clock()
    assert timedelta() <= now - here.moment < timedelta(minutes=2)
    assert os.environ["TZ"] == here.zone
    there = now.astimezone(ZoneInfo(here.zone)).utcoffset()
    assert timedelta(seconds=time.localtime(now.timestamp()).tm_gmtoff) == there


def test_a_child_process_has_the_time_of_its_test() -> None:
    program = "from gpuops.clock import wall_clock; print(wall_clock().isoformat())"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True
    ).stdout.strip()
    assert abs(datetime.fromisoformat(told) - wall_clock()) < timedelta(seconds=30)


def test_what_the_machine_shows_is_not_moved() -> None:
    """Certificates are judged, and files are stamped, by the machine itself."""
    assert abs(machine_time() - datetime.fromtimestamp(time.time(), UTC)) < timedelta(seconds=5)
