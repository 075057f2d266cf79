"""The small vCenter with a lock VM."""

from __future__ import annotations

import pytest

from tests.execute.lease.leased import leased_world
from tests.execute.small_vcenter import World


@pytest.fixture
def world() -> World:
    return leased_world()
