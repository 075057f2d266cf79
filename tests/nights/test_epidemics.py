"""Epidemics: each befalls its share of nights, and takes effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.nights.checkers import violations
from tests.nights.doings import SUSPEND, effects
from tests.nights.epidemics import ONE_IN, REVERTED, epidemics_of
from tests.nights.night import Played, play
from tests.nights.worlds import site_of

SEEDS = range(0, 3000, 2)


def seeds_with(fault: str) -> list[int]:
    return [seed for seed in SEEDS if any(each.fault == fault for each in epidemics_of(seed, ["desktop-001"], []))]


def nights_with(fault: str, number: int) -> Iterator[Played]:
    """The first nights of it in worlds that have room for it."""
    seeds = (seed for seed in seeds_with(fault) if site_of(seed).size.desktops >= 8)
    return (play(seed) for seed, _ in zip(seeds, range(number), strict=False))


@pytest.mark.parametrize("fault", ["V11"])
def test_it_befalls_its_share_of_nights(fault: str) -> None:
    assert len(SEEDS) / ONE_IN / 2 < len(seeds_with(fault)) < len(SEEDS) / ONE_IN * 2


def test_snapshots_are_reverted_also_of_desktops_that_are_away() -> None:
    kinds, powers = Counter[str](), Counter[tuple[str, str]]()
    for night in nights_with("V11", 16):
        assert violations(night) == []
        kinds.update(rule.happening for event in night.events if event.fault == "V11" for rule in event.rules)
        taken = {entry.moid for entry in effects(night, SUSPEND)}
        for entry in night.world.ledger:
            if entry.method == "RevertToSnapshot_Task" and entry.moid in taken and "power" in entry.after:
                powers[entry.before["power"], entry.after["power"]] += 1
    assert set(kinds) == set(REVERTED)
    assert powers["suspended", "poweredOff"]
    assert powers["suspended", "poweredOn"]
