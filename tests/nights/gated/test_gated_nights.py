"""Gated nights: no desktop is taken from a user whom the broker knows, and no desktop stays gated, whatever fails."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.nights.gated.checkers import cuts, violations
from tests.nights.gated.night import GatedNight, GatedPlayed, play
from tests.nights.gated.pod import ADMIN, Stay
from tests.nights.gated.schedule import KINDS, ROW, Trouble
from tests.nights.gated.tally import BEGIN, END, LEAST_HARVEST, harvest_of, play_ungated, section, tally
from tests.nights.measuring.coverage import FILE
from tests.nights.playing.played import digest
from tests.sample import every_nth, mostly_long


@pytest.mark.parametrize("nth", mostly_long([2, 1], [2]))
def test_no_gated_night_breaks_an_invariant(nth: int) -> None:
    tally_of_nights = tally(every_nth(range(32), nth), jobs=1)
    assert tally_of_nights.violations == []
    assert tally_of_nights.suspends * nth > 30, "these nights did something"


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_gated_nights_break_no_invariant_and_keep_the_harvest() -> None:
    """Every kind of trouble strikes in them."""
    tally_of_nights = tally(range(200), jobs=1)
    assert tally_of_nights.violations == []
    assert (tally_of_nights.seen, tally_of_nights.harvest >= LEAST_HARVEST) == (0, True)
    assert {kind for kind in KINDS if not tally_of_nights.struck[kind]} == set()
    assert tally_of_nights.between > 0


@pytest.mark.long
def test_a_seed_tells_the_same_gated_night_again() -> None:
    assert digest(play(9).night) == digest(play(9).night)


def test_what_strikes_has_a_row_in_the_catalogue() -> None:
    assert {ROW[kind] for kind in KINDS} == {"H1", "H2", "H3", "H4", "H5", "H6"}


@pytest.mark.long
def test_a_calm_night_gets_nearly_what_who_knows_all_sessions_gets() -> None:
    calm = harvest_of(play(16))
    assert calm.possible > 0
    assert calm.hours >= LEAST_HARVEST * calm.possible


@pytest.mark.long
def test_without_a_gate_sessions_are_cut() -> None:
    """What the gate is for: else nothing is shown by nights in which none is."""
    assert sum(len(cuts(play_ungated(seed))) for seed in range(0, 160, 8)) > 0


@pytest.mark.long
def test_the_results_have_a_part_made_by_the_command_of_today() -> None:
    stored_lines = FILE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
    fresh_lines = section(tally(range(0), jobs=1)).splitlines()
    heads = [
        line.partition(" | ")[0] for line in fresh_lines if line.startswith("| ") and not line.startswith("| harvest")
    ]
    assert stored_lines and [head for head in heads if not any(line.startswith(head) for line in stored_lines)] == []


@pytest.mark.long
def test_the_checkers_see_what_they_are_for() -> None:
    """A night that went well, told otherwise."""
    gated = _that_suspends()
    assert violations(gated) == []
    moid, suspended_at, looked_at, _ = gated.suspends[0]
    assert looked_at is not None
    gated.pod.stays.append(Stay(moid, looked_at - timedelta(minutes=1), looked_at - timedelta(minutes=1), by_rdp=False))
    assert [violation[:3] for violation in violations(gated)] == ["GA:"]
    gated.pod.stays[-1] = Stay(moid, suspended_at, suspended_at, by_rdp=False)
    assert [violation[:3] for violation in violations(gated)] == ["GB:"]
    gated.pod.stays.pop()
    gated.gated_at_end = frozenset({moid})
    assert [violation[:3] for violation in violations(gated)] == ["GC:"]
    gated.pod.owners[moid] = ADMIN
    assert violations(gated) == []
    gated.pod.changes.clear()
    assert {violation[:3] for violation in violations(gated)} == {"GD:"}
    gated.spun = "300 rounds"
    assert violations(gated) == ["GE: 300 rounds"]


def _that_suspends() -> GatedPlayed:
    return next(played for seed in range(16, 200, 8) if (played := play(seed)).suspends)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        pytest.param(738, ("late close", "stale lists"), id="an earlier close comes when the gate was opened again"),
        pytest.param(153, ("stale lists", "partial machines"), id="a list lacks a machine that is gated"),
        pytest.param(363, ("refused",), id="what the broker refuses is not called vCenter's"),
    ],
)
def test_nights_that_found_a_fault_do_not_find_it_again(seed: int, kinds: tuple[str, ...]) -> None:
    night = GatedNight(seed)
    assert violations(night.play_gated()) == []


@pytest.mark.long
def test_a_broker_that_is_away_from_the_first_gate_on_takes_nothing_and_ends() -> None:
    """The queue went round and round until the broker's minute was over."""
    outages = [Trouble("away", at_s=at_s, for_s=600) for at_s in (2, 3, 4, 5, 6, 8, 10)]
    for trouble in outages:
        gated = GatedNight(16, (trouble,), ()).play_gated()
        assert violations(gated) == []
