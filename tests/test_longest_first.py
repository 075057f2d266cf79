"""In which order the workers get the tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.longest_first import LONGEST_S, spread


@dataclass(frozen=True)
class Limited:
    """A test of a number, with its time limit."""

    number: int
    limit_s: int

    def get_closest_marker(self, name: str) -> pytest.Mark:
        assert name == "timeout"
        return pytest.mark.timeout(self.limit_s).mark


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("tests", [5, 12, 101])
def test_each_worker_begins_with_its_share_of_the_longest(workers: int, tests: int) -> None:
    tests_made = [Limited(number, LONGEST_S if number % 5 == 4 else 120) for number in range(tests)]
    order = spread(tests_made, workers)
    assert sorted(test_made.number for test_made in order) == list(range(tests)), "all of them, each once"
    bounds = [tests * worker // workers for worker in range(workers + 1)]
    shares = [order[begin:end] for begin, end in pairwise(bounds)]
    counts = [sum(test_made.limit_s == LONGEST_S for test_made in share) for share in shares]
    assert sum(counts) == tests // 5
    assert max(counts) - min(counts) <= 1
    for share, count in zip(shares, counts, strict=True):
        assert all(test_made.limit_s == LONGEST_S for test_made in share[:count]), "they come first"
        remaining = [test_made.number for test_made in share[count:]]
        assert remaining == sorted(remaining), "the others in the order in which they were"
