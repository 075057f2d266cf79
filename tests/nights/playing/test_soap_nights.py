"""The same seeded nights by our own client against the simulator's SOAP: nothing is lost there either.

Whatever befalls them, neither a report nor the journal ever holds the password.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from statistics import median

import pytest

from tests.canary import require_hidden
from tests.nights.judging.checkers import DEFINE, violations
from tests.nights.playing.night import play
from tests.nights.playing.played import Played
from tests.nights.playing.soap import SoapNightly, play_over_soap
from tests.sample import every_nth


def broken(seed: int, night: Played) -> list[str]:
    """What a night breaks."""
    problems = [f"seed {seed}: {violation}" for violation in violations(night)]
    for part, content in (
        ("a report", night.told),
        ("the journal", night.kept),
        ("the ledger", list(night.world.ledger)),
    ):
        require_hidden(f"seed {seed}: {part}", repr(content))
    return problems


def play_and_judge(seed: int) -> tuple[list[str], int]:
    """What a night breaks, and how many effects it had."""
    night = play_over_soap(seed)
    return broken(seed, night), sum(1 for change in night.world.ledger if change.operation_id)


def effects_in_order(night: Played) -> list[tuple[str, str]]:
    """What was done to whom, in order; without a wire the marker's definition is no call of its own."""
    return [
        (change.method, change.name) for change in night.world.ledger if change.operation_id and change.method != DEFINE
    ]


@pytest.mark.long
def test_a_few_nights_by_our_own_client() -> None:
    nights_told = [play_and_judge(71), play_and_judge(74)]
    assert [problem for broken, _ in nights_told for problem in broken] == []
    assert sum(effects for _, effects in nights_told) > 30


def same_effects(seed: int) -> None:
    direct, soap = play(seed, ()), SoapNightly(seed, ()).play()
    assert effects_in_order(direct) == effects_in_order(soap) != []
    assert broken(seed, soap) == []


@pytest.mark.long
def test_a_quiet_night_has_the_same_effects_without_soap_and_over_it() -> None:
    same_effects(76)


@pytest.mark.long
def test_quiet_nights_have_the_same_effects_without_soap_and_over_it() -> None:
    for seed in (7, 14, 18, 106, 130, 162, 184, 258):
        same_effects(seed)


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nights_by_our_own_client() -> None:
    """A tenth of two hundred and ten a run; of the ten tenths the calmest has 13 effects in the median."""
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        nights_told = list(pool.map(play_and_judge, every_nth(range(10_000, 10_210), 10)))
    print(f"{len(nights_told)} nights, {median(effects for _, effects in nights_told)} effects in the median")
    assert [problem for broken, _ in nights_told for problem in broken] == []
    assert len(nights_told) == 21
    assert median(effects for _, effects in nights_told) >= 10
