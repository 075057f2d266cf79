"""A PostgreSQL server of the tests' own, and the time of day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gpuops import clock
from gpuops.clock import set_ahead
from tests.execute.conftest import postgresql

__all__ = ["postgresql"]


@pytest.fixture
def at() -> Iterator[object]:
    """Sets the time of day."""
    before = clock.wall_clock() - clock.machine_time()

    def set_to(text: str) -> None:
        set_ahead(datetime.fromisoformat(text).replace(tzinfo=UTC) - clock.machine_time())

    yield set_to
    set_ahead(before)
