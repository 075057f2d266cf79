"""Which of many cases a test tries: of combinations `make test` a few, `make long` the others; of very many a part."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from random import SystemRandom
from typing import Any, TypeVar

import pytest

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


def _long(combination: Any) -> Any:
    values = combination if isinstance(combination, tuple) else (combination,)
    return pytest.param(*values, marks=pytest.mark.long)
