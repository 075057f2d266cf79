"""Which of many combinations a test tries in `make test`; `make long` tries the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_long(combinations: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The parameters of a test: all of these combinations, of which those not among `quick` are marked `long`."""
    every = list(combinations)
    assert all(each in every for each in quick), "each quick one is one of them"
    return [each if each in quick else _long(each) for each in every]


def _long(combination: Any) -> Any:
    values = combination if isinstance(combination, tuple) else (combination,)
    return pytest.param(*values, marks=pytest.mark.long)
