"""Plugin: which tests `make test` and `make long` run. `pytest PATH` without `-m` runs all tests there.

`make test` runs the same cases each time: every test without a mark, and of a test marked `quick_cases(N)` N cases
that are spread evenly over their order. Cases marked `long` are left to `make long`, and so is a test marked
`drawn_cases(N)` none of whose cases is marked `long`.

`make long` runs what `make test` leaves out: all of the folders that guard a user's night (`NIGHTS`), and elsewhere one
case in sixteen, drawn for each test with the seed that pytest prints. Of a test marked `drawn_cases(N)`, one case in N
is drawn on average, wherever it is: with fewer than N cases it is left out of some runs. Tests of hypothesis are drawn
in the same way; `make long` gives them new examples, `make test` the same ones each time (`tests/conftest.py`).
`make long ALL=1` draws nothing and runs every case. `--surroundings SEED` draws the cases and examples of an earlier
run again.

A test that takes over a second of CPU is marked `long`, unless it is the one that guards something
(`tests/quick_tests.yaml`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Any, Final, TypeVar

import pytest
from hypothesis import is_hypothesis_test

from tests.surroundings.plugin import HERE

Case = TypeVar("Case")
QUICK: Final = "not long"
"""Part of the expression that `make test` passes with `-m`."""

NIGHTS: Final = ("execute", "fleet", "kills", "nights", "recorded", "runner", "wire/nights")
"""Folders below tests/ that guard a user's night: their long cases run on every commit, but for `drawn_cases(N)`."""

SHARE: Final = 16
"""Elsewhere `make long` draws one in so many cases."""


def mostly_long(combinations: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return all combinations as parameters of a test; those that are not among `quick` are marked `long`."""
    parameters = list(combinations)
    assert all(parameter in parameters for parameter in quick), "each quick one is one of them"
    return [parameter if parameter in quick else _long(parameter) for parameter in parameters]


def drawn_seed(purpose: str) -> int:
    """Return a seed that depends on the seed of the run and on this purpose. Call it in a test."""
    return Random(f"{os.environ['SURROUNDINGS_SEED']}:{purpose}").randrange(1 << 30)


def every_nth(cases: Sequence[Case], nth: int) -> Sequence[Case]:
    """Return every nth case. The first one depends on the seed of the run, so that a few runs try all of them.

    Call it in a test: each test draws for itself.
    """
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    first = Random(f"{os.environ['SURROUNDINGS_SEED']}:{test}").randrange(nth)
    print(f"one in {nth} of {len(cases)} cases, from number {first + 1} on")
    return cases[first::nth]


def evenly(cases: Sequence[Case], count: int) -> Sequence[Case]:
    """Return so many cases, spread evenly over their order: of 10 cases and a count of 3 the cases 0, 3 and 6."""
    count = min(count, len(cases))
    return [cases[number * len(cases) // count] for number in range(count)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each case its mark before pytest applies `-m`."""
    expression = str(config.option.markexpr)
    if "long" not in expression:
        return
    cases_by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases_by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    dropped: set[pytest.Item] = set()
    for test, cases in cases_by_test.items():
        quick = quick_cases(cases)
        unquick = [case for case in cases if case not in quick]
        chosen = unquick if QUICK in expression else _long_cases(cases, unquick, config, test)
        dropped.update(case for case in unquick if case not in chosen)
        for case in chosen:
            case.add_marker(pytest.mark.long)
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def quick_cases(cases: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    """Return the cases of one test that `make test` runs: none of those marked `long`."""
    unmarked = [case for case in cases if not case.get_closest_marker("long")]
    marker = cases[0].get_closest_marker("quick_cases")
    if marker is not None:
        return evenly(unmarked, marker.args[0])
    is_drawn = cases[0].get_closest_marker("drawn_cases") and len(unmarked) == len(cases)
    return [] if is_drawn else unmarked


def _long_cases(
    cases: Sequence[pytest.Item], long_cases: Sequence[pytest.Item], config: pytest.Config, test: str
) -> Sequence[pytest.Item]:
    """Return the cases of a test that `make long` runs, where `others` are those that `make test` leaves out.

    One in 16 of 40 cases is 2 or 3 of them, and one in 16 of a single case is that case in every sixteenth run: all
    cases have the same chance.
    """
    candidates = cases if is_hypothesis_test(getattr(cases[0], "obj", None)) else long_cases
    marker = cases[0].get_closest_marker("drawn_cases")
    guards_nights = test.startswith(tuple(f"tests/{folder}/" for folder in NIGHTS))
    share = 1 if config.option.all_cases else max(marker.args[0] if marker else 1, 1 if guards_nights else SHARE)
    chance = Random(f"{config.stash[HERE].seed}:{test}")
    count, remainder = divmod(len(candidates), share)
    return chance.sample(candidates, count + (chance.randrange(share) < remainder))


def _long(combination: Any) -> Any:
    values = combination if isinstance(combination, tuple) else (combination,)
    return pytest.param(*values, marks=pytest.mark.long)
