"""A vCenter of a version, served; at the end it met no bug of its own and kept no session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.hosts.modes.bench import Bench


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    opened: list[tuple[SimServer, Connection]] = []

    def start(version: str = "9.1.0.0") -> Bench:
        server = SimServer(build("supervisor", api_version=version)).__enter__()
        opened.append((server, Connection(target_of(server)).__enter__()))
        return Bench(server, Site(opened[-1][1], tmp_path / version, wall_clock))

    yield start
    for server, connection in opened:
        connection.__exit__(None, None, None)
        server.__exit__(None, None, None)
        assert (server.world.bugs, list(server.world.sessions)) == ([], [])


@pytest.fixture
def bench(serve: Callable[[str], Bench]) -> Bench:
    return serve("9.1.0.0")
