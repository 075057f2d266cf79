"""The moment, zone and locale of a run: drawn from its seed alone, and the same in the processes that tests start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpuops.clock import machine_time, wall_clock
from tests.surroundings.draw import AWKWARD, drawn, locales_here
from tests.surroundings.plugin import HERE

LOCALES = ("C", "tr_TR.utf8")


@pytest.mark.long
def test_a_seed_draws_the_same_again() -> None:
    assert drawn(4711, LOCALES) == drawn(4711, LOCALES)
    assert len({(drawn(seed, LOCALES).moment, drawn(seed, LOCALES).zone) for seed in range(200)}) > 50


def test_every_awkward_moment_and_every_locale_is_drawn() -> None:
    all_drawn = [drawn(seed, LOCALES) for seed in range(300)]
    moments = {
        (f"{surroundings.moment.astimezone(ZoneInfo(surroundings.zone)):%Y-%m-%d %H:%M:%S}", surroundings.zone)
        for surroundings in all_drawn
    }
    assert moments >= set(AWKWARD)
    assert {surroundings.locale for surroundings in all_drawn} == set(LOCALES)


def test_a_test_begins_at_the_drawn_moment_in_the_drawn_zone(request: pytest.FixtureRequest) -> None:
    surroundings = request.config.stash[HERE]
    now = wall_clock()
    assert timedelta() <= now - surroundings.moment < timedelta(minutes=2)
    assert os.environ["TZ"] == surroundings.zone
    utc_offset = now.astimezone(ZoneInfo(surroundings.zone)).utcoffset()
    assert timedelta(seconds=time.localtime(now.timestamp()).tm_gmtoff) == utc_offset


def test_a_child_process_has_the_time_of_its_test() -> None:
    program = "from gpuops.clock import wall_clock; print(wall_clock().isoformat())"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True
    ).stdout.strip()
    assert abs(datetime.fromisoformat(output) - wall_clock()) < timedelta(seconds=30)


def test_what_the_machine_shows_is_not_moved() -> None:
    """Certificates are judged, and files are stamped, by the machine itself."""
    assert abs(machine_time() - datetime.fromtimestamp(time.time(), UTC)) < timedelta(seconds=5)


DRAWING = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_draws(number):
    print("drawn", number)
"""


@pytest.mark.long
@pytest.mark.parametrize("variables", [{"SURROUNDINGS_SEED": "4711"}, {}], ids=["variable", "option"])
def test_a_seed_draws_moment_and_examples_again(tmp_path: Path, variables: dict[str, str]) -> None:
    (tmp_path / "test_drawing.py").write_text(DRAWING, encoding="utf-8")
    root = Path(__file__).parents[2]
    options = [] if variables else ["--surroundings", "4711"]
    command = [sys.executable, "-m", "pytest", "-rP", "-p", "tests.surroundings.plugin", "-p", "no:cacheprovider"]
    runs = {
        tuple(line for line in output.splitlines() if line.startswith(("surroundings: ", "drawn ")))
        for output in (
            subprocess.run(
                [*command, *options, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
                cwd=root, env=os.environ | variables, capture_output=True, encoding="utf-8", check=True,
            ).stdout
            for _ in range(2)
        )
    }  # fmt: skip
    [lines] = runs
    assert lines[0] == f"surroundings: {drawn(4711, locales_here())}"
    assert len(lines) > 50
