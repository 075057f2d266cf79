"""Plugin: each worker of pytest-xdist begins with some of the longest tests, so that none of them is left for the end,
when the other workers have nothing to do any more. The longest are those that have fifteen minutes or more to end in.

pytest-xdist gives each worker one stretch of the collection, of the same length (`--dist worksteal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

LONGEST_S: Final = 900


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After what is left out by `-m` and `--part`."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = spread(items, workers)


def spread(items: Sequence[Any], workers: int) -> list[Any]:
    """All of them, in so many stretches of equal length (some one longer), each with its share of the longest first."""
    longest = [item for item in items if _limit_s(item) >= LONGEST_S]
    remaining = [item for item in items if _limit_s(item) < LONGEST_S]
    ordered: list[Any] = []
    for worker in range(workers):
        first = longest[worker::workers]
        ends = len(items) * (worker + 1) // workers
        room = max(0, ends - len(ordered) - len(first))
        ordered += [*first, *remaining[:room]]
        remaining = remaining[room:]
    return ordered


def _limit_s(item: Any) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None and marker.args else 0.0
