"""A simulated vCenter of the test's own, and the target that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.execute.steps import step_executor
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.server import start as start_server
from gpuops.sim.world import World
from gpuops.vsphere import watches
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session

if TYPE_CHECKING:
    from tests.wire.hosts.rolling import Bench
    from tests.wire.workloads.training import Training


def target_of(server: SimServer) -> Target:
    """The way to a simulated vCenter, its certificate verified."""
    assert server.ca_file is not None
    return Target("127.0.0.1", server.username, Secret(server.password), port=server.port, ca_files=(server.ca_file,))


@pytest.fixture
def serve() -> Iterator[Callable[[str], SimServer]]:
    """Starts a scenario; at the end every server is stopped, and none met a bug of its own or kept a session."""
    with ExitStack() as stack:
        servers: list[SimServer] = []

        def start(scenario: str) -> SimServer:
            world = build(scenario)
            servers.append(stack.enter_context(SimServer(world)))
            return servers[-1]

        yield start
        assert [bug for server in servers for bug in server.world.bugs] == []
        assert [key for server in servers for key in server.world.sessions] == []


@pytest.fixture
def lab(serve: Callable[[str], SimServer]) -> SimServer:
    """The scenario `lab`, at the other end of real SOAP over real TLS."""
    return serve("lab")


@pytest.fixture
def lab_target(lab: SimServer) -> Target:
    return target_of(lab)


@pytest.fixture
def session(lab_target: Target) -> Iterator[Session]:
    with Session(lab_target) as opened:
        yield opened


@pytest.fixture
def inventory(session: Session) -> Inventory:
    return collect.inventory(session)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[World], Bench]]:
    """Serves a world for rolling changes; whatever they advise gets somewhere.

    A host that boots is asked every five minutes of simulated time, not every 20 s: an hour of waiting is 12 requests.
    """
    from tests.wire.hosts.rolling import Bench

    for module in (step_executor, watches):
        monkeypatch.setattr(module, "SLICE_S", 300.0)
    with ExitStack() as stack:
        benches: list[Bench] = []

        def begin(world: World) -> Bench:
            benches.append(Bench(stack.enter_context(SimServer(world)), tmp_path / "state"))
            return benches[-1]

        yield begin
        assert [wrong for bench in benches for wrong in bench.aside.wrong] == []


@pytest.fixture(scope="module")
def served_training() -> Iterator[SimServer]:
    """The scenario `training`, whose simulated time passes as it is waited for."""
    with start_server("training", clock="virtual") as server:
        yield server
        assert server.world.bugs == []


@pytest.fixture
def training(served_training: SimServer, tmp_path: Path) -> Iterator[Training]:
    """Each test leaves what was declared, and nothing else."""
    from tests.wire.workloads.training import DECLARED, Training

    with Connection(target_of(served_training)) as connection:
        served = Training(served_training, Site(connection, tmp_path / "state", wall_clock))
        yield served
        served_training.world.injector.clear()
        served.delete()
        assert served.names() == DECLARED
        inventory = connection.inventory()
        assert [cluster.drs_overrides for cluster in inventory.clusters.values()] == [()]
