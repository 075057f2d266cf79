"""Epidemics: each befalls its share of nights, and takes effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from gpuops.execute.runs.run_kind import RunKind
from tests.nights.faults.epidemics import ONE_IN, REVERTED, epidemics_of, suspended_before
from tests.nights.faults.event import Event
from tests.nights.judging.checkers import violations
from tests.nights.judging.doings import SUSPEND, effects
from tests.nights.playing.night import Nightly, play
from tests.nights.playing.played import Played
from tests.nights.truths.reports import replaced_states
from tests.nights.world.worlds import site_of

SEEDS = range(0, 3000, 2)
SUSPENDED_BEFORE = [seed for seed in SEEDS if suspended_before(seed, ["desktop-001"])]


def seeds_with(fault: str) -> list[int]:
    return [seed for seed in SEEDS if any(event.fault == fault for event in epidemics_of(seed, ["desktop-001"], []))]


def nights_of(seeds: Iterable[int], number: int) -> Iterator[Played]:
    """The first of these nights in worlds that have room for what befalls them."""
    large = (seed for seed in seeds if site_of(seed).size.desktops >= 8)
    return (play(seed) for seed, _ in zip(large, range(number), strict=False))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["V11"])
def test_it_befalls_its_share_of_nights(fault: str) -> None:
    assert len(SEEDS) / ONE_IN / 2 < len(seeds_with(fault)) < len(SEEDS) / ONE_IN * 2


@pytest.mark.long
def test_snapshots_are_reverted_also_of_desktops_that_are_away() -> None:
    kinds, powers = Counter[str](), Counter[tuple[str, str]]()
    for night in nights_of((seed for seed in seeds_with("V11") if seed not in SUSPENDED_BEFORE), 16):
        assert violations(night) == []
        kinds.update(rule.happening for event in night.events if event.fault == "V11" for rule in event.rules)
        suspended_vms = {entry.moid for entry in effects(night, SUSPEND)}
        for change in night.world.ledger:
            if change.method == "RevertToSnapshot_Task" and change.moid in suspended_vms and "power" in change.after:
                powers[change.before["power"], change.after["power"]] += 1
    assert set(kinds) == set(REVERTED)
    assert powers["suspended", "poweredOff"]
    assert powers["suspended", "poweredOn"]


@pytest.mark.long
def test_desktops_that_are_away_are_reverted_to_another_suspended_state() -> None:
    replaced_count = 0
    for night in nights_of(SUSPENDED_BEFORE, 8):
        assert violations(night) == []
        replaced_count += len(list(replaced_states(night)))
    assert replaced_count > 5, "they come back in that state"


@pytest.mark.long
@pytest.mark.parametrize("point", range(6, 120, 16))
def test_a_return_that_is_killed_leaves_nobody_of_them_unnamed(point: int) -> None:
    seed = 594
    reverts = [event for event in play(seed).events if event.fault == "V11"]
    night = Nightly(seed, [*reverts, Event("K1", point=point, target=RunKind.DAY)]).play()
    assert violations(night) == []
    assert len(list(replaced_states(night))) > 3
