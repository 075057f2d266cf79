"""The small vCenter with a lock VM."""

from __future__ import annotations

import pytest

from gpuops.model.vcenter.vm import PowerState
from tests.execute.lease.leased import LOCK
from tests.execute.small_vcenter import World, _vm, small_world


@pytest.fixture
def world() -> World:
    made = small_world()
    made.vms["vm-99"] = _vm("vm-99", LOCK, "ops", "", "host-2", PowerState.OFF)
    return made
