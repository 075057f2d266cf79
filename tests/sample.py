"""Which of many cases a test tries: of combinations `make test` a few, `make long` the others; of very many a part.

Plugin: of a test that is marked `sampled(N)`, `make test` runs one in N of its cases, which are drawn with the moment
and the zone of the run (`--surroundings SEED` draws the same), and `make long` runs all.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from random import Random, SystemRandom
from typing import Any, TypeVar

import pytest

from tests.surroundings.plugin import HERE

Case = TypeVar("Case")


def mostly_long(combinations: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The parameters of a test: all of these combinations, of which those not among `quick` are marked `long`."""
    every = list(combinations)
    assert all(each in every for each in quick), "each quick one is one of them"
    return [each if each in quick else _long(each) for each in every]


def every_nth(cases: Sequence[Case], nth: int) -> Sequence[Case]:
    """Every so many-th of these, from a drawn one on: a few runs try all of them, and each of them is quick.

    To be asked in a test, not for its parameters: each worker of a run would draw other ones.
    """
    assert "PYTEST_CURRENT_TEST" in os.environ, "drawn while tests are collected"
    first = SystemRandom().randrange(nth)
    print(f"one in {nth} of {len(cases)} cases, from number {first + 1} on")
    return cases[first::nth]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is not drawn as `long`, before pytest leaves out what `-m` does; without `-m` every case runs."""
    chosen = str(config.option.markexpr)
    if "long" not in chosen:
        return
    seed, of_test = config.stash[HERE].seed, dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("long"):
            of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in of_test.items():
        for item in cases if "not long" not in chosen else _not_drawn(cases, Random(f"{seed}:{name}")):
            item.add_marker(pytest.mark.long)


def _not_drawn(cases: list[pytest.Item], rng: Random) -> list[pytest.Item]:
    """All but one in so many of these, whatever is drawn as many as ever: `--part` counts on it."""
    marker = cases[0].get_closest_marker("sampled")
    assert marker is not None
    [nth] = marker.args
    return rng.sample(cases, len(cases) - max(1, len(cases) // nth))


def _long(combination: Any) -> Any:
    values = combination if isinstance(combination, tuple) else (combination,)
    return pytest.param(*values, marks=pytest.mark.long)
