"""Random lives of books of leases: what never happens in any of them, and that the lives are worth something."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.plan.pool.random_book import Life, drawn_pool

LIVES = 10_000
AT_ONCE = 125
STEPS = 80


def lived(seed: int) -> Life:
    draw = Random(seed)
    life = Life(draw, drawn_pool(draw))
    try:
        life.play(STEPS)
        life.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return life


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("first", range(0, LIVES, AT_ONCE))
def test_never_more_is_lent_than_there_is_and_every_lease_ends(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        seen += lived(seed).seen
    # lives in which nothing waits, breaks or is taken back would show nothing
    assert seen["lend: lent"] > AT_ONCE
    assert seen["lend: waiting"] > AT_ONCE // 2
    assert min(seen["lose_server"], seen["take_back"], seen["client_dies"], seen["kill"]) > AT_ONCE // 5
