"""The small vCenter after a night."""

from __future__ import annotations

import pytest

from tests.execute.small_vcenter import World
from tests.plan.rotation.returns.morning import world_after_night


@pytest.fixture
def world() -> World:
    return world_after_night()
