"""The same seeded nights over TLS, by our own client against the simulator's server: nothing is lost there either.

Whatever befalls them, neither a report nor the journal ever holds the password.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from statistics import median

import pytest

from tests.canary import require_hidden
from tests.nights.checkers import violations
from tests.nights.wire import play_on_the_wire


def told(seed: int) -> tuple[list[str], int]:
    """What a night breaks, and how many effects it had."""
    night = play_on_the_wire(seed)
    found = [f"seed {seed}: {said}" for said in violations(night)]
    for what, kept in (("a report", night.told), ("the journal", night.kept), ("the ledger", list(night.world.ledger))):
        require_hidden(f"seed {seed}: {what}", repr(kept))
    return found, sum(1 for entry in night.world.ledger if entry.operation_id)


def test_a_few_nights_over_the_wire() -> None:
    found = [told(seed) for seed in (0, 2, 6)]
    assert [said for broken, _ in found for said in broken] == []
    assert sum(effects for _, effects in found) > 50


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_nights_over_the_wire() -> None:
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(told, range(1000, 1200)))
    print(f"{len(found)} nights, {median(effects for _, effects in found)} effects in the median")
    assert [said for broken, _ in found for said in broken] == []
