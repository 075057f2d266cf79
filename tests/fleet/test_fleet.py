"""Real runners on a real PostgreSQL lose no desktop, whatever befalls them, PostgreSQL or a vCenter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.execute.journal.postgres import Server
from tests.fleet.chaos import Event, Story, Trouble, drawn, whole
from tests.fleet.check import violations
from tests.fleet.play import Played, play
from tests.fleet.world import Size
from tests.sample import drawn_seed

SMALL = Size(hosts=20, desktops=50, ml_vms=20, memory_gib=1, in_flight=8)
BY_SEED = 3
BESIDE_OTHERS_S = 90.0
"""Within which a turn is taken over here: other tests have the same cores, and the start of each process takes as much
longer. `make fleet` holds it to 30 s."""


def play_story(story: Story, folder: Path, server: Server) -> Played:
    story_played = play(story, folder, server)
    print(story.name, *story_played.done, f"taken over after {story_played.seen.taken_over_s}", sep="\n")
    print(story_played.seen.said)
    assert violations(story_played.seen, BESIDE_OTHERS_S) == []
    return story_played


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_four_vcenters_three_runners_and_every_trouble(tmp_path: Path, postgresql: Server) -> None:
    """200 desktops on 80 hosts. One runner is killed, one stands still, PostgreSQL restarts, a vCenter is away beyond
    the closing of the window."""
    story = whole(SMALL, vcenters=4, night_s=130)
    story_played = play_story(story, tmp_path, postgresql)
    assert story_played.suspended > len(story_played.seen.sites), "nights were under way"
    assert story_played.seen.taken_over_s, "a runner that died or stood still had a turn"


@pytest.mark.drawn_cases(3)
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("number", range(BY_SEED))
def test_small_nights_by_seed(number: int, tmp_path: Path, postgresql: Server) -> None:
    seed = drawn_seed(f"small night {number}")
    print(f"python -m tests.fleet runs --seeds {seed}:{seed + 1}")
    play_story(drawn(seed), tmp_path, postgresql)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_runner_that_stood_still_sends_nothing_more(tmp_path: Path, postgresql: Server) -> None:
    """It wakes while the one that took its turn over is still at it; the night is long enough for both."""
    size = replace(SMALL, hosts=4, desktops=24, ml_vms=4, in_flight=2)
    story = Story("stands still", (size,), 2, 60, (Event(Trouble.STOP, 1, for_s=12),), quick=True, limit_s=100)
    story_played = play_story(story, tmp_path, postgresql)
    runs = {record["run"] for record in story_played.seen.sites[0].journal if record["kind"] == "begun"}
    assert len(runs) > 1
