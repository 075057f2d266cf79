"""Tasks against a simulated vCenter, with no configuration of this machine in the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.sim.server import SimServer, start
from gpuops.sim.wire import sim_client
from gpuops.tasks.task_connection import ConnectionArguments
from tests.cli.conftest import new_home


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and none of the variables that say something of a connection."""
    return new_home(tmp_path / "home", monkeypatch)


@dataclass(frozen=True)
class Lab:
    """A served simulated vCenter, and what a task says to reach it."""

    server: SimServer
    said: ConnectionArguments

    @property
    def effects(self) -> list[str]:
        """Every applied effect, as `Method name`."""
        return [f"{entry.method} {entry.name}" for entry in self.server.world.ledger]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with start("lab", clock="stepped") as server:
        path = tmp_path / "ready.json"
        sim_client.write(path, sim_client.of(server))
        yield Lab(server, ConnectionArguments(hostname=f"sim@{path}"))
        assert list(server.world.bugs) == []
