"""Seeded nights by the engine itself, on the simulator's objects without a wire: no desktop is lost, whatever fails."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.nights.log import digest
from tests.nights.night import play
from tests.nights.schedule import ALL
from tests.nights.tally import tally


def test_no_night_breaks_an_invariant() -> None:
    found = tally(range(120), jobs=1)
    assert found.violations == []
    assert sum(found.effects) > 1000, "these nights did something"


def test_a_night_without_trouble_takes_and_returns() -> None:
    """The checkers could not fail in a night in which nothing happens."""
    night = next(
        found for seed in range(0, 400, 2) if not (found := play(seed)).events and len(found.world.ledger) > 20
    )
    methods = [entry.method for entry in night.world.ledger]
    assert methods.count("SuspendVM_Task") > 0
    assert methods.count("SuspendVM_Task") <= methods.count("PowerOnVM_Task")


@pytest.mark.parametrize("seed", [7, 11])
def test_a_seed_tells_the_same_night_in_every_process(seed: int) -> None:
    program = f"from tests.nights.log import digest; from tests.nights.night import play; print(digest(play({seed})))"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": str(salt)},
        ).stdout.strip()
        for salt in (1, 2)
    }  # fmt: skip
    assert told == {digest(play(seed))}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thousands_of_nights_and_every_fault_of_them_often() -> None:
    found = tally(range(10_000, 14_000), jobs=os.cpu_count() or 1)
    print(found)
    assert found.violations == []
    rarest, times = found.rarest
    assert times >= 50, f"{rarest} struck {times} times only"
    assert {fault for fault, count in found.struck.items() if count} >= set(ALL)
