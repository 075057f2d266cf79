"""Simulated vCenters on a real socket, a small one and the scenario `lab`, and unmodified pyVmomi connected to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVim.connect import Disconnect

from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sim.lab import Lab, connect, serve_lab
from tests.sim.small_world import small_world


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def server(world: World) -> Iterator[SimServer]:
    with SimServer(world, tls=False) as running:
        yield running
    assert world.bugs == []


@pytest.fixture
def si(server: SimServer) -> Iterator[Any]:
    instance = connect(server)
    yield instance
    Disconnect(instance)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with serve_lab() as lab:
        yield lab
