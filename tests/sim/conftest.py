"""A small simulated vCenter on a real socket, and unmodified pyVmomi connected to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyVim.connect import Disconnect, SmartConnect

from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sim.small_world import small_world


def connect(server: SimServer, **options: Any) -> Any:
    """A ServiceInstance of a server, verified against its own authority."""
    return SmartConnect(**{**server.login, **options})


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
