"""The small vCenter after a night."""

from __future__ import annotations

import pytest

from gpuops.model.vcenter.vm import PowerState
from tests.execute.small_vcenter import World, small_world
from tests.plan.rotation.returns.morning import NIGHT


@pytest.fixture
def world() -> World:
    """The night took the first two desktops and started ml-01 in their place."""
    world = small_world()
    for ref in ("vm-1", "vm-2"):
        world._set_power(ref, PowerState.SUSPENDED)
        world.set(ref, attributes={"gpuops.rotation": f"{NIGHT} desktop"})
    world._set_power("vm-91", PowerState.ON)
    world.set("vm-91", attributes={"gpuops.rotation": f"{NIGHT} ml"})
    return world
